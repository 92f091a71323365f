//! A read of the cache against the raw read that it stands for.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use pvc_model::cluster::Cluster;
use pvc_ports::{CreateMode, Op, Tree};
use pvc_store::synthetic::Shape;
use pvc_store::{Changes, Store, VmChange};

use crate::measure::{Pair, Scale, timed, timed_async};
use crate::place::{Place, open_store, runtime};
use crate::report::{Figure, Quantity, Spread, grouped};

/// The figures of the cache of `place`.
pub fn figures(place: &Place, scale: &Scale) -> Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let tree = place.source.open().await?;
        let figures = measure(tree.clone(), &place.shape, scale).await;
        tree.close().await;
        figures
    })
}

async fn measure(tree: Arc<dyn Tree>, shape: &Shape, scale: &Scale) -> Result<Vec<Figure>> {
    let paths: Vec<String> = shape.dump().into_keys().collect();
    let store = open_store(tree.clone()).await?;
    let vms = grouped(shape.vms);
    let (one, one_raw) = one_vm(&store, &paths, shape, scale).await?;
    let (list, list_raw) = whole_list(&store, &paths, scale).await?;
    let (open, open_raw) = opening(&tree, &paths, scale).await?;
    let (change, change_raw) = one_change(&store, shape, scale).await?;
    let raw = |reference: Spread| Quantity::Time(reference);
    Ok(vec![
        Figure::time(format!("cache: one VM of {vms}"), one)
            .against("raw read of its keys", raw(one_raw)),
        Figure::time(format!("cache: name and state of {vms} VMs"), list)
            .against("raw read of their keys", raw(list_raw)),
        Figure::time(format!("cache filled, {vms} VMs"), open)
            .against("raw read of all keys, paths known", raw(open_raw)),
        Figure::time(format!("one change of a VM of {vms}, until the cache shows it"), change)
            .against("raw write of one key", raw(change_raw)),
    ])
}

async fn one_vm(
    store: &Store,
    paths: &[String],
    shape: &Shape,
    scale: &Scale,
) -> Result<(Spread, Spread)> {
    let name = Shape::vm_name(shape.vms / 2);
    let uuid = store.view().vm(&name).context("the made-up VM is missing")?.uuid.to_string();
    let keys: Vec<String> = paths.iter().filter(|path| path.contains(&uuid)).cloned().collect();
    let mut pair = Pair::default();
    for _ in 0..scale.requests {
        let (time, ()) = timed(|| {
            for _ in 0..scale.batch {
                black_box(store.view().vm(black_box(&name)).cloned());
            }
        });
        pair.measured.push(time / u32::try_from(scale.batch)?);
        let (time, read) = timed_async(store.tree().get_many(&keys)).await;
        black_box(read?);
        pair.reference.push(time);
    }
    Ok(pair.spreads())
}

async fn whole_list(store: &Store, paths: &[String], scale: &Scale) -> Result<(Spread, Spread)> {
    let uuids =
        store.view().vms.keys().map(ToString::to_string).collect::<std::collections::BTreeSet<_>>();
    let of_a_vm = |path: &&String| path.split('/').any(|part| uuids.contains(part));
    let keys: Vec<String> = paths.iter().filter(of_a_vm).cloned().collect();
    let mut pair = Pair::default();
    for _ in 0..scale.sweeps {
        let (time, list) = timed(|| {
            let view = store.view();
            view.vms.values().map(|vm| (vm.name.clone(), vm.state.clone())).collect::<Vec<_>>()
        });
        black_box(list);
        pair.measured.push(time);
        let (time, read) = timed_async(store.tree().get_many(&keys)).await;
        black_box(read?);
        pair.reference.push(time);
    }
    Ok(pair.spreads())
}

async fn opening(
    tree: &Arc<dyn Tree>,
    paths: &[String],
    scale: &Scale,
) -> Result<(Spread, Spread)> {
    let mut pair = Pair::default();
    for _ in 0..scale.sweeps.div_ceil(3) {
        let (time, store) = timed_async(open_store(tree.clone())).await;
        black_box(store?);
        pair.measured.push(time);
        let (time, read) = timed_async(tree.get_many(paths)).await;
        black_box(read?);
        pair.reference.push(time);
    }
    Ok(pair.spreads())
}

async fn one_change(store: &Store, shape: &Shape, scale: &Scale) -> Result<(Spread, Spread)> {
    const SCRATCH: &str = "/pvc-bench";
    let uuid =
        store.view().vm(&Shape::vm_name(shape.vms / 2)).context("the made-up VM is missing")?.uuid;
    store.tree().create(SCRATCH, Bytes::new(), CreateMode::Persistent).await?;
    let mut pair = Pair::default();
    for round in 0..scale.requests {
        let profile = format!("profile-{round:08}");
        let decide = |_: &Cluster| {
            let mut changes = Changes::new();
            changes.vm(uuid, VmChange::Profile(profile.clone()));
            Ok::<_, std::convert::Infallible>((changes, ()))
        };
        let (time, changed) = timed_async(store.change(decide)).await;
        changed?;
        pair.measured.push(time);
        let write =
            Op::Set { path: SCRATCH.to_owned(), data: profile.clone().into(), version: None };
        let (time, written) = timed_async(store.tree().multi(vec![write])).await;
        written?;
        pair.reference.push(time);
    }
    store.tree().multi(vec![Op::Delete { path: SCRATCH.to_owned(), version: None }]).await?;
    Ok(pair.spreads())
}
