//! OSDs as the simulated Ceph and the disks of the hosts have them, held against the records: none
//! is ended that nobody wanted to be, none is forgotten, and nothing is left of one.

use std::collections::{BTreeMap, BTreeSet};

use pvc_model::Uuid;
use pvc_model::cluster::Cluster as View;
use pvc_model::job::course::Course;
use pvc_model::job::osd::sharing;
use pvc_model::job::{Job, JobId, JobState, JobWork};
use pvc_model::osd::{LvmName, OsdId, OsdState};
use pvc_model::storage::OsdRecord;
use pvc_ports::UnitState;
use pvc_testkit::MemoryOsds;

use crate::host::Hosts;
use crate::jobs::{is_of_removed, was_given_up};

/// OSDs that were seen, and what was asked about them.
#[derive(Default)]
pub(crate) struct OsdTruth {
    /// OSDs that were there from the beginning, on no disk of these hosts.
    others: BTreeSet<Uuid>,
    /// OSDs that have been up once and are in the map: they may hold data.
    born: BTreeMap<Uuid, OsdId>,
    /// OSDs that lie on the disk of a host.
    lying: BTreeSet<Uuid>,
    jobs: BTreeSet<JobId>,
    /// OSDs that somebody asked to remove or to replace.
    doomed: BTreeSet<Uuid>,
    /// OSDs for which others need not hold their data.
    forced: BTreeSet<OsdId>,
    /// Logical volumes of OSDs that somebody asked to remove while their node was fenced, each with
    /// its host: they may be left on its disks.
    unreached: BTreeSet<(String, String)>,
}

impl OsdTruth {
    pub fn with_others(states: impl Iterator<Item = Uuid>) -> Self {
        OsdTruth { others: states.collect(), ..OsdTruth::default() }
    }

    /// Takes notice of what the jobs of `view` are about.
    pub fn look(&mut self, view: &View) {
        let OsdTruth { jobs, doomed, forced, unreached, .. } = self;
        // One that waits for another about the same OSD is about what that one leaves.
        let waits = |job: &Job| !job.progress.state.is_over() && job.progress.steps.is_none();
        let all = view.jobs.values();
        for job in all.filter(|job| jobs.insert(job.spec.id.clone()) || waits(job)) {
            let force = match &job.spec.work {
                JobWork::RemoveOsd { force, .. } => *force,
                JobWork::ReplaceOsd(replacement) => replacement.force,
                _ => continue,
            };
            let Some(osd) = job.spec.work.osd() else { continue };
            let Some(record) = view.osds.get(&osd.to_string()) else { continue };
            let of_replacement = matches!(job.spec.work, JobWork::ReplaceOsd(_));
            let all = if of_replacement { sharing(view, record) } else { vec![&**record] };
            doomed.extend(all.iter().filter_map(|record| Uuid::try_parse(&record.fsid).ok()));
            if job.spec.node.as_str() != record.node {
                let block = format!("{}/{}", record.group, record.volume);
                let volumes = [block, record.db_device.clone()];
                unreached.extend(volumes.map(|volume| (record.node.clone(), volume)));
            }
            if force {
                forced.extend(all.iter().filter_map(|record| OsdId::parse(&record.id).ok()));
            }
        }
    }

    /// A disk was lost, or is there again: what lay on it is nobody's fault.
    pub fn disks_changed(&mut self, osds: &mut MemoryOsds, hosts: &Hosts) {
        (self.born, self.lying) = with_data(osds, hosts);
    }

    /// Judges what a daemon has done to OSDs. Returns the fault.
    pub fn judge(&mut self, osds: &mut MemoryOsds, hosts: &Hosts) -> Option<String> {
        let (born, lying) = with_data(osds, hosts);
        let ended = self
            .born
            .iter()
            .find(|(uuid, _)| !born.contains_key(*uuid) && !self.doomed.contains(*uuid));
        let ended =
            ended.map(|(_, id)| format!("OSD {id} was ended, and nobody had asked for that"));
        let erased =
            self.lying.iter().find(|uuid| born.contains_key(*uuid) && !lying.contains(*uuid));
        let erased = erased
            .map(|uuid| format!("OSD {} was erased, and the cluster counts on it", born[uuid]));
        let lost = osds.lost().iter().find(|osd| !self.forced.contains(osd));
        let lost =
            lost.map(|osd| format!("OSD {osd} was ended while its data was not safe without it"));
        let wrong = ended.or(erased).or(lost);
        (self.born, self.lying) = (born, lying);
        wrong
    }
}

