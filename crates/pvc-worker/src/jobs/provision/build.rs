//! The script's process, from its start to its end.

use std::pin::Pin;
use std::time::Duration;

use pvc_model::job::provision::Provision;
use pvc_model::provisioner::{Class, Recipe};
use pvc_model::storage::VolumeId;
use pvc_model::{Uuid, with_causes};
use pvc_ops::provision::{check_cluster, check_room, definition_of_script};
use pvc_ops::vm::{Definition, Script};
use pvc_ports::{
    Course, ScriptFailure, ScriptJob, ScriptLevel, ScriptMessage, ScriptOrder, ScriptPhase,
    ScriptProcess, ScriptsError,
};
use serde_json::{Map, Value};

use super::data::{Texts, facts};
use super::ledger::{self, Made};
use super::{Profiles, ProvisionError, Result, ScriptTools, calls, devices};
use crate::context::{Context, Unwritten};

/// The most bytes of XML that a script returns.
const MOST_XML: usize = 256 << 10;

/// Time that `cleanup` may take after a failure.
const CLEANUP_TIME: Duration = Duration::from_secs(300);

/// Time that a script may take to be imported.
const IMPORT_TIME: Duration = Duration::from_secs(120);

/// Directories in which the programs lie that make filesystems.
const PROGRAMS: [&str; 3] = ["/usr/sbin", "/usr/bin", "/usr/local/sbin"];

/// Makes what the profile describes, with the VM recorded in state `provision`. When it returns,
/// the script's process is gone, and so are its devices.
pub(super) async fn build(
    context: &Context,
    tools: &ScriptTools,
    wanted: &Provision,
) -> Result<()> {
    let profiles = tools.profiles.as_deref().ok_or(ProvisionError::NoScripts)?;
    context.stage(1, "collecting the configuration of the VM");
    let (recipe, texts) = collect(profiles, wanted).await?;
    context.stage(2, "checking the configuration against the cluster");
    check(context, tools, wanted, &recipe).await?;
    context.stage(3, "loading the script and preparing its root directory");
    let settings = &tools.settings;
    let job = ScriptJob {
        name: context.job.to_string(),
        facts: facts(wanted, &recipe, &texts, settings),
        script: texts.script,
        memory_bytes: settings.memory_bytes,
    };
    let process = tools.scripts.start(&job).await.map_err(ProvisionError::from)?;
    if let Some(missing) = process.missing_limits() {
        context.log(format!("warning: {missing}"));
    }
    let began = context.tools.clock.monotonic();
    let mapped = Vec::new();
    let mut session =
        Session { context, tools, wanted, recipe, process, mapped, defined: 0, began };
    let done = session.perform().await;
    let ended = session.end().await;
    done.and(ended)
}

async fn collect(profiles: &dyn Profiles, wanted: &Provision) -> Result<(Recipe, Texts)> {
    let catalog = profiles.catalog().await.map_err(ProvisionError::from)?;
    let recipe = Recipe::find(&catalog, &wanted.profile, &wanted.arguments);
    let recipe = recipe.map_err(|why| ProvisionError::Refused(why.into()))?;
    let script = profiles.text(Class::Script, &recipe.script).await;
    let script = script.map_err(ProvisionError::from)?;
    let ovf = match &recipe.ova {
        Some((_, name)) => profiles.text(Class::Ova, name).await,
        None => Ok(None),
    };
    let ovf = ovf.map_err(ProvisionError::from)?;
    // One that is removed at this moment has no lines.
    Ok((recipe, Texts { script: script.unwrap_or_default(), ovf }))
}

async fn check(
    context: &Context,
    tools: &ScriptTools,
    wanted: &Provision,
    recipe: &Recipe,
) -> Result<()> {
    let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
    let fits = check_cluster(&view, recipe, wanted, Some(&context.job));
    fits.map_err(ProvisionError::from)?;
    let room = check_room(context.tools.storage.as_ref(), recipe).await;
    room.map_err(ProvisionError::from)?;
    for program in recipe.makers() {
        let mut is_there = false;
        for directory in PROGRAMS {
            let path = std::path::Path::new(directory).join(&program);
            // What cannot be looked at is no program.
            is_there |= matches!(tools.files.look(&path).await, Ok(Some(_)));
        }
        if !is_there {
            let node = context.tools.node.to_string();
            return Err(ProvisionError::NoMaker { program, node }.into());
        }
    }
    Ok(())
}

/// A script's process at work.
pub(super) struct Session<'a> {
    pub context: &'a Context,
    pub tools: &'a ScriptTools,
    wanted: &'a Provision,
    recipe: Recipe,
    process: Box<dyn ScriptProcess>,
    /// Volumes that the script has mapped, or may have.
    pub mapped: Vec<VolumeId>,
    /// Number of other VMs that the script has defined.
    pub defined: usize,
    began: Duration,
}

