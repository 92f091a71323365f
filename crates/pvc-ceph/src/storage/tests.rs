use pvc_ports::{Command, ExecError, Output};
use pvc_testkit::ScriptedExec;

use super::*;

type Answer = Result<Output, ExecError>;

fn storage(
    script: impl Fn(&Command) -> Answer + Send + Sync + 'static,
) -> (RbdStorage, Arc<ScriptedExec>) {
    let exec = Arc::new(ScriptedExec::new(script));
    let access =
        RbdAccess { monitors: Vec::new(), port: 6789, user: "libvirt".to_owned(), secret: None };
    let options = CephOptions {
        config: "/etc/ceph/ceph.conf".into(),
        keyring: "/etc/ceph/my keyring".into(),
        user: "admin".to_owned(),
        access,
    };
    (RbdStorage::new(options, exec.clone()).without_library(), exec)
}

fn failure(code: i32, said: &str) -> Answer {
    Ok(Output { code: Some(code), stdout: Vec::new(), stderr: said.as_bytes().to_vec() })
}

fn id(text: &str) -> VolumeId {
    VolumeId::from_record(text).unwrap()
}

#[tokio::test]
async fn a_ceph_that_hangs_is_a_missed_deadline() {
    let (storage, exec) = storage(|command| {
        Err(ExecError::TimedOut { program: command.program.clone(), deadline: command.deadline })
    });
    let error = storage.locks(&id("vms/a")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the storage did not answer within 30 s while it was listing locks (`vms/a`)"
    );
    assert_eq!(
        exec.ran()[0].args,
        [
            "lock",
            "list",
            "--pool=vms",
            "--image=a",
            "--format=json",
            "--conf=/etc/ceph/ceph.conf",
            "--keyring=/etc/ceph/my keyring",
            "--id=admin",
        ]
    );
}

#[tokio::test]
async fn a_name_that_rbd_would_read_otherwise_never_reaches_it() {
    let (storage, exec) = storage(|_| failure(1, ""));
    for bad in ["vms/a@s", "vms/a/b", "vms/a\0"] {
        let error = storage.remove(&id(bad)).await.unwrap_err();
        assert!(matches!(error, StorageError::NoVolume { .. }), "{error}");
        assert!(storage.locks(&id(bad)).await.is_err());
    }
    let snapshot = SnapshotName::new("s@t");
    let error = storage.remove_snapshot(&id("vms/a"), &snapshot).await.unwrap_err();
    assert!(matches!(error, StorageError::NoSnapshot { .. }), "{error}");
    assert_eq!(exec.ran(), []);
}

#[tokio::test]
async fn a_copy_that_fails_leaves_neither_itself_nor_its_beginning() {
    let (storage, exec) = storage(|command| match command.args[0].as_str() {
        "copy" => failure(
            5,
            "Image copy: 1% complete...failed.\nrbd: copy failed: (5) Input/output error",
        ),
        "ls" => Ok(ScriptedExec::success(r#"["a","b","b.c.partial"]"#)),
        _ => Ok(ScriptedExec::success("[]")),
    });
    let (from, to) = (id("vms/a"), id("vms/b"));
    let copied = storage.publish(&to, |partial| {
        let (storage, from) = (storage.clone(), from.clone());
        async move {
            let (permit, course) = (WritePermit::for_a_test(&from.pool), Course::default());
            storage.copy(&permit, image_args(&from), 4096, &from, &partial, &course).await
        }
    });
    let error = copied.await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(
        (error.to_string().as_str(), cause.as_str()),
        (
            "the storage failed while it was copying a volume (`vms/a`)",
            "copy failed: (5) Input/output error"
        )
    );
    let acts: Vec<_> = exec.ran().iter().map(|command| command.args[0].clone()).collect();
    assert_eq!(acts, ["copy", "ls"], "what it has begun is removed");
}

#[tokio::test]
async fn a_failure_in_the_making_names_the_volume_that_was_asked_for() {
    for is_late in [false, true] {
        let (storage, _) = storage(move |command| match (command.args[0].as_str(), is_late) {
            ("rename", false) => failure(5, "rbd: rename error: (5) Input/output error"),
            ("rename", true) => Err(ExecError::TimedOut {
                program: command.program.clone(),
                deadline: command.deadline,
            }),
            _ => Ok(ScriptedExec::success("[]")),
        });
        let (partial, volume) = (id("vms/b.0123456789abcdef.partial"), id("vms/b"));
        let permit = WritePermit::for_a_test(&volume.pool);
        let named = storage.move_to(&permit, &partial, &volume.volume, "naming a new volume").await;
        let error = super::named(named.unwrap_err(), &partial, &volume).to_string();
        assert!(error.ends_with("while it was naming a new volume (`vms/b`)"), "{error}");
    }
}

#[tokio::test]
async fn a_pool_of_which_a_volume_goes_while_it_is_listed_is_listed_again() {
    let of = |pool_said: &'static str, times: usize| {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        storage(move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            turn if turn < times => failure(2, pool_said),
            _ => Ok(ScriptedExec::success("[]")),
        })
    };
    let pool = PoolName::new("vms");
    let gone = "rbd: error opening a: (2) No such file or directory\nrbd: listing images \
                failed: (2) No such file or directory";
    let (storage, exec) = of(gone, 3);
    assert_eq!(storage.volumes(&pool).await.unwrap(), []);
    assert_eq!(exec.ran().len(), 4);
    let (storage, _) = of(gone, usize::MAX);
    let error = storage.volumes(&pool).await.unwrap_err();
    assert!(matches!(error, StorageError::Io { .. }), "{error}");
    assert!(error.to_string().ends_with("listing volumes (pool `vms`)"), "{error}");
    let (storage, exec) = of("rbd: error opening pool 'vms': (2) No such file", usize::MAX);
    let error = storage.volumes(&pool).await.unwrap_err();
    assert!(matches!(error, StorageError::NoPool { .. }), "{error}");
    assert_eq!(exec.ran().len(), 1);
}