/// OSDs that may hold data, and those of them that lie on a disk.
fn with_data(osds: &mut MemoryOsds, hosts: &Hosts) -> (BTreeMap<Uuid, OsdId>, BTreeSet<Uuid>) {
    let all = osds.known().filter(|state| !state.is_new);
    let born: BTreeMap<Uuid, OsdId> =
        all.filter_map(|state| Some((state.uuid?, state.id))).collect();
    let lie = hosts.iter().flat_map(|host| osds.lvm_osds(&host.name)).flatten();
    let lying = lie.map(|lvm| lvm.uuid).filter(|uuid| born.contains_key(uuid)).collect();
    (born, lying)
}

/// Records and disks, when no job is about an OSD any more.
pub(crate) struct OsdEnds<'a> {
    pub view: &'a View,
    pub hosts: &'a Hosts,
    pub osds: &'a mut MemoryOsds,
    pub truth: &'a OsdTruth,
}

impl OsdEnds<'_> {
    /// Finds what is wrong when each job has had time to end.
    pub fn wrong(&mut self) -> Option<String> {
        let view = self.view;
        let states: Vec<OsdState> = self.osds.osd_states();
        let is_other =
            |state: &OsdState| state.uuid.is_some_and(|uuid| self.truth.others.contains(&uuid));
        let states: Vec<OsdState> = states.into_iter().filter(|state| !is_other(state)).collect();
        let of_map = states.iter().find_map(|state| self.wrong_about(state));
        let of_records = view.osds.values().find(|record| {
            let is_it = |state: &&OsdState| state.id.to_string() == record.id;
            states.iter().find(is_it).is_none() && !is_excused(view, &record.node, &record.id)
        });
        of_map
            .or_else(|| {
                of_records.map(|record| format!("OSD {} is recorded, and is not there", record.id))
            })
            .or_else(|| self.left_on_disks())
    }

    fn wrong_about(&mut self, state: &OsdState) -> Option<String> {
        let (view, id) = (self.view, state.id);
        let Some(record) = view.osds.get(&id.to_string()) else {
            return Some(format!("OSD {id} is there, and is not recorded: {state:?}"));
        };
        if is_excused(view, &record.node, &record.id) {
            return None;
        }
        let uuid = state.uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
        if record.fsid != uuid {
            return Some(format!("OSD {id} is `{uuid}`, and is recorded as `{}`", record.fsid));
        }
        let lie = self.osds.lvm_osds(&record.node).unwrap_or_default();
        let Some(lvm) = lie.iter().find(|lvm| Some(lvm.uuid) == state.uuid) else {
            return Some(format!("OSD {id} does not lie on {}, as it is recorded", record.node));
        };
        let on: Vec<&str> = lvm.devices.iter().map(|device| device.as_str()).collect();
        if on != [record.device.as_str()] {
            return Some(format!("OSD {id} lies on {on:?}, and is recorded on {}", record.device));
        }
        let daemon = self.osds.daemon_state(&record.node, id);
        let is_well = daemon == UnitState::Active && state.is_up && state.is_in;
        (!is_well).then(|| format!("OSD {id} is left so: {state:?}, its daemon {daemon:?}"))
    }

    /// A logical volume, or a group, that is of no OSD that is recorded.
    fn left_on_disks(&mut self) -> Option<String> {
        let hosts = self.hosts;
        hosts.iter().find_map(|host| self.left_on(&host.name))
    }

    fn left_on(&mut self, host: &str) -> Option<String> {
        let view = self.view;
        let groups = self.osds.devices(host).into_iter().flat_map(|disk| disk.groups);
        let groups: Vec<LvmName> = groups.collect();
        let own: Vec<&OsdRecord> =
            view.osds.values().map(AsRef::as_ref).filter(|record| record.node == host).collect();
        // One that ended half way says which step it stands at, and which group that is about.
        let may_be_left = |group: &LvmName| {
            own.iter().any(|record| is_excused(view, host, &record.id))
                || failed_half_way(view, host).any(|job| names_group(job, group))
        };
        groups.iter().find_map(|group| {
            let volumes = self.osds.volume_group(host, group)?.volumes;
            let unreached = &self.truth.unreached;
            let is_known = |volume: &LvmName| {
                let is_unreached =
                    unreached.contains(&(host.to_owned(), format!("{group}/{volume}")));
                is_unreached
                    || own.iter().any(|record| match *group == LvmName::db_group() {
                        true => record.db_device == format!("{group}/{volume}"),
                        false => {
                            (record.group.as_str(), record.volume.as_str())
                                == (group.as_str(), volume.as_str())
                        }
                    })
            };
            let is_empty = volumes.is_empty() && *group != LvmName::db_group();
            let mut left = volumes.iter().map(|(volume, _)| volume).filter(|it| !is_known(it));
            match (left.next(), is_empty) {
                _ if may_be_left(group) => None,
                (Some(volume), _) => {
                    Some(format!("{host} has {group}/{volume}, which is nobody's"))
                }
                (None, true) => Some(format!("{host} has the group {group}, which is nobody's")),
                (None, false) => None,
            }
        })
    }
}