/// Reason for which a script ends in the middle of its method, when it comes.
type End<'a> = Pin<&'a mut (dyn Future<Output = Unwritten<ProvisionError>> + Send)>;

/// Waits for what ends a method that may take `time`. `heeds` whether the job is cancelled.
async fn end_of(
    context: &Context,
    at: &'static str,
    time: Duration,
    heeds: bool,
) -> Unwritten<ProvisionError> {
    tokio::select! {
        biased;
        () = context.lost() => Unwritten::Lost,
        () = context.leaving.cancelled() => ProvisionError::Leaving.into(),
        () = context.cancelled.cancelled(), if heeds => ProvisionError::Cancelled.into(),
        () = context.tools.clock.sleep(time) => {
            ProvisionError::TooLong { at, after: time }.into()
        }
    }
}

impl Session<'_> {
    /// UUID of the VM that is made.
    pub fn uuid(&self) -> Uuid {
        self.wanted.vm.uuid.expect("a job of this kind is not understood without one")
    }

    /// The script, as far as it limits what is done to other VMs for it.
    pub fn script(&self) -> Script {
        Script { own: self.uuid() }
    }

    /// Whether no VM is started where that would take more memory than its node has.
    pub fn refuses_overcommit(&self) -> bool {
        self.wanted.refuse_memory_overcommit
    }

    async fn perform(&mut self) -> Result<()> {
        let (at, context) = ("loading the script", self.context);
        let end = end_of(context, at, IMPORT_TIME, true);
        tokio::pin!(end);
        match self.hear(at, end).await? {
            ScriptMessage::Ready => {}
            _ => return Err(ProvisionError::Unexpected { at }.into()),
        }
        let done = self.phases().await;
        if let Err(Unwritten::Refused(why)) = &done {
            self.clean_up_after(why).await;
        }
        done
    }

    async fn phases(&mut self) -> Result<()> {
        self.context.stage(4, "running the script's setup()");
        self.run(ScriptPhase::Setup).await?;
        self.context.stage(5, "running the script's create()");
        let xml = self.run(ScriptPhase::Create).await?;
        if self.wanted.define {
            self.define(xml).await?;
        }
        self.context.stage(6, "running the script's prepare()");
        self.run(ScriptPhase::Prepare).await?;
        self.context.stage(7, "running the script's install()");
        self.run(ScriptPhase::Install).await?;
        self.context.stage(8, "running the script's cleanup()");
        self.run(ScriptPhase::Cleanup).await?;
        Ok(())
    }

    /// Runs a method; returns what it returned.
    async fn run(&mut self, phase: ScriptPhase) -> Result<Value> {
        let settings = &self.tools.settings;
        let used = self.context.tools.clock.monotonic().saturating_sub(self.began);
        let time = settings.phase_time.min(settings.whole_time.saturating_sub(used));
        self.run_within(phase, time, true).await
    }

    async fn run_within(
        &mut self,
        phase: ScriptPhase,
        time: Duration,
        is_cancelled: bool,
    ) -> Result<Value> {
        let at = named(phase);
        let context = self.context;
        let end = end_of(context, at, time, is_cancelled);
        tokio::pin!(end);
        self.tell(ScriptOrder::Run(phase), at, end.as_mut()).await?;
        match self.hear(at, end).await? {
            ScriptMessage::Done(value) => Ok(value),
            _ => Err(ProvisionError::Unexpected { at }.into()),
        }
    }

    /// Sends a message, unless the script is to end first.
    async fn tell(&mut self, order: ScriptOrder, at: &'static str, end: End<'_>) -> Result<()> {
        let sent = tokio::select! {
            biased;
            why = end => return Err(why),
            sent = self.process.tell(order) => sent,
        };
        Ok(sent.map_err(|source| ProvisionError::Ended { at, source })?)
    }

    /// Hears the script until it is done, and serves its calls, unless it is to end first.
    async fn hear(&mut self, at: &'static str, mut end: End<'_>) -> Result<ScriptMessage> {
        let context = self.context;
        loop {
            let message = tokio::select! {
                biased;
                why = end.as_mut() => return Err(why),
                message = self.process.next() => message,
            };
            match message.map_err(|source| ProvisionError::Ended { at, source })? {
                ScriptMessage::Wrote(line) => context.log(line),
                ScriptMessage::Log { level, text } => context.log(leveled(level, text)),
                ScriptMessage::Call { function, arguments } => {
                    let answer = self.answer(&function, arguments, end.as_mut()).await?;
                    self.tell(answer, at, end.as_mut()).await?;
                }
                ScriptMessage::Failed(ScriptFailure { class, text, traceback }) => {
                    traceback.lines().for_each(|line| context.log(line));
                    // It is shown on terminals.
                    let text = text.replace(|letter: char| letter.is_control(), " ");
                    return Err(ProvisionError::Raised { at, class, text }.into());
                }
                message @ (ScriptMessage::Ready | ScriptMessage::Done(_)) => return Ok(message),
            }
        }
    }

    /// Serves a call. It is never broken off: what was begun is made, and written down. A long copy
    /// is stopped when the script is to end.
    async fn answer(
        &mut self,
        function: &str,
        arguments: Map<String, Value>,
        end: End<'_>,
    ) -> Result<ScriptOrder> {
        let course = Course::default();
        let serving = calls::serve(self, function, &arguments, &course);
        tokio::pin!(serving);
        let served = tokio::select! {
            biased;
            served = &mut serving => served,
            why = end => {
                course.stop();
                // Whatever has become of it, nobody waits for the answer.
                let _ = serving.await;
                return Err(why);
            }
        };
        match served {
            Ok(value) => Ok(ScriptOrder::Returned(value)),
            Err(calls::CallError::Raised(why)) => Ok(ScriptOrder::Raised(why)),
            Err(calls::CallError::Lost) => Err(Unwritten::Lost),
        }
    }

    /// Records the VM in state `provision`, as the script describes it.
    async fn define(&mut self, xml: Value) -> Result<()> {
        let Value::String(xml) = xml else {
            let text = "create() returned no text".to_owned();
            let class = "ProvisioningError".to_owned();
            return Err(ProvisionError::Raised { at: "create()", class, text }.into());
        };
        if xml.len() > MOST_XML {
            return Err(ProvisionError::LongXml { most: MOST_XML }.into());
        }
        let refused = |source| ProvisionError::Xml { source };
        let definition = definition_of_script(&self.recipe, self.wanted, &xml);
        let definition = Definition::read(definition).await.map_err(refused)?;
        if definition.name() != self.wanted.vm.name {
            let (found, expected) = (definition.name().to_owned(), self.wanted.vm.name.clone());
            let source = pvc_ops::vm::DefineRefusal::OtherVm { found, expected };
            return Err(ProvisionError::Xml { source }.into());
        }
        let number = ledger::note(self.context, &Made::Vm).await;
        let number = number.map_err(ProvisionError::from)?;
        let decide =
            |cluster: &pvc_model::cluster::Cluster| definition.define(cluster).map_err(refused);
        let defined = self.context.change::<_, ProvisionError>(decide).await?;
        let amended = ledger::amend(self.context, number, &Made::DefinedVm).await;
        amended.map_err(ProvisionError::from)?;
        for warning in defined.warnings {
            self.context.log(format!("warning: {warning}"));
        }
        let (name, node) = (defined.name, defined.node);
        self.context.log(format!("VM \"{name}\" is defined, and assigned to node {node}"));
        Ok(())
    }

    /// Has the script clean up after a failure, if its process is still there.
    async fn clean_up_after(&mut self, why: &ProvisionError) {
        self.context.log(with_causes(why));
        let hears = match why {
            // It has run.
            ProvisionError::Raised { at, .. } | ProvisionError::Unexpected { at } => {
                *at != named(ScriptPhase::Cleanup)
            }
            ProvisionError::Ended { .. } => false,
            // It is still in its method, and hears nothing before that ends.
            ProvisionError::TooLong { .. }
            | ProvisionError::Cancelled
            | ProvisionError::Leaving => false,
            _ => true,
        };
        if !hears {
            return;
        }
        self.context.say("running the script's cleanup() after the failure");
        let cleaned = self.run_within(ScriptPhase::Cleanup, CLEANUP_TIME, false).await;
        if let Err(Unwritten::Refused(why)) = cleaned {
            self.context.log(format!("the script's cleanup() failed, too: {}", with_causes(&why)));
        }
    }

    /// Ends the process with all it has mounted, and its devices.
    async fn end(self) -> Result<()> {
        let Session { context, tools, process, mapped, .. } = self;
        context.stage(9, "removing the script's root directory and devices");
        let killed: Result<(), ScriptsError> = process.kill().await;
        if let Err(error) = killed {
            context.log(format!("warning: {}", with_causes(&error)));
        }
        let mut ended = Ok(());
        for volume in mapped {
            let unmapped = devices::end(context, Some(tools), &volume).await;
            context.log(match &unmapped {
                Ok(()) => format!("volume {volume}, which the script had left mapped, is unmapped"),
                Err(error) => format!("warning: {}", with_causes(error)),
            });
            ended = ended.and(unmapped);
        }
        ended
    }
}

/// A method as messages name it.
fn named(phase: ScriptPhase) -> &'static str {
    match phase {
        ScriptPhase::Setup => "setup()",
        ScriptPhase::Create => "create()",
        ScriptPhase::Prepare => "prepare()",
        ScriptPhase::Install => "install()",
        ScriptPhase::Cleanup => "cleanup()",
    }
}

fn leveled(level: ScriptLevel, text: String) -> String {
    match level {
        ScriptLevel::Info => text,
        ScriptLevel::Warning => format!("warning: {text}"),
        ScriptLevel::Error => format!("error: {text}"),
    }
}
