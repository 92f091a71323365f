//! Contract of every [`Clock`], [`Host`], [`Random`] and [`Exec`]: the ports of one machine.

use std::collections::BTreeSet;
use std::time::Duration;

use pvc_ports::{Clock, Command, Exec, ExecError, Host, Random};

/// Long enough to be measured, short enough to be slept in a test.
const MOMENT: Duration = Duration::from_millis(20);

/// Error that a clock may have that is given in parts of a nanosecond.
const ROUNDING: Duration = Duration::from_micros(1);

/// 2023-11-14: no machine's wall clock is behind that.
const LONG_AGO: Duration = Duration::from_secs(1_700_000_000);

/// # Panics
/// When the clock breaks the contract.
pub async fn clock_contract(clock: &dyn Clock) {
    let begun = clock.monotonic();
    let mut last = begun;
    for _ in 0..100 {
        let now = clock.monotonic();
        assert!(now >= last, "the monotonic clock goes back: {now:?} after {last:?}");
        last = now;
    }

    for moments in [1, 3] {
        let before = clock.monotonic();
        clock.sleep(MOMENT * moments).await;
        let slept = clock.monotonic() - before;
        assert!(
            slept + ROUNDING >= MOMENT * moments,
            "slept {slept:?} instead of {:?}",
            MOMENT * moments
        );
    }
    assert!(clock.wall() > LONG_AGO, "the wall clock says {:?} since 1970", clock.wall());

    // A sleep that nobody waits for any more takes nothing with it.
    drop(clock.sleep(Duration::from_secs(3600)));
    let never = tokio::time::timeout(MOMENT, clock.sleep(Duration::from_secs(3600))).await;
    assert!(never.is_err(), "an hour is over after {:?}", clock.monotonic() - last);
    clock.sleep(MOMENT).await;
    assert!(clock.monotonic() - begun < Duration::from_secs(3600));
}

/// # Panics
/// When the host breaks the contract.
pub fn host_contract(host: &dyn Host) {
    let facts = host.facts().expect("a machine knows what it is");
    assert!(facts.cpus > 0);
    assert!(
        ![&facts.kernel, &facts.os, &facts.arch].into_iter().any(String::is_empty),
        "{facts:?}"
    );
    assert_eq!(facts, host.facts().expect("and says so again"), "what does not change has changed");

    let load = host.load().expect("a machine knows how busy it is");
    assert!(load.memory_total_mib > 0, "{load:?}");
    assert!(load.memory_used_mib <= load.memory_total_mib, "{load:?}");
    assert!(load.memory_free_mib <= load.memory_total_mib, "{load:?}");
    assert!(load.load >= 0.0, "{load:?}");

    let before = host.usage(&[], None).expect("a machine knows how it is used");
    let after = host.usage(&["no such program"], Some("no-such-link")).expect("and says so again");
    assert!(after.cpu_total >= before.cpu_total && after.cpu_busy >= before.cpu_busy);
    assert!(after.cpu_busy <= after.cpu_total, "{after:?}");
    assert!(after.memory_used_mib <= after.memory_total_mib, "{after:?}");
    assert_eq!((after.processes.len(), after.sent_bytes), (0, 0), "of what is not there");

    let interfaces = host.interfaces().expect("a machine knows its interfaces");
    let names: Vec<&String> = interfaces.iter().map(|interface| &interface.name).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "each once, by name: {names:?}");
}

/// # Panics
/// When chance breaks the contract.
pub fn random_contract(random: &dyn Random) {
    let numbers: BTreeSet<u64> = (0..1000).map(|_| random.next_u64()).collect();
    assert_eq!(numbers.len(), 1000, "a thousand numbers of 64 bits differ");
    for bit in 0..u64::BITS {
        let set = numbers.iter().filter(|number| *number & (1 << bit) != 0).count();
        assert!((300..700).contains(&set), "bit {bit} is set in {set} of 1000 numbers");
    }
    let uuids: BTreeSet<uuid::Uuid> = (0..100).map(|_| random.uuid()).collect();
    assert_eq!(uuids.len(), 100);
    assert!(uuids.iter().all(|uuid| uuid.get_version_num() == 4), "{uuids:?}");
}

/// # Panics
/// When whatever runs programs breaks the contract.
pub async fn exec_contract(exec: &dyn Exec) {
    let program = "/nonexistent/pvc-contract";
    let command = Command {
        program: program.to_owned(),
        args: Vec::new(),
        env: Vec::new(),
        stdin: None,
        deadline: Duration::from_secs(10),
    };
    let error = exec.run(command).await.expect_err("there is no such program");
    assert!(matches!(&error, ExecError::Missing { program: named } if named == program), "{error}");
}
