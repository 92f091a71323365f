//! The probe that decides between KVM and emulation.

use super::*;

/// Whether QEMU runs the probe's guest for the libvirtd below `directory`.
fn probe_runs(directory: &Path) -> bool {
    let directory = directory.display().to_string();
    let processes = fs::read_dir("/proc").expect("/proc is there").flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| {
        let line = String::from_utf8_lossy(&line);
        line.contains("pvc-kvm-probe") && line.contains("qemu") && line.contains(&directory)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_nobody_waits_for_any_more_leaves_no_guest() {
    let libvirt = Libvirt::start();
    let hypervisor = libvirt.probing_hypervisor();
    let disk = libvirt.path("pvc-kvm-probe.img");
    // While the guest is being created, and while it runs.
    let moments: [&dyn Fn() -> bool; 2] =
        [&|| disk.exists(), &|| probe_runs(libvirt.directory.path())];
    for has_come in moments {
        let the_moment = async {
            while !has_come() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            biased;
            () = the_moment => {}
            // Where KVM works, the guest may have ended before anybody saw it.
            facts = hypervisor.facts() => assert_eq!(facts.expect("facts").domain_type, "kvm"),
        }
        // On a machine that is busy the creation may be waited for longer than whoever drops the
        // probe waits.
        let is_gone =
            || async { (!probe_runs(libvirt.directory.path()) && !disk.exists()).then_some(()) };
        eventually("no guest and no disk", is_gone).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_decides_between_kvm_and_emulation_and_is_remembered() {
    let libvirt = Libvirt::start();
    let hypervisor = libvirt.probing_hypervisor();
    let facts = hypervisor.facts().await.expect("facts");
    assert_eq!(facts.kvm_refused.is_none(), facts.domain_type == "kvm", "{facts:?}");
    assert!(
        hypervisor.guests().await.expect("guests").is_empty(),
        "the probe is no guest of anybody's"
    );
    assert!(!libvirt.path("pvc-kvm-probe.img").exists(), "the probe leaves nothing behind");
    let begun = Instant::now();
    assert_eq!(libvirt.probing_hypervisor().facts().await.expect("facts again"), facts);
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "remembered, not probed again: {:?}",
        begun.elapsed()
    );
    // What the probe says is true: a guest of that type starts here.
    let xml = guest_xml(UUID, "probed", None)
        .replace("type='qemu'", &format!("type='{}'", facts.domain_type));
    run(&hypervisor, UUID, &xml).await;
    hypervisor.destroy(UUID).await.expect("it is destroyed");
}
