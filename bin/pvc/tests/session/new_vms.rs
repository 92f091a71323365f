//! A VM of an image, or to install a system on, is made by one request.

use super::*;

/// A server whose task has ended when it is looked at.
fn server(request: &Received, before: usize) -> Reply {
    match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/tasks/0a1b2c3d") => {
            ok(r#"{"state": "SUCCESS", "current": 2, "total": 2, "status": "VM \"web1\" is made"}"#)
        }
        ("POST", "/api/v1/vm/web1/create") => {
            status(202, r#"{"task_id": "0a1b2c3d", "task_name": "vm.create", "run_on": "hv1"}"#)
        }
        _ => cluster(request, before),
    }
}

fn words(line: &str) -> Vec<&str> {
    ["-q", "vm", "create", "web1"].into_iter().chain(line.split(' ')).collect()
}

#[test]
fn each_option_of_a_new_vm_is_in_its_request() {
    for (line, request) in [
        (
            "--image debian",
            "image=debian&vcpus=1&memory=1024&machine=q35&tpm=False&no_cloud_init=False\
             &autostart=False&start=False&force=False",
        ),
        (
            "-i vms/debian --vcpus 4 -m 512 -d 8G -n 1001 -n web --machine pc --uefi --tpm \
             --no-cloud-init -t hv1 -a -s --force",
            "image=vms%2Fdebian&vcpus=4&memory=512&disk=8G&network=1001&network=web&machine=pc\
             &firmware=uefi&tpm=True&no_cloud_init=True&node=hv1&autostart=True&start=True\
             &force=True",
        ),
        (
            "--from-iso installer --disk 40G --memory 4G --uefi",
            "iso=installer&vcpus=1&memory=4096&disk=40G&machine=q35&firmware=uefi&tpm=False\
             &no_cloud_init=False&autostart=False&start=False&force=False",
        ),
    ] {
        let stub = Stub::start(server);
        let output = User::of(&stub).run(&words(&format!("{line} --no-wait")));
        assert_eq!(code(&output), 0, "{line}: {output:?}");
        assert_eq!(changes(&stub), [format!("POST /vm/web1/create?{request}")], "{line}");
    }
}

#[test]
fn a_vm_of_a_cloud_image_is_made_and_started_by_one_line() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    let file = |name: &str, text: &str| {
        let path = user.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (key, program) = ("ssh-ed25519 AAAAC3Nz+aC1/ZDI1= me@here", "#!/bin/sh\nx='a=b & c'\n");
    let keys = file("id_ed25519.pub", &format!("{key}\n"));
    let data = file("data", program);
    let line = format!(
        "--image debian-12 --vcpus 2 --memory 2G --disk 20G --network 1001 --ssh-key {keys} \
         --user-data {data} --start --wait"
    );
    let made = user.run(&words(&line));
    assert_eq!(code(&made), 0, "{made:?}");
    let asked = "POST /vm/web1/create?image=debian-12&vcpus=2&memory=2048&disk=20G&network=1001\
                 &machine=q35&tpm=False&no_cloud_init=False&autostart=False&start=True&force=False";
    let waited = "POST /vm/web1/state?state=start&force=False&wait=True";
    assert_eq!(changes(&stub), [asked, waited]);
    let sent = stub.received().into_iter().find(|one| one.path().ends_with("/create")).unwrap();
    assert_eq!(decoded(&sent.body), format!("ssh_keys={key}\n&user_data={program}"));
}
