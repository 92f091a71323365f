//! Stories: what stands, what happens, and what must come of it, as an operator writes it down.
//!
//! ```text
//!  scenarios/NAME/scenario.toml ──file──▶ Story ──play──▶ nothing, or a Failure
//!                                 words: sentences and their forms
//!                                 story_actions, facts: the forms that there are
//! ```
//!
//! A story runs in a world in which nothing fails by itself. What must never be true anywhere
//! (`truth`) is watched here as well, without being asked for.

#![allow(clippy::disallowed_methods, reason = "a story is a file of the real world")]

mod facts;
mod file;
mod story_actions;
mod words;

use std::path::{Path, PathBuf};
use std::time::Duration;

use pvc_ops::node::CoordinatorRequest;
use tokio::sync::oneshot;

use crate::actions::Action;
use crate::cluster::{Cluster, Shape};
use crate::log::Log;
use crate::operators::{Answer, said};
use crate::truth::Violation;
use facts::{Beginning, Fact, Look, NodeFact};
use story_actions::StoryAction;

/// Time between two looks at everything. What lasts shorter may go unseen.
const TICK: Duration = Duration::from_millis(100);

/// Time that a cluster may take to be as the story wants it at its beginning.
const SETTLED: Duration = Duration::from_secs(300);

/// A story.
#[derive(Clone)]
pub struct Story {
    /// Name of the story's folder.
    pub name: String,
    pub variant: Option<String>,
    /// Reason for which the story fails, if it is known to.
    pub known: Option<String>,
    shape: Shape,
    primary: usize,
    fenced: Vec<usize>,
    may_be_fenced: Vec<usize>,
    steps: Vec<Step>,
    never: Vec<Said<Fact>>,
    always: Vec<Said<Fact>>,
    finally: Vec<Said<Fact>>,
    within: Duration,
    stays: Duration,
}

/// A sentence and what it says.
#[derive(Clone)]
struct Said<T> {
    words: String,
    what: T,
}

#[derive(Clone)]
struct Step {
    at: Option<Duration>,
    /// All of this has to be so first.
    after: Vec<Said<Fact>>,
    within: Duration,
    wait: Duration,
    story_actions: Vec<Said<StoryAction>>,
    answer: Expected,
    /// The coordinator that hears what operators ask for here; any if none is named.
    through: Option<usize>,
}

/// Expected answer to a request of an operator.
#[derive(Clone)]
enum Expected {
    Done,
    Refused(String),
    /// Nobody hears it, or nobody answers in time.
    Nothing,
    Anything,
}

/// Failure of a story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub expected: String,
    pub so: String,
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        let expected = match violation.rule.as_str() {
            "scene" => "the story can begin".to_owned(),
            rule => format!("{rule} holds"),
        };
        Failure { expected, so: violation.what }
    }
}

impl Story {
    /// Every story in `folder`: one, or one for each variant.
    ///
    /// # Errors
    /// In words, with the file and, where it can be told, the line.
    pub fn read(folder: &Path) -> Result<Vec<Story>, String> {
        file::read(folder)
    }

    /// `NAME`, or `NAME/VARIANT`.
    pub fn title(&self) -> String {
        match &self.variant {
            Some(variant) => format!("{}/{variant}", self.name),
            None => self.name.clone(),
        }
    }

    /// Plays it in this process, which must do nothing else: see `same_dice`.
    ///
    /// # Errors
    /// The first thing that was not as it must be.
    pub async fn play(&self, log: Log) -> Result<(), Failure> {
        let cluster = Cluster::start(self.shape.clone(), log).await?;
        set_the_scene(&cluster, self.primary).await?;
        let beginning = Beginning::of(&cluster);
        cluster.log().note("-- the story begins");
        let mut play = Play {
            story: self,
            cluster: &cluster,
            beginning,
            answers: Vec::new(),
            fenced: Vec::new(),
        };
        for step in &self.steps {
            play.step(step).await?;
        }
        cluster.log().note("-- everything has happened");
        play.end().await
    }
}

/// Every sentence that there is, as the manual shows them: what can happen, and what can be so.
pub fn sentences() -> [String; 2] {
    let lines = |forms: Vec<&str>| forms.join("\n");
    let story_actions = story_actions::FORMS.iter().map(|form| form.form).collect();
    let facts = facts::FORMS.iter().copied().flatten().map(|form| form.form).collect();
    [lines(story_actions), lines(facts)]
}

/// The folders of stories below `top`, in order.
///
/// # Errors
/// If `top` cannot be read, or has none.
pub fn folders(top: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(top).map_err(|error| format!("{}: {error}", top.display()))?;
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
    folders.sort();
    if folders.is_empty() {
        Err(format!("{}: there are no stories here", top.display()))
    } else {
        Ok(folders)
    }
}

