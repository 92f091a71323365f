//! `cargo xtask lab demo`: what an operator does with a cluster, and what the cluster does by
//! itself, told in the terminal. Every claim is held against what is true; the first that is not so
//! ends the story.

mod failing;
mod moving;
mod stage;

use std::time::Instant;

use anyhow::{Result, bail};

use self::stage::Stage;
use super::layout::Lab;

/// A part of the story. Each finds the lab whole and leaves it so, and may be told alone.
struct Scene {
    name: &'static str,
    title: &'static str,
    tell: fn(&Stage) -> Result<()>,
}

const SCENES: [Scene; 10] = [
    Scene { name: "cluster", title: "Three nodes are one cluster", tell: moving::cluster },
    Scene { name: "vms", title: "VMs with their disks in Ceph", tell: moving::vms },
    Scene {
        name: "primary",
        title: "The primary role goes over in lock step",
        tell: moving::primary,
    },
    Scene { name: "migrate", title: "A VM moves while it runs, and back", tell: moving::migrate },
    Scene {
        name: "move",
        title: "A VM moves for good, live or not at all",
        tell: moving::move_for_good,
    },
    Scene {
        name: "flush",
        title: "A node is emptied for maintenance, and filled again",
        tell: moving::flush,
    },
    Scene { name: "power", title: "The primary node loses its power", tell: failing::power },
    Scene {
        name: "cut",
        title: "A cable is out for a while, and back in time",
        tell: failing::cut,
    },
    Scene { name: "freeze", title: "A node hangs with its power on", tell: failing::freeze },
    Scene { name: "bmc", title: "A node dies, and its BMC with it", tell: failing::bmc },
];

/// Tells the scenes that `names` names, or all. The lab is brought up if it is not.
///
/// # Errors
/// If there is no such scene, or something claimed is not so.
pub fn run(lab: &Lab, names: &[&str]) -> Result<()> {
    let scenes = chosen(names)?;
    if !lab.is_up() {
        println!("The lab `{}` is down.\n\n     $ cargo xtask lab up", lab.name);
        super::run(&["up".into()])?;
    }
    let stage = Stage::open(lab)?;
    let begun = Instant::now();
    for (number, scene) in scenes.iter().enumerate() {
        stage.title(number + 1, scene.title);
        (scene.tell)(&stage)?;
    }
    println!("\nAll {} claims were so. It took {}.", stage.claims(), stage::time(begun.elapsed()));
    Ok(())
}

fn chosen(names: &[&str]) -> Result<Vec<&'static Scene>> {
    if names.is_empty() {
        return Ok(SCENES.iter().collect());
    }
    let find = |name: &&str| match SCENES.iter().find(|scene| scene.name == *name) {
        Some(scene) => Ok(scene),
        None => {
            bail!(
                "there is no scene `{name}`; there are: {}",
                SCENES.map(|scene| scene.name).join(", ")
            )
        }
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_that_nobody_wrote_is_refused_and_the_others_are_named() {
        let error = chosen(&["power", "ghost"]).err().unwrap().to_string();
        assert!(
            error.starts_with("there is no scene `ghost`; there are: cluster, vms, primary"),
            "{error}"
        );
        assert_eq!(chosen(&["power"]).unwrap()[0].name, "power");
        assert_eq!(chosen(&[]).unwrap().len(), SCENES.len());
    }
}
