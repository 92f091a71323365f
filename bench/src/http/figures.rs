//! Cost of the API's replies, beside plain replies of the same size.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::Result;
use pvc_store::synthetic::Shape;

use super::{ApiServer, Client, PlainServer};
use crate::measure::{Pair, Scale, timed};
use crate::place::{Kind, Place};
use crate::report::{Budget, Figure, Quantity, Spread, bytes, grouped};

const LIST: &str = "/api/v1/vm";
const VOLUMES: &str = "/api/v1/storage/ceph/volume";
const STATUS: &str = "/api/v1/status";
const METRICS: &str = "/api/v1/metrics";

/// Requests that are made before those that count: the first ones find caches empty.
const WARM_UP: usize = 3;

/// Time for which a client rests between two requests while records change.
const PACE: Duration = Duration::from_millis(20);

/// A reply and a plain one of the same size, requested in turn.
struct Replies {
    size: usize,
    reply: Spread,
    plain: Spread,
}

impl Replies {
    fn figure(&self, what: impl std::fmt::Display) -> Figure {
        let plain = format!("plain reply of {}", bytes(self.size as u64));
        Figure::time(what.to_string(), self.reply).against(plain, Quantity::Time(self.plain))
    }
}

/// The figures of the API on `places`, which are of ascending size.
pub fn figures(kind: Kind, places: &[Place], scale: &Scale) -> Result<Vec<Figure>> {
    let mut servers =
        places.iter().map(|place| ApiServer::start(&place.source)).collect::<Result<Vec<_>>>()?;
    let mut plain = PlainServer::start()?;
    let plain = &mut plain;
    let mut figures = lists(&mut servers, plain, scale)?;
    let [small, _, usual, large] = servers.as_mut_slice() else {
        unreachable!("a scale has four sizes")
    };
    figures.extend(lists_after_changes(usual, plain, scale)?);
    figures.push(one_vm(large, plain, scale)?);
    figures.extend(volumes(usual, large, plain, scale)?);
    figures.extend(overviews(usual, plain, scale)?);
    figures.extend(while_a_quarter_changes(usual, plain, scale)?);
    figures.push(tree_requests(usual, scale)?);
    figures.extend(memory_figures(kind, [small, usual, large], scale)?);
    Ok(figures)
}

fn lists(servers: &mut [ApiServer], plain: &mut PlainServer, scale: &Scale) -> Result<Vec<Figure>> {
    let mut pairs: Vec<(usize, Pair)> = servers.iter().map(|_| (0, Pair::default())).collect();
    for round in 0..scale.requests + WARM_UP {
        for (server, (size, pair)) in servers.iter_mut().zip(&mut pairs) {
            let sample = both(server, plain, LIST)?;
            *size = sample.0;
            if round >= WARM_UP {
                pair.measured.push(sample.1);
                pair.reference.push(sample.2);
            }
        }
    }
    let replies: Vec<Replies> = pairs.into_iter().map(|(size, pair)| replies(size, pair)).collect();
    let budgets = [None, None, Some(20), Some(200)];
    let mut figures = Vec::new();
    for ((vms, replies), budget) in scale.vms.iter().zip(&replies).zip(budgets) {
        let figure = replies.figure(format_args!("list {} VMs over HTTP", grouped(*vms)));
        figures.push(match budget {
            Some(limit) => figure.budget(Budget::P99(Duration::from_millis(limit))),
            None => figure,
        });
    }
    let each = |index: usize| Quantity::Time(replies[index].reply.per(scale.vms[index]));
    for index in 1..scale.vms.len() {
        let name = format!("list {} VMs, for each VM", grouped(scale.vms[index]));
        figures.push(
            Figure::new(name, each(index))
                .against(format!("each of {}", grouped(scale.small())), each(0)),
        );
    }
    Ok(figures)
}