/// Gives the primary role to whom the story wants it, and waits until everything is well.
async fn set_the_scene(cluster: &Cluster, primary: usize) -> Result<(), Violation> {
    let settled = |cluster: &Cluster| cluster.unsettled().is_empty();
    cluster.until("everything is well", SETTLED, settled).await?;
    let name = cluster.shape.host_name(primary);
    let asked =
        pvc_ops::node::set_coordinator_state(&cluster.eyes, &name, CoordinatorRequest::Primary)
            .await;
    if let Err(error) = asked {
        return Err(Violation { rule: "scene".to_owned(), what: error.to_string() });
    }
    let named = |cluster: &Cluster| {
        cluster.view().config.primary.as_ref().is_some_and(|primary| primary.as_str() == name)
    };
    cluster
        .until("the primary is who it should be", SETTLED, |cluster| {
            named(cluster) && settled(cluster)
        })
        .await?;
    // The figures that nodes place VMs by are those of the next keepalive.
    cluster.pass(Duration::from_secs(10)).await
}

/// An ask that is under way.
struct Asked {
    words: String,
    expected: Expected,
    answer: oneshot::Receiver<Answer>,
}

/// A story that is being played.
struct Play<'a> {
    story: &'a Story,
    cluster: &'a Cluster,
    beginning: Beginning,
    answers: Vec<Asked>,
    /// Nodes that were fenced so far.
    fenced: Vec<usize>,
}

