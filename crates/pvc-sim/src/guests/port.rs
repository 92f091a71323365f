//! The hypervisor of a host as its programs have it.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use pvc_domain::Device;
use pvc_ports::{
    DeviceChange, Guest, GuestEvent, GuestRun, GuestStats, Hypervisor, HypervisorError,
    HypervisorFacts, Migration, MigrationJob, VncAddress,
};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{Around, Hypervisors, SimGuest, away, refused};
use crate::process::Gate;
use crate::state::State;

/// Time for which a program waits for a hypervisor on another host that does not answer.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The hypervisor of a host, as its daemon has it.
pub(crate) struct SimHypervisor {
    pub gate: Gate,
    pub host: usize,
}

impl SimHypervisor {
    async fn reached<T>(
        &self,
        act: impl FnOnce(&mut Hypervisors, &mut Around<'_>) -> Result<T, HypervisorError>,
    ) -> Result<T, HypervisorError> {
        let act = |hypervisors: &mut Hypervisors, around: &mut Around<'_>| {
            hypervisors[self.host].reached()?;
            act(hypervisors, around)
        };
        let done = self.gate.call(|state| state.with_hypervisors(act)).await;
        self.gate.pass().await;
        done
    }
}

#[async_trait]
impl Hypervisor for SimHypervisor {
    async fn facts(&self) -> Result<HypervisorFacts, HypervisorError> {
        self.reached(|_, _| {
            Ok(HypervisorFacts {
                domain_type: "kvm".to_owned(),
                kvm_refused: None,
                libvirt_version: "11.3.0".to_owned(),
                qemu_version: "10.0.0".to_owned(),
                emulator: "/usr/bin/qemu-system-x86_64".to_owned(),
            })
        })
        .await
    }

    async fn ping(&self) -> Result<(), HypervisorError> {
        self.reached(|_, _| Ok(())).await
    }

    async fn guests(&self) -> Result<BTreeMap<Uuid, Guest>, HypervisorError> {
        self.reached(|hypervisors, _| Ok(hypervisors[self.host].shown())).await
    }

    async fn start(&self, uuid: Uuid, xml: &str) -> Result<(), HypervisorError> {
        let (host, xml) = (self.host, xml.to_owned());
        let (takes, answered) = self
            .reached(
                move |hypervisors, around| Ok(hypervisors.begin_start(around, host, uuid, xml)),
            )
            .await?;
        self.gate.answer(answered).await?;
        self.gate.sleep(takes / 2).await;
        Ok(())
    }

