//! Starting a guest: it is made, and held; then it is looked once more whether it may run; then it
//! is let run.
//!
//! What is made too late, or from yesterday's record, so never runs. And as long as the hypervisor
//! is at it, the VM is one that this node works on: nobody else starts it meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pvc_domain::{Domain, ForHost, HostFunction, Volumes};
use pvc_model::cluster::Cluster;
use pvc_model::domain::NicKind;
use pvc_model::hold::check_none_held;
use pvc_model::sriov::settings::VfSettings;
use pvc_model::sriov::{PciAddress, check_functions, vf_of};
use pvc_model::vm::VmRecord;
use pvc_model::vm::plan::{Answered, Planned};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Attachment, HypervisorError};
use pvc_store::VmChange;

use super::act::{Actor, DEADLINE, Ended, StepError, console_log_path, still_ordered};
use super::elsewhere::check_elsewhere;
use super::locks::{check_rivals, free_own_locks};
use super::{close, unclosed};

/// Time for which a start waits for a node to free what a guest that is gone has left there. That
/// node sees that this one has worked on the VM for a while.
pub(super) const ASKED: Duration = Duration::from_secs(60);

const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Time that the hypervisor may take to make a guest and to let it run; then it is ended.
const MAKE: Duration = Duration::from_secs(120);

/// Time that the store may take for a report about the guest, and to say whether it may run.
const LOOK: Duration = Duration::from_secs(15);

/// Time between two attempts to end a guest that is still being made although it is not wanted any
/// more.
const END_AGAIN: Duration = Duration::from_secs(30);