/// Lists when they have to be made anew, in part or in whole.
fn lists_after_changes(
    server: &mut ApiServer,
    plain: &mut PlainServer,
    scale: &Scale,
) -> Result<[Figure; 3]> {
    let budget = Budget::P99(Duration::from_millis(20));
    let vms = grouped(scale.usual());
    let one = after_changes(server, plain, LIST, 1, scale.requests)?;
    let quarter =
        after_changes(server, plain, LIST, scale.usual() / 4, scale.requests.div_ceil(5))?;
    let all = after_changes(server, plain, LIST, scale.usual(), scale.requests.div_ceil(5))?;
    Ok([
        one.figure(format_args!("list {vms} VMs, one changed before")).budget(budget),
        quarter.figure(format_args!("list {vms} VMs, a quarter changed before")).budget(budget),
        all.figure(format_args!("list {vms} VMs, all running changed before")).budget(budget),
    ])
}

fn one_vm(server: &mut ApiServer, plain: &mut PlainServer, scale: &Scale) -> Result<Figure> {
    let path = format!("{LIST}/{}", Shape::vm_name(scale.large() / 2));
    let replies = unchanged(server, plain, &path, scale.requests)?;
    let name = format!("one VM by name of {}", grouped(scale.large()));
    Ok(replies.figure(name).budget(Budget::P99(Duration::from_millis(2))))
}

/// Lists of volumes, of which each VM has one.
fn volumes(
    usual: &mut ApiServer,
    large: &mut ApiServer,
    plain: &mut PlainServer,
    scale: &Scale,
) -> Result<[Figure; 2]> {
    let name = |volumes: usize| format!("list {} volumes over HTTP", grouped(volumes));
    let budget = Budget::P99(Duration::from_millis(10));
    let few = unchanged(usual, plain, VOLUMES, scale.requests)?;
    let many = unchanged(large, plain, VOLUMES, scale.requests)?;
    Ok([few.figure(name(scale.usual())).budget(budget), many.figure(name(scale.large()))])
}

fn overviews(
    server: &mut ApiServer,
    plain: &mut PlainServer,
    scale: &Scale,
) -> Result<Vec<Figure>> {
    let vms = grouped(scale.usual());
    let budget = |milliseconds| Budget::P99(Duration::from_millis(milliseconds));
    let status = unchanged(server, plain, STATUS, scale.requests)?;
    let status_after = after_changes(server, plain, STATUS, 1, scale.requests)?;
    // Made anew each time, whether anything has changed or not.
    let metrics = unchanged(server, plain, METRICS, scale.requests)?;
    Ok(vec![
        status.figure(format_args!("cluster status, {vms} VMs")).budget(budget(5)),
        status_after
            .figure(format_args!("cluster status, {vms} VMs, one changed before"))
            .budget(budget(5)),
        metrics.figure(format_args!("metrics, {vms} VMs")).budget(budget(50)),
    ])
}

/// Lists and metrics that are asked for at once, while a quarter of the VMs has new statistics each
/// second: some of the replies are made anew, and some meet the change on their way.
fn while_a_quarter_changes(
    server: &mut ApiServer,
    plain: &mut PlainServer,
    scale: &Scale,
) -> Result<[Figure; 2]> {
    let port = server.api_port;
    let measured = server.while_touched(scale.usual() / 4, |lists| {
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            // Scrapers have a connection of their own, and come while lists are made.
            let scraping = scope.spawn(move || {
                let (mut scraper, mut samples) = (Client::connect(port)?, Vec::new());
                loop {
                    let (time, size) = timed(|| scraper.get(METRICS).map(<[u8]>::len));
                    samples.push((size?, time));
                    if is_done.recv_timeout(PACE) != Err(RecvTimeoutError::Timeout) {
                        return anyhow::Ok(samples);
                    }
                }
            });
            let listed = listed(lists, plain, scale.requests);
            drop(done);
            let scraped = scraping.join().expect("it reports its errors")?;
            anyhow::Ok((listed?, scraped))
        })
    });
    let ((size, pair), scraped) = measured?;
    let vms = grouped(scale.usual());
    let what = "while a quarter changes each second";
    let list = replies(size, pair).figure(format_args!("list {vms} VMs, {what}"));
    let mut scrapes = Pair::default();
    let mut size = 0;
    for (bytes, time) in scraped {
        size = bytes;
        scrapes.measured.push(time);
        let (of_plain, done) = timed(|| plain.get(bytes));
        done?;
        scrapes.reference.push(of_plain);
    }
    let metrics = replies(size, scrapes).figure(format_args!("metrics, {vms} VMs, {what}"));
    let budget = |milliseconds| Budget::P99(Duration::from_millis(milliseconds));
    Ok([list.budget(budget(20)), metrics.budget(budget(50))])
}