    async fn resume(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, around| hypervisors.resume_guest(around, self.host, uuid)).await
    }

    async fn shutdown(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, around| {
            around.judge(hypervisors, |truth, sight| truth.of_stop(sight, self.host, uuid));
            hypervisors.request_shutdown(around, self.host, uuid)
        })
        .await
    }

    async fn destroy(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, around| {
            around.judge(hypervisors, |truth, sight| truth.of_stop(sight, self.host, uuid));
            hypervisors.end_guest(around, self.host, uuid, "destroyed", false);
            Ok(())
        })
        .await
    }

    async fn live_xml(&self, uuid: Uuid) -> Result<String, HypervisorError> {
        self.reached(|hypervisors, _| hypervisors[self.host].live_xml(uuid)).await
    }

    async fn stats(&self) -> Result<BTreeMap<Uuid, GuestStats>, HypervisorError> {
        self.reached(|hypervisors, _| {
            let running = hypervisors[self.host].guests.iter();
            let running = running.filter(|(_, guest)| guest.run == GuestRun::Running);
            let figures = ["rd_req", "rd_bytes", "wr_req", "wr_bytes", "err"]
                .map(|name| (name.to_owned(), 0));
            let disks = BTreeMap::from([("sda".to_owned(), BTreeMap::from(figures))]);
            let stats = |guest: &SimGuest| GuestStats {
                max_memory_kib: guest.memory_mib * 1024,
                memory_kib: guest.memory_mib * 1024,
                vcpus: guest.vcpus,
                cpu_time_ns: 1,
                memory: BTreeMap::from([("actual".to_owned(), guest.memory_mib * 1024)]),
                cpu: BTreeMap::from([("cpu_time".to_owned(), 1)]),
                disks: disks.clone(),
                ..GuestStats::default()
            };
            Ok(running.map(|(uuid, guest)| (*uuid, stats(guest))).collect())
        })
        .await
    }

    async fn vnc(&self, uuid: Uuid) -> Result<Option<VncAddress>, HypervisorError> {
        self.reached(|hypervisors, _| {
            let domain = pvc_domain::summary(&hypervisors[self.host].guest(uuid)?.xml);
            let asked = domain.ok().and_then(|domain| domain.vnc);
            Ok(asked.map(|(listen, port)| VncAddress { listen, port: port.unwrap_or(5900) }))
        })
        .await
    }

    async fn device(
        &self,
        uuid: Uuid,
        change: DeviceChange,
        device: &str,
    ) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, _| {
            let run = hypervisors[self.host].guest(uuid)?.run;
            let moves = matches!(run, GuestRun::Arriving | GuestRun::Leaving);
            if moves || hypervisors.migrations.has(uuid, self.host) {
                return Err(refused("cannot acquire state change lock (held by a migration)"));
            }
            let target = match pvc_domain::device_summary(device) {
                Ok(Device::Disk(disk)) => disk.target,
                Ok(Device::Nic(nic)) => nic.mac,
                Ok(_) => device.to_owned(),
                Err(error) => return Err(refused(&error.to_string())),
            };
            hypervisors[self.host].device(uuid, change, target, device)
        })
        .await?;
        self.gate.after_effect().await;
        Ok(())
    }

    async fn resize_disk(
        &self,
        uuid: Uuid,
        target: &str,
        bytes: u64,
    ) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, _| {
            let guest = hypervisors[self.host].guest(uuid)?;
            let domain =
                pvc_domain::summary(&guest.xml).map_err(|error| refused(&error.to_string()))?;
            let has = guest.plugged.contains_key(target)
                || domain.disks.iter().any(|disk| disk.target == target);
            if !has {
                return Err(refused(&format!("invalid path: {target}")));
            }
            guest.disk_bytes.insert(target.to_owned(), bytes);
            Ok(())
        })
        .await?;
        self.gate.after_effect().await;
        Ok(())
    }

    async fn migrate(
        &self,
        uuid: Uuid,
        migration: &Migration,
    ) -> Result<Box<dyn MigrationJob>, HypervisorError> {
        let from = self.host;
        let answers = self
            .reached(|hypervisors, around| {
                let to = around.hosts.named(&migration.host);
                Ok(to.is_some_and(|to| hypervisors.answers(around.hosts, from, to)))
            })
            .await?;
        if !answers {
            self.gate.call(|state| state.truth.orders.move_failed(uuid, state.run.now)).await;
            self.gate.sleep(TIME_LIMIT).await;
            return Err(away());
        }
        let job = self
            .reached(|hypervisors, around| {
                let begun = hypervisors.begin_migration(around, &self.gate, from, uuid, migration);
                if begun.is_err() {
                    around.truth.orders.move_failed(uuid, around.run.now);
                }
                begun
            })
            .await?;
        Ok(Box::new(job))
    }

    async fn state_at(&self, host: &str, uuid: Uuid) -> Result<Option<GuestRun>, HypervisorError> {
        let look = |state: &mut State| {
            let (hosts, hypervisors) = (&state.hosts, &state.hypervisors);
            let there = hosts.named(host);
            let there = there.filter(|there| hypervisors.answers(hosts, self.host, *there));
            there.map(|there| hypervisors[there].run(uuid))
        };
        let takes = self.gate.call(|state| state.run.latency()).await;
        self.gate.sleep(takes).await;
        match self.gate.call(look).await {
            Some(there) => {
                self.gate.sleep(takes).await;
                Ok(there)
            }
            None => {
                self.gate.sleep(TIME_LIMIT).await;
                Err(away())
            }
        }
    }

    async fn console_exchange(
        &self,
        uuid: Uuid,
        input: &[u8],
        _wait: Duration,
    ) -> Result<Vec<u8>, HypervisorError> {
        self.reached(|hypervisors, _| hypervisors[self.host].console(uuid, input)).await
    }

    fn events(&self) -> mpsc::UnboundedReceiver<GuestEvent> {
        self.gate.world.with(|state| state.hypervisors[self.host].events())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use pvc_contracts::hypervisor::{
        HypervisorFixture, MigrationFixture, SPARE_MAC, hypervisor_contract, migration_contract,
    };
    use pvc_model::storage::VolumeId;

    use super::SimHypervisor;
    use crate::cluster::host_name;
    use crate::state::World;

    /// Two hosts on which nothing runs, and their hypervisors as a program of each has them.
    fn hypervisors() -> [Arc<SimHypervisor>; 2] {
        let (world, gates) = World::of_hosts(2);
        world.with(|state| {
            let volume = VolumeId::from_record("vms/contract").expect("a volume's name");
            state.ceph.volumes.insert(&volume);
        });
        [0, 1].map(|host| Arc::new(SimHypervisor { gate: gates[host].clone(), host }))
    }

    fn guest(uuid: uuid::Uuid, name: &str) -> String {
        format!(
            "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory \
             unit='MiB'>512</memory><vcpu>1</vcpu>\
             <os><type>hvm</type></os><devices><disk type='network' device='disk'>\
             <source protocol='rbd' name='vms/contract'/><target dev='sda' bus='scsi'/></disk>\
             <graphics type='vnc' port='-1' autoport='yes' listen='127.0.0.1'/></devices></domain>"
        )
    }

    #[tokio::test(start_paused = true)]
    async fn the_simulated_hypervisor_keeps_the_contract() {
        let [hypervisor, _] = hypervisors();
        let fixture = HypervisorFixture {
            guest: Box::new(guest),
            spare_disk: "<disk type='network'><source protocol='rbd' name='vms/spare'/><target \
                 dev='sdb'/></disk>"
                .to_owned(),
            spare_nic: format!(
                "<interface type='user'><mac address='{SPARE_MAC}'/><model \
                 type='virtio'/></interface>"
            ),
            time_limit: Duration::from_secs(20),
        };
        hypervisor_contract(hypervisor, fixture).await;
    }

    #[tokio::test(start_paused = true)]
    async fn guests_move_between_simulated_hypervisors_as_between_real_ones() {
        let [one, two] = hypervisors();
        let fixture = MigrationFixture {
            guest: Box::new(guest),
            hosts: (host_name(1), host_name(0)),
            nobody: "nobody".to_owned(),
            time_limit: Duration::from_secs(20),
        };
        migration_contract(one, two, fixture).await;
    }
}