/// The jobs about OSDs of the node that ended on their way, and could not be taken back.
fn failed_half_way<'a>(view: &'a View, node: &'a str) -> impl Iterator<Item = &'a Job> {
    view.jobs.values().map(AsRef::as_ref).filter(move |job| {
        let steps = job.progress.steps.as_ref();
        let is_half_way = steps.is_some_and(|steps| matches!(steps.course, Course::Forward { .. }))
            || was_given_up(job)
            || is_of_removed(job);
        let has_failed = matches!(job.progress.state, JobState::Failed | JobState::Cancelled);
        // One that removes the OSD of a fenced node is of another one.
        let removed =
            job.spec.work.osd().filter(|_| matches!(job.spec.work, JobWork::RemoveOsd { .. }));
        let record = removed.and_then(|osd| view.osds.get(&osd.to_string()));
        let is_of_node =
            job.spec.node.as_str() == node || record.is_some_and(|record| record.node == node);
        is_of_node && is_half_way && has_failed
    })
}

/// Whether a job about the OSD has ended half way and says why: it can be asked for again.
fn is_excused(view: &View, node: &str, osd: &str) -> bool {
    let says_why = |job: &Job| job.progress.failure.is_some();
    let name = format!("\"id\":\"{osd}\"");
    // Those that it has made are named in what is recorded of its first step, and those that it
    // moves, of which one may be gone by now, in its steps.
    let names_it = |job: &Job| {
        let mut steps = job.progress.steps.iter();
        steps.any(|steps| steps.facts.iter().chain(&steps.planned).any(|it| it.contains(&name)))
    };
    let is_of_it = |job: &Job| match (&job.spec.work, job.spec.work.osd()) {
        (JobWork::AddOsds(_), _) => names_it(job),
        (_, Some(own)) => {
            let record = view.osds.get(&own.to_string());
            own.to_string() == osd
                || record.is_some_and(|record| {
                    sharing(view, record).iter().any(|beside| beside.id == osd)
                })
                || names_it(job)
        }
        _ => false,
    };
    failed_half_way(view, node).any(|job| is_of_it(job) && says_why(job))
}