/// The size of a list and the times that lists took, each beside a plain reply; with a rest after
/// each, so that they are of many seconds.
fn listed(client: &mut Client, plain: &mut PlainServer, rounds: usize) -> Result<(usize, Pair)> {
    let (mut size, mut pair) = (0, Pair::default());
    for _ in 0..rounds {
        let (list, bytes) = timed(|| client.get(LIST).map(<[u8]>::len));
        size = bytes?;
        let (of_plain, done) = timed(|| plain.get(size));
        done?;
        pair.measured.push(list);
        pair.reference.push(of_plain);
        std::thread::park_timeout(PACE);
    }
    Ok((size, pair))
}

/// Measures how often the API asks the tree when it is asked for what is recorded.
fn tree_requests(server: &mut ApiServer, scale: &Scale) -> Result<Figure> {
    let one = format!("{LIST}/{}", Shape::vm_name(0));
    let paths = [LIST, &one, STATUS, METRICS, "/api/v1/node", "/api/v1/tasks"];
    let before = server.tree_requests()?;
    for path in paths {
        for _ in 0..scale.requests {
            server.api.get(path)?;
        }
    }
    let asked = server.tree_requests()?.since(before).all();
    let reads = paths.len() * scale.requests;
    let name = format!("tree requests per API read, of {} reads", grouped(reads));
    Ok(Figure::new(name, Quantity::Count(asked as f64 / reads as f64)).budget(Budget::Count(0.0)))
}

/// Memory after all these replies.
fn memory_figures(kind: Kind, servers: [&mut ApiServer; 3], scale: &Scale) -> Result<[Figure; 2]> {
    let [small, usual, large] = servers.map(|server| server.memory());
    let (small, usual, large) = (small?, usual?, large?);
    let what = match kind {
        Kind::Embedded => "tree, cache and API",
        Kind::Zookeeper => "cache and API",
    };
    let figure = |vms: usize, memory: u64| {
        let name = format!("memory of {what} in one process, {} VMs", grouped(vms));
        Figure::new(name, Quantity::Bytes(memory))
            .against(format!("with {} VMs", grouped(scale.small())), Quantity::Bytes(small))
    };
    Ok([figure(scale.usual(), usual), figure(scale.large(), large)])
}

fn unchanged(
    server: &mut ApiServer,
    plain: &mut PlainServer,
    path: &str,
    rounds: usize,
) -> Result<Replies> {
    for _ in 0..WARM_UP {
        both(server, plain, path)?;
    }
    let mut pair = Pair::default();
    let mut size = 0;
    for _ in 0..rounds {
        let sample = both(server, plain, path)?;
        size = sample.0;
        pair.measured.push(sample.1);
        pair.reference.push(sample.2);
    }
    Ok(replies(size, pair))
}

fn after_changes(
    server: &mut ApiServer,
    plain: &mut PlainServer,
    path: &str,
    vms: usize,
    rounds: usize,
) -> Result<Replies> {
    let mut pair = Pair::default();
    let mut size = 0;
    for _ in 0..rounds {
        server.touch(vms)?;
        let sample = both(server, plain, path)?;
        size = sample.0;
        pair.measured.push(sample.1);
        pair.reference.push(sample.2);
    }
    Ok(replies(size, pair))
}

/// The size of the reply, and the times that it and a plain one took.
fn both(
    server: &mut ApiServer,
    plain: &mut PlainServer,
    path: &str,
) -> Result<(usize, Duration, Duration)> {
    let (reply, size) = timed(|| server.api.get(path).map(<[u8]>::len));
    let size = size?;
    let (of_plain, done) = timed(|| plain.get(size));
    done?;
    Ok((size, reply, of_plain))
}

fn replies(size: usize, pair: Pair) -> Replies {
    let (reply, plain) = pair.spreads();
    Replies { size, reply, plain }
}