impl Play<'_> {
    fn look(&self) -> Look<'_> {
        Look { cluster: self.cluster, beginning: &self.beginning }
    }

    fn since_the_beginning(&self) -> Duration {
        self.cluster.now() - self.beginning.at
    }

    async fn step(&mut self, step: &Step) -> Result<(), Failure> {
        if let Some(at) = step.at {
            self.pass(at.saturating_sub(self.since_the_beginning())).await?;
        }
        self.until(&step.after, step.within).await?;
        self.pass(step.wait).await?;
        for story_action in &step.story_actions {
            self.cluster.log().note(&format!("-- {}", story_action.words));
            self.act(story_action, step)?;
        }
        Ok(())
    }

    fn act(&mut self, story_action: &Said<StoryAction>, step: &Step) -> Result<(), Failure> {
        for action in self.actions(story_action)? {
            let Action::Ask(ask) = action else {
                self.cluster.act(&action);
                continue;
            };
            let (words, expected) = (story_action.words.clone(), step.answer.clone());
            match self.cluster.ask_for_answer(ask, step.through) {
                Some(answer) => self.answers.push(Asked { words, expected, answer }),
                None => judge(&words, &expected, &None, "nobody hears it")?,
            }
        }
        Ok(())
    }

    fn actions(&self, story_action: &Said<StoryAction>) -> Result<Vec<Action>, Failure> {
        match &story_action.what {
            StoryAction::Does(actions) => Ok(actions.clone()),
            StoryAction::ToEachNode(act) => {
                Ok((0..self.story.shape.hosts.len()).map(act).collect())
            }
            StoryAction::ToFencerOf(node, act) => {
                let fencer = self.look().fencer_of(*node);
                let why = || format!("nobody fences {}", self.name(*node));
                to_one(story_action, fencer, *act, why)
            }
            StoryAction::ToNodeOf(vm, act) => {
                let host = self.cluster.runs_on(*vm).first().copied();
                to_one(story_action, host, *act, || "it runs nowhere".to_owned())
            }
        }
    }

    /// Lets time pass, and looks at everything all the time.
    async fn pass(&mut self, time: Duration) -> Result<(), Failure> {
        let until = self.cluster.now() + time;
        while self.cluster.now() < until {
            self.tick().await?;
        }
        Ok(())
    }

    async fn tick(&mut self) -> Result<(), Failure> {
        self.cluster.pass(TICK).await?;
        for said in &self.story.always {
            self.look().holds(&said.what).map_err(|so| failure("at all times", said, so))?;
        }
        for said in &self.story.never {
            if self.look().holds(&said.what).is_ok() {
                return Err(failure("never", said, "it is so now".to_owned()));
            }
        }
        self.look_for_fences()?;
        self.collect_answers()
    }

    fn look_for_fences(&mut self) -> Result<(), Failure> {
        for node in 0..self.story.shape.hosts.len() {
            let is_fenced = Fact::Node(NodeFact::NodeIs(
                node,
                vec![words::NodeWord::Daemon(pvc_model::node::DaemonState::Fenced)],
            ));
            if self.fenced.contains(&node) || self.look().holds(&is_fenced).is_err() {
                continue;
            }
            let story = self.story;
            if !story.fenced.contains(&node) && !story.may_be_fenced.contains(&node) {
                let who: Vec<&str> =
                    self.story.fenced.iter().map(|node| self.name(*node)).collect();
                let expected = match who.as_slice() {
                    [] => "nobody is fenced".to_owned(),
                    who => format!("nobody is fenced but {}", who.join(", ")),
                };
                return Err(Failure { expected, so: format!("{} is", self.name(node)) });
            }
            self.fenced.push(node);
        }
        Ok(())
    }

    fn name(&self, node: usize) -> &str {
        &self.story.shape.hosts[node].name
    }

    fn collect_answers(&mut self) -> Result<(), Failure> {
        let mut waiting = Vec::new();
        for mut asked in std::mem::take(&mut self.answers) {
            match asked.answer.try_recv() {
                Ok(answer) => judge(&asked.words, &asked.expected, &answer, &said(&answer))?,
                Err(_) => waiting.push(asked),
            }
        }
        self.answers = waiting;
        Ok(())
    }

    /// Finds which of `facts` does not hold.
    fn wrong(&self, facts: &[Said<Fact>]) -> Option<(String, String)> {
        facts
            .iter()
            .find_map(|said| Some((said.words.clone(), self.look().holds(&said.what).err()?)))
    }

    async fn until(&mut self, facts: &[Said<Fact>], within: Duration) -> Result<(), Failure> {
        let end = self.cluster.now() + within;
        while let Some((words, so)) = self.wrong(facts) {
            if self.cluster.now() >= end {
                return Err(Failure {
                    expected: format!("within {} s: {words}", within.as_secs()),
                    so,
                });
            }
            self.tick().await?;
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<(), Failure> {
        let story = self.story;
        self.until(&story.finally, story.within).await?;
        self.pass(story.stays).await?;
        if let Some((words, so)) = self.wrong(&story.finally) {
            let expected = format!("still after {} s: {words}", story.stays.as_secs());
            return Err(Failure { expected, so });
        }
        // Every ask has its answer at some time: an operator waits only so long.
        while !self.answers.is_empty() {
            self.tick().await?;
        }
        // Whether VMs run the story says itself; and a peer of PVC 1.0.3 forgets what it was asked
        // now and then.
        if !story.shape.hosts.iter().any(|host| host.is_legacy) {
            self.cluster.kept_promises(|goal| !goal.is_power()).map_err(|broken| Failure {
                expected: format!("{} holds", broken.rule),
                so: broken.what,
            })?;
            self.cluster.jobs_are_whole().map_err(|wrong| Failure {
                expected: "every job is over, and done or undone".to_owned(),
                so: wrong.what,
            })?;
            self.cluster.uploads_are_whole().map_err(|wrong| Failure {
                expected: "volumes have what was uploaded, and nothing is left of it".to_owned(),
                so: wrong.what,
            })?;
            self.cluster.storage_is_whole().map_err(|wrong| Failure {
                expected: "OSDs, volumes and pools are whole, and recorded so".to_owned(),
                so: wrong.what,
            })?;
            self.cluster.networks_are_whole().map_err(|wrong| Failure {
                expected: "networks are recorded as operators were answered".to_owned(),
                so: wrong.what,
            })?;
        }
        match story.fenced.iter().find(|node| !self.fenced.contains(node)) {
            Some(node) => Err(Failure {
                expected: format!("{} is fenced", self.name(*node)),
                so: "it never was".to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// Resolves an event of a node that is only known when it happens.
fn to_one(
    story_action: &Said<StoryAction>,
    node: Option<usize>,
    act: fn(usize) -> Action,
    otherwise: impl FnOnce() -> String,
) -> Result<Vec<Action>, Failure> {
    match node {
        Some(node) => Ok(vec![act(node)]),
        None => Err(Failure { expected: story_action.words.clone(), so: otherwise() }),
    }
}

fn failure(when: &str, said: &Said<Fact>, so: String) -> Failure {
    Failure { expected: format!("{when}: {}", said.words), so }
}

fn judge(words: &str, expected: &Expected, answer: &Answer, so: &str) -> Result<(), Failure> {
    let (is_so, wanted) = match (expected, answer) {
        (Expected::Anything, _) => (true, String::new()),
        (Expected::Done, answer) => (matches!(answer, Some(Ok(()))), "is done".to_owned()),
        (Expected::Nothing, answer) => (answer.is_none(), "has no answer".to_owned()),
        (Expected::Refused(why), answer) => (
            matches!(answer, Some(Err(refusal)) if refusal.why.contains(why)),
            format!("is refused: {why}"),
        ),
    };
    if is_so {
        Ok(())
    } else {
        Err(Failure { expected: format!("`{words}` {wanted}"), so: so.to_owned() })
    }
}