impl Actor {
    /// Starts the VM if `record` still says what it said. Returns when the hypervisor is through
    /// with it, however long that takes.
    pub(super) async fn start(
        &self,
        planned: &Planned,
        record: &Arc<VmRecord>,
    ) -> Result<Ended, StepError> {
        let mut answered = Answered::default();
        let asked_until = self.shared.now() + ASKED;
        let (slot, prepared) = loop {
            // Asking others takes its time, and no other start's turn.
            let view = self.shared.store.view();
            check_elsewhere(&self.shared, &view, record.uuid, &mut answered).await?;
            let slot = self.starts.acquire().await.expect("the semaphore is never closed");
            let prepared = self.shared.within(DEADLINE, self.prepare(record)).await;
            match prepared.unwrap_or(Err(StepError::TooSlow { seconds: DEADLINE.as_secs() })) {
                Err(held @ StepError::HeldBy { .. }) if self.shared.now() < asked_until => {
                    tracing::info!(vm = record.name, why = %held, "the start waits");
                }
                prepared => break (slot, prepared?),
            }
            drop(slot);
            self.shared.sleep(ASK_AGAIN).await;
        };
        let Some((record, xml)) = prepared else { return Ok(Ended::Superseded) };
        self.nothing_is_held(&record).await;
        let hypervisor = &self.shared.ports.hypervisor;
        // One that hangs holds up no other start.
        let late = move || drop(slot);
        if !self.to_its_end(&record, late, hypervisor.start(record.uuid, &xml)).await? {
            return Ok(Ended::Superseded);
        }
        match self.may_run(&record).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::info!(
                    vm = record.name,
                    "its order changed while the guest was made, which is ended"
                );
                hypervisor.destroy(record.uuid).await?;
                return Ok(Ended::Superseded);
            }
            // It holds the VM's volumes, and what is not known now the next start asks again.
            Err(error) => {
                self.end(record.uuid, &record.name).await;
                return Err(error);
            }
        }
        match self.to_its_end(&record, || (), hypervisor.resume(record.uuid)).await {
            Err(StepError::Hypervisor(HypervisorError::NoGuest { .. })) => {
                let why = "it ended before it was let run".to_owned();
                return Err(HypervisorError::Died { why }.into());
            }
            Ok(false) => return Ok(Ended::Superseded),
            other => _ = other?,
        }
        tracing::info!(vm = record.name, "started");
        if !record.failed_reason.is_empty() {
            self.write(planned, vec![VmChange::FailedReason(String::new())]).await;
        }
        Ok(Ended::Started)
    }

    /// Whether the guest that was made of `record` may be let run: its order stands, none of its
    /// volumes is held, and no other node says that it runs the VM, unless its hypervisor knows
    /// better. All are asked anew: answers from before the guest was made may be minutes old.
    async fn may_run(&self, record: &VmRecord) -> Result<bool, StepError> {
        let mut answered = Answered::default();
        loop {
            let view = self.shared.within(LOOK, self.shared.store.fresh()).await;
            let view = view.ok_or(StepError::TooSlow { seconds: LOOK.as_secs() })??;
            if !says_the_same(&view, record) {
                return Ok(false);
            }
            check_none_held(&view, record)?;
            // Asking takes its time: what has changed since?
            if !check_elsewhere(&self.shared, &view, record.uuid, &mut answered).await? {
                return Ok(true);
            }
        }
    }

    /// Says that what a move has left held here is gone: a guest that stands still from now on was
    /// not left by it.
    async fn nothing_is_held(&self, record: &VmRecord) {
        if let Some(note) = unclosed(record, self.shared.name()) {
            close(&self.shared, vec![(record.uuid, note.clone())]).await;
        }
    }

    /// The record as it is now and the guest's XML made of it; `None` if it asks for something else
    /// by now.
    async fn prepare(
        &self,
        planned_on: &VmRecord,
    ) -> Result<Option<(Arc<VmRecord>, String)>, StepError> {
        let Some(mut record) = self.still_ordered(planned_on).await? else { return Ok(None) };
        loop {
            let view = self.shared.store.view();
            check_none_held(&view, &record)?;
            check_rivals(&self.shared, &view, &record).await?;
            free_own_locks(&self.shared, &record).await?;
            let xml = self.xml_for_here(&record).await?;
            // The storage may have taken a minute: the VM may belong to another node by now, or be
            // another.
            let Some(now) = self.still_ordered(&record).await? else { return Ok(None) };
            if now.xml == record.xml {
                return Ok(Some((record, xml)));
            }
            record = now;
        }
    }

    async fn still_ordered(
        &self,
        planned_on: &VmRecord,
    ) -> Result<Option<Arc<VmRecord>>, StepError> {
        let view = self.shared.store.fresh().await?;
        Ok(view.vms.get(&planned_on.uuid).filter(|_| still_ordered(&view, planned_on)).cloned())
    }

    /// The end of `work` of the hypervisor on a guest that does not run yet, which is ended when it
    /// takes too long or when its order changes; `late` is called then. `false` if it was ended
    /// because its order changed.
    async fn to_its_end(
        &self,
        record: &VmRecord,
        late: impl FnOnce(),
        work: impl Future<Output = Result<(), HypervisorError>>,
    ) -> Result<bool, StepError> {
        let mut work = pin!(work);
        let mut late = Some(late);
        let mut time_limit = MAKE;
        let mut has_changed = false;
        loop {
            let why = tokio::select! {
                biased;
                done = &mut work => return match done {
                    // It was ended by us.
                    Err(_) if has_changed => Ok(false),
                    Err(_) if late.is_none() => Err(StepError::TooSlow { seconds: MAKE.as_secs() }),
                    done => Ok(done.map(|()| true)?),
                },
                () = self.until_changed(record), if late.is_some() => {
                    has_changed = true;
                    "its order changed"
                }
                () = self.shared.sleep(time_limit) => "it takes too long",
            };
            if let Some(late) = late.take() {
                late();
            }
            time_limit = END_AGAIN;
            tracing::warn!(vm = record.name, why, "a guest that does not run yet is ended");
            self.end(record.uuid, &record.name).await;
        }
    }

    async fn end(&self, vm: Uuid, name: &str) {
        match self.shared.within(DEADLINE, self.shared.ports.hypervisor.destroy(vm)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(vm = name, %error, "the guest could not be ended"),
            None => tracing::warn!(vm = name, "the guest could not be ended in time"),
        }
    }

    /// Returns when the record does not say any more what it said.
    async fn until_changed(&self, record: &VmRecord) {
        self.shared.until(|view| !says_the_same(view, record)).await;
    }

    /// The record's XML with what only this host knows: its emulator, its volumes' places, its
    /// console log.
    pub(super) async fn xml_for_here(&self, record: &VmRecord) -> Result<String, StepError> {
        let facts = self.shared.ports.hypervisor.facts().await?;
        let mut volumes = Volumes::default();
        for volume in record.domain.as_ref().map(|domain| domain.volumes()).unwrap_or_default() {
            match self.shared.ports.storage.attachment(&volume).await? {
                Attachment::File { path } => _ = volumes.files.insert(volume, path),
                Attachment::Rbd(access) => volumes.rbd = Some(access),
            }
        }
        let functions = functions_here(&self.shared.store.view(), self.shared.name(), record)
            .map_err(|why| StepError::Function { why })?;
        let console_log =
            console_log_path(&self.shared.settings.console_log_directory, &record.name);
        let named = record.domain.as_ref().ok().and_then(|domain| domain.emulator.as_deref());
        let named_is_here = match named {
            Some(named) => {
                matches!(self.shared.ports.files.look(Path::new(named)).await, Ok(Some(_)))
            }
            None => false,
        };
        let host = ForHost {
            domain_type: &facts.domain_type,
            emulator: &facts.emulator,
            is_here: &|_| named_is_here,
            volumes: &volumes,
            functions: &functions,
            console_log: Some(&console_log),
        };
        let unusable = |error: &dyn std::fmt::Display| {
            StepError::Permanent(format!("the domain XML cannot be used: {error}"))
        };
        let domain = Domain::parse(&record.xml).map_err(|error| unusable(&error))?;
        domain.for_host(&host).map_err(|error| unusable(&error))
    }
}