#[tokio::test]
async fn what_was_half_removed_is_not_taken_for_what_is_there() {
    let names = r#"["a","b.0123456789abcdef.partial","c.0123456789abcdef.partial","d"]"#;
    let (storage, exec) = storage(move |command| match command.args[0].as_str() {
        "ls" => Ok(ScriptedExec::success(names)),
        _ if command.args.iter().any(|arg| arg.starts_with("--image=b")) => {
            failure(2, "rbd: error opening image: (2) No such file or directory")
        }
        _ => Ok(ScriptedExec::success(r#"{"size":4096}"#)),
    });
    let found = storage.half_removed(&PoolName::new("vms")).await.unwrap();
    assert_eq!(found, [id("vms/b.0123456789abcdef.partial")]);
    assert_eq!(exec.ran().len(), 3, "whole volumes are not asked for");
}

#[tokio::test]
async fn a_name_that_opens_and_that_no_volume_has_is_neither_removed_nor_renamed() {
    let (storage, exec) = storage(|command| match command.args[0].as_str() {
        "ls" => Ok(ScriptedExec::success(r#"["b"]"#)),
        "info" => Ok(ScriptedExec::success(r#"{"size":4096}"#)),
        _ => Ok(ScriptedExec::success(r#"{"watchers":[]}"#)),
    });
    let removed = storage.remove(&id("vms/a")).await;
    assert!(matches!(removed, Err(StorageError::NoVolume { .. })), "{removed:?}");
    let renamed = storage.rename(&id("vms/a"), &VolumeName::new("c")).await;
    assert!(matches!(renamed, Err(StorageError::NoVolume { .. })), "{renamed:?}");
    let refused = storage.create(&id("vms/a"), 4096, false).await.unwrap_err();
    assert!(refused.to_string().contains("rados --pool vms rm rbd_id.a"), "{refused}");
    assert!(refused.to_string().contains("naming a new volume (`vms/a`)"), "{refused}");
    assert!(exec.ran().iter().all(|c| ["ls", "info"].contains(&c.args[0].as_str())));
}

#[tokio::test]
async fn a_lock_that_is_gone_is_free_and_one_that_cannot_be_broken_is_not() {
    let lock = VolumeLock {
        id: "auto 1".to_owned(),
        locker: "client.2".to_owned(),
        address: "10.0.0.1".to_owned(),
    };
    for (code, freed) in [(0, true), (2, true), (13, false)] {
        let (storage, exec) = storage(move |command| match command.args[0].as_str() {
            "info" => Ok(ScriptedExec::success(r#"{"size":4096}"#)),
            _ => failure(code, "rbd: releasing lock failed"),
        });
        assert_eq!(storage.break_lock(&id("vms/a"), &lock).await.is_ok(), freed, "{code}");
        assert_eq!(
            exec.ran()[1].args[4..6],
            ["auto 1", "client.2"],
            "arguments, not words of a line"
        );
    }
}

#[tokio::test]
async fn what_goes_through_a_volume_is_as_far_on_its_course_as_rbd_says() {
    let said = "Removing image: 0% complete...\rRemoving image: 41% complete...";
    let (storage, _) = storage(move |_| {
        Ok(Output { code: Some(0), stdout: Vec::new(), stderr: said.as_bytes().to_vec() })
    });
    let (volume, course) = (id("vms/a"), Course::default());
    let permit = WritePermit::for_a_test(&volume.pool);
    let programs = storage.programs.on_course(&course);
    let removed = programs.remove_through(&["rm"], image_args(&volume), 200, QUICK).await;
    assert!(removed.is_ok(), "{removed:?}");
    assert_eq!((course.bytes(), course.of()), (82, Some(200)));
    let (words, args) = (["snap", "rollback"], image_args(&volume));
    let rolled_back = programs.write_through(&permit, &words, args, 100, QUICK).await;
    assert!(rolled_back.is_ok(), "{rolled_back:?}");
    assert_eq!((course.bytes(), course.of()), (41, Some(100)));
    let without = storage.programs.remove_through(&["rm"], image_args(&volume), 7, QUICK).await;
    assert!(without.is_ok(), "{without:?}");
    assert_eq!(course.of(), Some(100), "it was on no course");
}
