//! Servers that lose their power.

use std::time::Duration;

use pvc_sim::{Action, Cluster, Log, Shape};

#[tokio::test(start_paused = true)]
async fn a_vm_whose_host_loses_its_power_runs_elsewhere() {
    let log = Log::new(std::env::var_os("PVC_SIM_LOG").is_some());
    log.capture_daemons(tracing::Level::INFO);
    let cluster = Cluster::start(Shape::plain(3, 1), log).await.unwrap();
    let [first] = cluster.runs_on(0)[..] else { panic!("it runs once") };
    cluster.act(&Action::PowerLoss(first));
    cluster
        .until("it runs elsewhere", Duration::from_secs(180), |cluster| {
            cluster.runs_on(0).len() == 1 && cluster.runs_on(0) != [first]
        })
        .await
        .unwrap();
}
