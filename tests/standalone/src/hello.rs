//! The guest `hello`, under any name.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::program::{built, repository, run};

/// The disk image of `examples/hello`, built when it is missing or older than what it is made from.
pub fn hello_image() -> PathBuf {
    let target = built().parent().expect("a profile's directory is below `target`").to_owned();
    let image = target.join("hello.img");
    let lock = OpenOptions::new()
        .create(true)
        .append(true)
        .open(target.join("hello.img.lock"))
        .expect("`target` can be written");
    File::lock(&lock).expect("locks work in `target`");
    if !is_newer(&image, &repository().join("examples/hello")) {
        let build = repository().join("examples/hello/build");
        run(Command::new(build).arg("--image").arg(&image), "").ok();
    }
    image
}

fn is_newer(image: &Path, sources: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let Some(built) = changed(image) else { return false };
    let newest = fs::read_dir(sources)
        .expect("the example is in the checkout")
        .filter_map(|entry| changed(&entry.ok()?.path()))
        .max();
    newest.unwrap_or(SystemTime::UNIX_EPOCH) <= built
}

/// The UUID that a guest of this name has in these tests.
pub fn hello_uuid(name: &str) -> String {
    if name == "hello" {
        return "6f1d9c52-7a5e-4f0b-9d3c-68656c6c6f00".to_owned();
    }
    let digits: String =
        name.bytes().chain(std::iter::repeat(0)).take(6).map(|b| format!("{b:02x}")).collect();
    format!("6f1d9c52-7a5e-4f0b-9d3d-{digits}")
}

/// The domain of `hello` with another name and UUID, its disk on the volume `vms/<name>_sda`.
pub(crate) fn hello_xml(name: &str) -> String {
    let text = fs::read_to_string(repository().join("examples/hello/hello.xml"))
        .expect("it is in the checkout");
    text.replace(&hello_uuid("hello"), &hello_uuid(name))
        .replace("<name>hello</name>", &format!("<name>{name}</name>"))
        .replace("vms/hello_sda", &format!("vms/{name}_sda"))
        .replace("libvirt/hello.log", &format!("libvirt/{name}.log"))
}