fn names_group(job: &Job, group: &LvmName) -> bool {
    let steps = job.progress.steps.iter().flat_map(|steps| &steps.planned);
    steps.into_iter().any(|step| step.contains(group.as_str()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_model::job::{JobProgress, JobSpec};
    use pvc_model::osd::{Device, DeviceClass};

    use super::*;
    use crate::state::World;
    use crate::storage::Ceph;

    /// A world in which OSD 1 of the first host runs, and its record.
    fn world() -> (World, OsdRecord) {
        let (world, _) = World::of_hosts(1);
        let record = world.with(|state| {
            let host = state.hosts[0].name.clone();
            let disk = Device::parse("/dev/sdb").expect("a device's name");
            let osds = &mut state.ceph.osds;
            let group = osds.begin_batch(&host, &disk).expect("it is empty");
            let made = osds.go_on_with_batch(&host, &group, DeviceClass::Ssd, 1);
            let made = made.expect("there is room");
            let lvm = osds.lvm_osds(&host).expect("an answer").remove(0);
            osds.activate(&host, made, lvm.uuid).expect("it is prepared");
            state.judge_osds();
            OsdRecord {
                id: lvm.id.to_string(),
                node: host,
                device: disk.to_string(),
                fsid: lvm.uuid.to_string(),
                group: lvm.block.group.to_string(),
                volume: lvm.block.name.to_string(),
                ..OsdRecord::default()
            }
        });
        (world, record)
    }

    fn view(records: &[&OsdRecord]) -> View {
        let osds = records.iter().map(|it| (it.id.clone(), Arc::new((*it).clone())));
        View { osds: osds.collect(), ..View::default() }
    }

    fn removal(view: &mut View, force: bool) {
        let spec = JobSpec {
            id: JobId::from_bits(1),
            work: JobWork::RemoveOsd { osd: OsdId(1), force },
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: String::new(),
            submitted_at: 0,
        };
        let progress = JobProgress::pending();
        let job = Job { spec, progress, cancel_requested: false, claim: None };
        view.jobs.insert(job.spec.id.clone(), Arc::new(job));
    }

    #[tokio::test(start_paused = true)]
    async fn what_records_and_disks_do_not_agree_about_is_found() {
        let (world, record) = world();
        let wrong = |view: &View| world.with(|state| state.osd_ends(view).wrong());
        assert_eq!(wrong(&view(&[&record])), None);
        let forgotten = wrong(&view(&[])).expect("it is there");
        assert!(forgotten.starts_with("OSD 1 is there, and is not recorded"), "{forgotten}");
        let other = OsdRecord { id: "7".to_owned(), ..record.clone() };
        let too_many = wrong(&view(&[&record, &other])).expect("it is not there");
        assert_eq!(too_many, "OSD 7 is recorded, and is not there");
        let moved = OsdRecord { device: "/dev/nvme0n1".to_owned(), ..record.clone() };
        assert!(wrong(&view(&[&moved])).expect("it is elsewhere").starts_with("OSD 1 lies on"));
        world.with(|state| state.ceph.osds.stop_daemon("hv1", OsdId(1)));
        assert!(wrong(&view(&[&record])).expect("it is down").starts_with("OSD 1 is left so"));
        world.with(|state| state.ceph.osds.purge(OsdId(1), true)).expect("it is down");
        let left = wrong(&view(&[])).expect("its volume is there");
        assert!(left.starts_with("hv1 has ceph-") && left.ends_with("which is nobody's"), "{left}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_osd_that_is_ended_without_an_ask_or_while_its_data_is_not_safe_is_found() {
        for (is_asked, force, needed, wanted) in [
            (true, false, 0, None),
            (false, false, 0, Some("OSD 1 was ended, and nobody had asked for that")),
            (true, true, 3, None),
            (true, false, 3, Some("OSD 1 was ended while its data was not safe without it")),
        ] {
            let (world, record) = world();
            let found = world.with(|state| {
                let mut view = view(&[&record]);
                if is_asked {
                    removal(&mut view, force);
                }
                state.ceph.osd_truth.look(&view);
                state.ceph.osds.set_needed(OsdId(1), needed);
                state.ceph.osds.stop_daemon("hv1", OsdId(1));
                state.ceph.osds.destroy(OsdId(1), true).expect("it is down");
                state.judge_osds();
                state.truth.violation.clone().map(|violation| violation.what)
            });
            assert_eq!(found.as_deref(), wanted);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_osd_that_is_erased_while_the_cluster_counts_on_it_is_found() {
        let (world, _) = world();
        let found = world.with(|state| {
            let disk = Device::parse("/dev/sdb").expect("a device's name");
            state.ceph.osds.stop_daemon("hv1", OsdId(1));
            state.ceph.osds.zap("hv1", &disk).expect("nothing on it runs");
            state.judge_osds();
            state.truth.violation.clone().map(|violation| violation.what)
        });
        assert_eq!(found.as_deref(), Some("OSD 1 was erased, and the cluster counts on it"));
        let (world, _) = self::world();
        world.with(|state| {
            state.ceph.osds.remove_disk("hv1", "/dev/sdb");
            let Ceph { osds, osd_truth, .. } = &mut state.ceph;
            osd_truth.disks_changed(osds, &state.hosts);
            state.judge_osds();
            assert!(state.truth.violation.is_none(), "disks die");
        });
    }
}