/// The SR-IOV functions of this node that the VM's interfaces take, by name.
///
/// # Errors
/// The reason why it cannot have one at present.
fn functions_here(
    view: &Cluster,
    node: &NodeName,
    record: &VmRecord,
) -> Result<BTreeMap<String, HostFunction>, String> {
    let nics = record.domain.as_ref().map_or(&[][..], |domain| &domain.nics);
    let Some(own) = view.nodes.get(node) else { return Ok(BTreeMap::new()) };
    check_functions(view, own, record.uuid, nics).map_err(|why| why.to_string())?;
    let mut functions = BTreeMap::new();
    for nic in nics {
        let Some(name) = vf_of(nic) else { continue };
        let Some(record) = own.sriov.taken_by(nic) else {
            tracing::warn!(
                vm = record.name,
                function = name,
                "the VM takes an SR-IOV function that is not recorded on this node: it is started \
                 with what its XML says"
            );
            continue;
        };
        let vlan = VfSettings::read(&record.config).0.vlan.map(|(id, _)| id);
        let pci = record.pci.address().map(PciAddress::parts);
        // The XML may have that of another node. The next look at the card completes the record.
        let is_device = matches!(nic.kind, NicKind::Hostdev(_));
        if pci.is_none() && is_device && own.sriov.pf(&record.pf).is_some() {
            return Err(format!("it is not known yet where SR-IOV function `{name}` is"));
        }
        let here = HostFunction { pci, vlan: vlan.filter(|id| *id > 0) };
        functions.insert(name.to_owned(), here);
    }
    Ok(functions)
}

/// Whether the record still gives the order that a guest was made for, and describes the same
/// guest. Who gives the order to start once more asks for what is under way.
fn says_the_same(cluster: &Cluster, made_from: &VmRecord) -> bool {
    cluster.vms.get(&made_from.uuid).is_some_and(|now| {
        (now.incarnation, &now.state, &now.node, &now.xml)
            == (made_from.incarnation, &made_from.state, &made_from.node, &made_from.xml)
    })
}
