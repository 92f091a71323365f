//! Reads: what can be read, and in which shape.

use axum::body::Body;
use axum::http::Method;
use pvc_api::ApiSettings;
use pvc_model::guest_network::request::Neighbour;
use pvc_store::synthetic::Shape;
use serde_json::{Value, json};

use crate::common::{self, empty, request, start, with_vms};

#[tokio::test]
async fn the_root_says_what_this_is_to_everybody() {
    let api = empty().await;
    let reply = api.send(axum::http::Request::get("/api/v1/").body(Body::empty()).unwrap()).await;
    assert_eq!(reply.ok(), json!({"message": "PVC API version 1.0"}));
    assert_eq!(reply.headers["content-type"], "application/json");
    assert!(reply.text().ends_with("}\n"));
    let reply = api.send(axum::http::Request::get("/api/v1").body(Body::empty()).unwrap()).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.headers["location"]),
        (308, &"/api/v1/".parse().unwrap())
    );
}

#[tokio::test]
async fn q38_unknown_paths_and_wrong_methods_are_reported_in_json() {
    let api = empty().await;
    assert_eq!(api.get("/nonsense").await.refused(404), "this API has no such path");
    let reply = api.delete("/status").await;
    assert_eq!(reply.refused(405), "the method DELETE is not possible here");
    assert!(reply.headers["allow"].to_str().unwrap().contains("GET"));
}

#[tokio::test]
async fn the_status_of_no_cluster_says_how_one_begins() {
    let api = empty().await;
    let health = api.get("/status").await.ok()["cluster_health"].clone();
    assert_eq!(
        health,
        serde_json::json!({"health": 0, "messages": [{
            "id": "NO_CLUSTER",
            "health_delta": 100,
            "text": "there is no cluster yet: `pvc cluster init` begins one"
        }]})
    );
    api.store.initialize(false).await.unwrap();
    let health = api.get("/status").await.ok()["cluster_health"].clone();
    assert_eq!(health["health"], 0);
    assert_eq!(
        health["messages"][0]["text"],
        "no node has joined the cluster yet: start the node daemon of the first one \
         (pvcnoded.service)"
    );
    let api = with_vms(0).await;
    assert_eq!(api.get("/status").await.ok()["cluster_health"]["health"], 100);
}

#[tokio::test]
async fn options_needs_no_key_and_head_works_like_get() {
    let api = with_vms(1).await;
    let options = axum::http::Request::builder()
        .method(Method::OPTIONS)
        .uri("/api/v1/vm")
        .body(Body::empty());
    let reply = api.send(options.unwrap()).await;
    assert_eq!(reply.status, 200);
    assert!(reply.headers["allow"].to_str().unwrap().contains("GET") && reply.body.is_empty());
    let reply = api.send(request(Method::HEAD, "/vm").body(Body::empty()).unwrap()).await;
    assert!(reply.status == 200 && reply.body.is_empty());
}

#[tokio::test]
async fn what_comes_later_says_so() {
    let api = with_vms(1).await;
    for (path, status) in [
        ("/vm/vm00000/snapshot", 501),
        ("/vm/autobackup", 501),
        ("/vm/automirror?force_full=True", 501),
    ] {
        let message = api.post(path).await.refused(status);
        assert!(message.contains(" with release 0."), "{message}");
    }
    let read = api.get("/vm/vm00000/snapshot").await.refused(501);
    assert!(read.starts_with("snapshots, backups and mirrors of VMs come with "), "{read}");
}

#[tokio::test]
async fn a_vm_that_is_called_like_a_later_operation_is_a_vm() {
    let api = with_vms(20).await;
    api.start_worker("pvchv1");
    api.eventually("a worker is there", |view| !view.workers.is_empty()).await;
    api.post(&format!("/vm/{}/rename?new_name=autobackup", api.vm_in("stop"))).await.ok();
    assert_eq!(api.get("/vm/autobackup").await.ok()[0]["name"], "autobackup");
    api.delete("/vm/autobackup").await.ok();
}

#[tokio::test]
async fn the_list_of_vms_is_sorted_and_every_member_is_there() {
    let api = with_vms(20).await;
    let list = api.get("/vm").await.ok();
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|vm| vm["name"].as_str().unwrap()).collect();
    assert_eq!(names, (0..20).map(Shape::vm_name).collect::<Vec<_>>());
    let vm = &api.get(&format!("/vm/{}", api.vm_in("start"))).await.ok()[0];
    assert_eq!(vm["migrated"], "no");
    assert_eq!(vm["description"], "Made-up VM");
    assert_eq!(vm["profile"], "None");
    assert_eq!(vm["node_limit"], json!(null));
    assert_eq!(vm["tags"], json!([{"name": "daily", "type": "user", "protected": false}]));
    assert_eq!(vm["memory_stats"]["rss"], json!(620_032));
    assert_eq!(vm["disks"][0]["rd_req"], json!(10231));
    assert_eq!(vm["vnc"]["listen"], "127.0.0.1");
    let xml = vm["xml"].as_str().unwrap();
    assert!(
        !xml.contains('"') && !xml.contains('\n') && xml.contains("<memory unit='MiB'>"),
        "{xml}"
    );
}

#[tokio::test]
async fn a_vm_that_is_off_shows_no_counters_of_its_last_run() {
    let api = with_vms(30).await;
    let name = api.vm_in("stop");
    let uuid = api.uuid(&name);
    api.write(&format!("/domains/{uuid}/stats"), r#"{"mem_stats": {"rss": 7}}"#).await;
    assert_eq!(api.get(&format!("/vm/{name}")).await.ok()[0]["memory_stats"], json!({}));
}

#[tokio::test]
async fn a_network_card_has_the_addresses_that_the_agent_in_the_guest_says() {
    let api = with_vms(30).await;
    let name = api.vm_in("start");
    let before = api.get(&format!("/vm/{name}")).await.ok();
    assert_eq!(before[0]["networks"][0]["addresses"], json!([]));
    let mac = before[0]["networks"][0]["mac"].as_str().unwrap();
    let stats = json!({"addresses": {mac: ["10.0.0.5", "2001:db8::5"], "02:00:00:00:00:01": []}});
    api.write(&format!("/domains/{}/stats", api.uuid(&name)), stats.to_string()).await;
    let shown = api.get(&format!("/vm/{name}")).await.ok();
    assert_eq!(shown[0]["networks"][0]["addresses"], json!(["10.0.0.5", "2001:db8::5"]));
}

#[tokio::test]
async fn vms_are_found_by_filters_and_their_opposite() {
    let api = with_vms(40).await;
    let count =
        async |query: &str| api.get(&format!("/vm?{query}")).await.ok().as_array().unwrap().len();
    assert_eq!(count("limit=vm0000").await, 10);
    assert_eq!(count("limit=%5Evm0000%24").await, 0);
    assert_eq!(count("limit=00003%24").await, 1);
    let (on, off) = (count("state=start").await, count("state=start&negate=true").await);
    assert_eq!((on + off, on > 0, off > 0), (40, true, true));
    assert_eq!(count("node=pvchv1").await + count("node=pvchv1&negate=yes").await, 40);
    assert_eq!(count("tag=daily").await, 40);
    assert_eq!(count("tag=none").await, 0);
    let uuid = api.uuid("vm00007");
    assert_eq!(count(&format!("limit={}", uuid.simple().to_string().to_uppercase())).await, 1);
    assert_eq!(api.get("/vm?node=nowhere").await.refused(400), "node: there is no node `nowhere`");
    assert!(api.get("/vm?state=odd").await.refused(400).starts_with("state: `odd` is not one of"));
    assert!(api.get("/vm?limit=(").await.refused(400).starts_with("limit: "));
}

#[tokio::test]
async fn q06_an_empty_list_is_a_list() {
    let api = empty().await;
    for path in
        ["/vm", "/node", "/network", "/faults", "/storage/ceph/volume", "/storage/ceph/pool"]
    {
        assert_eq!(api.get(path).await.ok(), json!([]), "{path}");
    }
}

#[tokio::test]
async fn q41_one_record_is_found_by_its_exact_name_in_a_list_of_one() {
    let api = with_vms(3).await;
    assert_eq!(api.get("/vm/vm00001").await.ok().as_array().unwrap().len(), 1);
    let uuid = api.uuid("vm00001").to_string();
    assert_eq!(api.get(&format!("/vm/{}", uuid.to_uppercase())).await.ok()[0]["name"], "vm00001");
    assert!(api.get("/vm/vm0000.").await.refused(404).contains("vm0000."));
    assert_eq!(api.get("/node/pvchv1").await.ok()[0]["name"], "pvchv1");
    assert_eq!(api.get("/node/pvchv.").await.status, 404);
    assert_eq!(api.get("/network/1000").await.ok()[0]["vni"], json!(1000));
    assert_eq!(api.get("/network/network-1000").await.ok()[0]["vni"], json!(1000));
    assert_eq!(api.get("/network/1").await.status, 404);
    assert_eq!(
        api.get("/storage/ceph/volume/vms/vm00001_sda").await.ok()[0]["stats"]["size"],
        "20G"
    );
    assert_eq!(api.get("/storage/ceph/volume/vms/nothing").await.status, 404);
    assert_eq!(api.get("/storage/ceph/volume/nothing/x").await.status, 400);
}

#[tokio::test]
async fn q20_the_parts_of_a_vm_can_be_read() {
    let api = with_vms(1).await;
    let uuid = api.uuid("vm00000");
    for (key, value) in
        [("node_selector", "None"), ("migration_method", "None"), ("node_autostart", "True")]
    {
        api.write(&format!("/domains/{uuid}/{key}"), value).await;
    }
    let state = api.get("/vm/vm00000/state").await.ok();
    assert_eq!(state["name"], "vm00000");
    assert!(state["state"].is_string());
    assert_eq!(
        api.get("/vm/vm00000/meta").await.ok(),
        json!({"name": "vm00000", "node_limit": null, "node_selector": null,
               "node_autostart": "True", "migration_method": null, "migration_max_downtime": 300})
    );
    assert_eq!(api.get("/vm/vm00000/tags").await.ok()["tags"][0]["name"], "daily");
    assert_eq!(api.get("/vm/vm00000/node").await.ok()["last_node"], "");
    for part in ["state", "meta", "tags", "node", "console"] {
        assert_eq!(api.get(&format!("/vm/nothing/{part}")).await.status, 404, "{part}");
    }
}

#[tokio::test]
async fn the_end_of_a_console_and_of_a_nodes_log_can_be_read() {
    let api = with_vms(1).await;
    let uuid = api.uuid("vm00000");
    let lines: Vec<String> = (1..=30).map(|line| format!("line {line} ü")).collect();
    api.write(&format!("/domains/{uuid}/consolelog"), lines.join("\n")).await;
    assert_eq!(api.get("/vm/vm00000/console?lines=2").await.ok()["data"], "line 29 ü\nline 30 ü");
    assert!(api.get("/vm/vm00000/console?lines=1").await.text().contains("line 30 \\u00fc"));
    let data = api.get("/vm/vm00000/console").await.ok()["data"].as_str().unwrap().lines().count();
    assert_eq!(data, 10);
    assert!(api.get("/vm/vm00000/console?lines=some").await.refused(400).starts_with("lines: "));
    assert_eq!(api.get("/node/pvchv1/log").await.ok(), json!({"name": "pvchv1", "data": ""}));
    assert_eq!(api.get("/node/nowhere/log").await.status, 404);
}

#[tokio::test]
async fn the_state_filters_of_nodes_are_alternatives() {
    let api = with_vms(0).await;
    api.write("/nodes/pvchv2/daemonstate", "dead").await;
    let names = async |query: &str| {
        let list = api.get(&format!("/node?{query}")).await.ok();
        list.as_array()
            .unwrap()
            .iter()
            .map(|node| node["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("").await, ["pvchv1", "pvchv2", "pvchv3"]);
    assert_eq!(names("daemon_state=dead&coordinator_state=primary").await, ["pvchv1", "pvchv2"]);
    assert_eq!(names("daemon_state=dead&limit=1").await, [] as [&str; 0]);
    let states = api.get("/node/pvchv2/daemon-state").await.ok();
    assert_eq!(states, json!({"name": "pvchv2", "daemon_state": "dead"}));
    assert_eq!(
        api.get("/node/pvchv1/coordinator-state").await.ok()["coordinator_state"],
        "primary"
    );
    assert_eq!(api.get("/node/pvchv1/domain-state").await.ok()["domain_state"], "ready");
}

#[tokio::test]
async fn a_node_shows_its_guests_by_name_and_what_no_record_knows_by_uuid() {
    let api = with_vms(1).await;
    let known = api.uuid("vm00000");
    let unknown = uuid::Uuid::from_u128(7);
    api.write("/nodes/pvchv1/runningdomains", format!("{known} {unknown}")).await;
    let node = &api.get("/node/pvchv1").await.ok()[0];
    assert_eq!(node["running_domains"], json!(["vm00000", unknown.to_string()]));
    assert_eq!((&node["load"], &node["memory"]["total"]), (&node["load"], &json!(1_048_576)));
    assert_eq!(node["interfaces"]["ens1f0"]["link_speed"], json!(10_000_000_000_u64));
}

#[tokio::test]
async fn q11_a_vm_whose_record_is_damaged_stays_in_the_list_and_says_what_is_wrong() {
    let api = with_vms(4).await;
    let uuids: Vec<_> = (0..4).map(|index| api.uuid(&Shape::vm_name(index))).collect();
    api.write(&format!("/domains/{}/xml", uuids[0]), "<domain><oops").await;
    api.write(&format!("/domains/{}/state", uuids[1]), "dancing").await;
    api.write(&format!("/domains/{}/failedreason", uuids[2]), vec![0xff, 0xfe, 0x00]).await;
    api.write(&format!("/domains/{}/tags/daily/protected", uuids[3]), "None").await;
    let list = api.get("/vm").await.ok();
    assert_eq!(list.as_array().unwrap().len(), 4);
    let reason = |index: usize| list[index]["failed_reason"].as_str().unwrap().to_owned();
    assert!(reason(0).contains("XML cannot be read"), "{}", reason(0));
    assert_eq!(list[0]["description"], "N/A");
    assert_eq!(list[1]["state"], "fail");
    assert!(reason(1).contains("`dancing`"), "{}", reason(1));
    assert!(reason(2).contains("not UTF-8"), "{}", reason(2));
    assert_eq!(list[3]["tags"][0]["protected"], false);
    assert_eq!(api.get("/status").await.ok()["vms"]["total"], 4);
    assert_eq!(api.get("/metrics").await.status, 200);
}

#[tokio::test]
async fn the_status_has_the_shape_that_monitoring_reads() {
    let api = with_vms(25).await;
    let status = api.get("/status").await.ok();
    assert_eq!(status["cluster_name"], "synthetic");
    assert_eq!(status["maintenance"], "false");
    assert_eq!(status["primary_node"], "pvchv1");
    assert_eq!(status["pvc_version"], "1.0.3");
    assert_eq!(status["nodes"], json!({"total": 3, "run,ready": 3}));
    assert_eq!(status["vms"]["total"], 25);
    assert_eq!(status["networks"], 4);
    assert_eq!(status["volumes"], 25);
    assert_eq!(status["osds"], json!({"total": 0}));
    assert_eq!(status["resources"]["memory"]["total"], 3 * 1_048_576);
    assert_eq!(status["detail"]["vm"].as_array().unwrap().len(), 25);
    assert_eq!(status["cluster_health"], json!({"health": 100, "messages": []}));
}

#[tokio::test]
async fn records_with_the_largest_numbers_are_added_up_to_the_largest_number() {
    let api = with_vms(0).await;
    for number in 1..=3 {
        api.write(&format!("/nodes/pvchv{number}/memtotal"), u64::MAX.to_string()).await;
    }
    for (id, delta) in [("A_FAULT", i64::MAX), ("B_FAULT", i64::MAX), ("C_FAULT", i64::MIN)] {
        api.write(&format!("/faults/{id}"), "").await;
        api.write(&format!("/faults/{id}/delta"), delta.to_string()).await;
    }
    let status = api.get("/status").await.ok();
    assert_eq!(status["resources"]["memory"]["total"], i64::MAX);
    assert_eq!(status["cluster_health"]["health"], 0);
}

#[tokio::test]
async fn faults_lower_the_clusters_health_until_somebody_acknowledges_them() {
    let api = with_vms(0).await;
    for (id, delta, at) in
        [("A_FAULT", "10", "2026-11-20 10:00:00"), ("B_FAULT", "25", "2026-11-20 09:00:00")]
    {
        api.with_fault(id, delta, at).await;
    }
    let status = api.get("/status").await.ok();
    assert_eq!(status["cluster_health"]["health"], 65);
    assert_eq!(status["cluster_health"]["messages"][0]["id"], "B_FAULT");
    assert_eq!(api.get("/faults").await.ok()[0]["id"], "A_FAULT");
    assert_eq!(api.get("/faults?sort_key=health_delta").await.ok()[1]["id"], "B_FAULT");
    assert!(api.get("/faults?sort_key=x").await.refused(400).starts_with("sort_key: "));

    assert_eq!(
        api.put("/faults/A_FAULT").await.ok()["message"],
        "fault `A_FAULT` was acknowledged"
    );
    let fault = api.get("/faults/A_FAULT").await.ok();
    assert_eq!(
        (&fault[0]["status"], fault[0]["acknowledged_at"].as_str().unwrap().len()),
        (&json!("ack"), 19)
    );
    assert_eq!(api.get("/status").await.ok()["cluster_health"]["health"], 75);
    api.delete("/faults/A_FAULT").await.ok();
    assert_eq!(api.get("/faults/A_FAULT").await.ok(), json!([]));
    assert_eq!(api.put("/faults/NONE").await.status, 404);
    assert_eq!(api.delete("/faults/NONE").await.status, 404);
    api.put("/faults").await.ok();
    assert_eq!(api.get("/status").await.ok()["cluster_health"]["health"], 100);
    api.delete("/faults").await.ok();
    assert_eq!(api.get("/faults").await.ok(), json!([]));
}

#[tokio::test]
async fn q31_primary_node_is_open_and_204_while_there_is_none() {
    let api = with_vms(0).await;
    let ask =
        || axum::http::Request::get("/api/v1/status/primary_node").body(Body::empty()).unwrap();
    assert_eq!(api.send(ask()).await.ok(), json!({"primary_node": "pvchv1"}));
    api.write("/config/primary_node", "none").await;
    let reply = api.send(ask()).await;
    assert!(reply.status == 204 && reply.body.is_empty());
    assert_eq!(api.get("/status").await.ok()["primary_node"], "none");
}

#[tokio::test]
async fn q22_metrics_answer_also_when_everything_is_missing() {
    for api in [empty().await, with_vms(5).await] {
        for path in ["/metrics", "/metrics/health", "/metrics/resource"] {
            let open =
                axum::http::Request::get(format!("/api/v1{path}")).body(Body::empty()).unwrap();
            let reply = api.send(open).await;
            assert_eq!(reply.status, 200);
            assert_eq!(reply.headers["content-type"], "text/plain; charset=utf-8");
        }
    }
    let mut dump = Shape::with_vms(1).dump();
    dump.insert("/ceph/osds/0".into(), String::new());
    dump.insert(
        "/ceph/osds/0/stats".into(),
        r#"{"up": 0, "in": 0, "utilization": "|", "kb": "|"}"#.into(),
    );
    let api = start(&dump, common::settings()).await;
    let text = api.get("/metrics").await.text();
    assert!(text.contains("pvc_ceph_osd_up_states{state=\"down\"} 1\n"), "{text}");
    assert_eq!(api.get("/status").await.ok()["osds"], json!({"total": 1, "down,out": 1}));
}

#[tokio::test]
async fn metrics_have_every_name_that_dashboards_know_and_no_sample_twice() {
    let mut dump = Shape::with_vms(3).dump();
    dump.insert("/ceph/osds/0".into(), String::new());
    dump.insert(
        "/ceph/osds/0/stats".into(),
        r#"{"up": 1, "in": 1, "kb": 1024, "wr_data": "94.3k"}"#.into(),
    );
    let api = start(&dump, common::settings()).await;
    let text = api.get("/metrics").await.text();
    for name in include_str!("metric-names.txt").split_whitespace() {
        assert!(text.contains(&format!("# TYPE {name} gauge\n")), "{name}");
    }
    let mut series: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|s| s.0)
        .collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all);
    assert!(
        text.contains("pvc_ceph_osd_size{osd=\"0\"} 1024\n")
            && text.contains("pvc_ceph_osd_size_bytes{osd=\"0\"} 1048576\n")
    );
}

#[tokio::test]
async fn figures_of_vms_are_what_the_shipped_dashboards_expect() {
    let mut dump = Shape::with_vms(1).dump();
    let root = dump
        .keys()
        .find(|key| key.ends_with("/failedreason"))
        .unwrap()
        .rsplit_once('/')
        .unwrap()
        .0
        .to_owned();
    let mut put =
        |key: &str, value: &str| drop(dump.insert(format!("{root}/{key}"), value.to_owned()));
    put("failedreason", "");
    put("node_limit", "");
    put("lastnode", "");
    put("node_selector", "none");
    put("migration_method", "");
    put(
        "stats",
        r#"{"cpu_stats": {"cpu_time": 9300000000, "user_time": 4000000, "system_time": 1500000}}"#,
    );
    let api = start(&dump, common::settings()).await;
    let text = api.get("/metrics").await.text();
    for line in [
        "pvc_vm_vcpus_cpu_time{vm=\"vm00000\"} 9300\n",
        "pvc_vm_vcpus_user_time{vm=\"vm00000\"} 4\n",
        "pvc_vm_vcpus_system_time{vm=\"vm00000\"} 1.5\n",
        "pvc_vm_vcpus_cpu_time_seconds{vm=\"vm00000\"} 9.3\n",
        "pvc_vm_failed_reason{vm=\"vm00000\",failed_reason=\"N/A\"} 1\n",
        "pvc_vm_node_limit{vm=\"vm00000\",node_limit=\"None\"} 1\n",
        "pvc_vm_node_selector{vm=\"vm00000\",node_selector=\"Default\"} 1\n",
        "pvc_vm_migration_method{vm=\"vm00000\",migration_method=\"Default\"} 1\n",
        "pvc_vm_migrated{vm=\"vm00000\",last_node=\"No\"} 0\n",
        "pvc_vm_disk_rd_req{vm=\"vm00000\",disk=\"sda\"} ",
        "pvc_vm_disk_source{vm=\"vm00000\",disk=\"sda\",source=\"vms/vm00000_sda\"} 1\n",
    ] {
        assert!(
            text.contains(line),
            "{line}: {}",
            text.lines()
                .filter(|have| have.starts_with(line.split('{').next().unwrap()))
                .collect::<String>()
        );
    }
}

#[tokio::test]
async fn a_packet_is_followed_to_its_end_and_what_makes_no_sense_is_refused() {
    let mut dump = Shape::with_vms(20).dump();
    for vni in 1000..1004 {
        let mut put = |key: &str, value: String| {
            drop(dump.insert(format!("/networks/{vni}/{key}"), value));
        };
        put("nettype", "managed".to_owned());
        put("ip4_network", format!("10.20.{}.0/24", vni - 1000));
        put("ip4_gateway", format!("10.20.{}.1", vni - 1000));
        put("firewall_rules/out/mail", String::new());
        put("firewall_rules/out/mail/order", "0".to_owned());
        put("firewall_rules/out/mail/rule", "tcp dport 25 drop".to_owned());
    }
    // The daemon is not of PVC 1.0.3, which has other rules: its note is of the same version.
    let note = json!({ "said_by": "1.0.3" }).to_string();
    for (key, value) in [("", ""), ("/nodes", ""), ("/nodes/pvchv1", &note)] {
        dump.insert(format!("/pvcrs{key}"), value.to_owned());
    }
    let upstream = Neighbour {
        network: "10.0.0.0/24".parse().unwrap(),
        name: "the upstream network".to_owned(),
    };
    let settings = ApiSettings { core_networks: vec![upstream], ..common::settings() };
    let api = start(&dump, settings).await;
    let vm = api.vm_in("start");
    let ask = |query: &str| format!("/vm/{vm}/trace?target={query}");

    let trace = api.get(&ask("198.51.100.1&protocol=tcp&port=80")).await.ok();
    assert_eq!((&trace["vm"], &trace["passes"]), (&json!(vm), &json!(true)));
    let way = &trace["there"];
    let steps = way["steps"].as_array().unwrap();
    assert_eq!(steps[0]["kind"], "interface");
    assert!(steps.iter().any(|step| step["kind"] == "gateway" && step["node"] == "pvchv1"));
    assert_eq!(
        way["end"],
        json!({"kind": "leaves", "text": "leaves pvchv1 by the upstream network",
               "node": "pvchv1", "arrives": true})
    );
    assert_eq!((&way["from"], &way["to"]), (&json!(null), &json!("198.51.100.1")));
    assert_eq!(trace["back"]["end"]["kind"], "vm");

    let trace = api.get(&ask("198.51.100.1&protocol=tcp&port=25")).await.ok();
    assert_eq!((&trace["passes"], &trace["back"]), (&json!(false), &json!(null)));
    let end = trace["there"]["end"]["text"].as_str().unwrap();
    assert!(end.starts_with("dropped on pvchv1 by rule `mail` (out 0) of network 100"), "{end}");
    let trace = api.get(&ask("198.51.100.1")).await.ok();
    assert_eq!(trace["passes"], false);
    assert!(trace["there"]["depends"][0].as_str().unwrap().contains("`mail`"), "{trace}");
    for vni in 1000..1004 {
        api.write(&format!("/networks/{vni}/firewall_rules/out/mail/rule"), "tcp dport 26 drop")
            .await;
    }
    let trace = api.get(&ask("198.51.100.1&protocol=tcp&port=25")).await.ok();
    assert_eq!(trace["passes"], true, "by the rules of now: {trace}");

    for (path, status, said) in [
        (ask("web.example"), 404, "`web.example` is neither an address nor a VM"),
        (ask("127.0.0.1"), 400, "the loopback"),
        (ask("198.51.100.1&network=x"), 400, "there is no network `x`"),
        (ask("198.51.100.1&protocol=sctp"), 400, "protocol"),
        (ask("198.51.100.1&protocol=tcp&port=0"), 400, "ports are 1 to 65535"),
        (ask("198.51.100.1&port=25"), 400, "a port is one of `tcp` or `udp`"),
        (format!("/vm/{vm}/trace"), 400, "target"),
        ("/vm/nothing/trace?target=198.51.100.1".to_owned(), 404, "there is no VM `nothing`"),
    ] {
        let refused = api.get(&path).await.refused(status);
        assert!(refused.contains(said), "{path}: {refused}");
    }
}

#[tokio::test]
async fn leases_and_rules_of_a_network_are_read_as_they_are_recorded() {
    let mut dump = Shape { seed: 1, nodes: 1, vms: 0, networks: 1, snapshots: 0 }.dump();
    let vni = dump
        .keys()
        .find_map(|key| key.strip_prefix("/networks/")?.split('/').next())
        .unwrap()
        .to_owned();
    let mut put = |key: &str, value: &str| {
        drop(dump.insert(format!("/networks/{vni}/{key}"), value.to_owned()))
    };
    for (key, value) in [
        ("dhcp4_leases/52:54:00:aa:bb:cc", ""),
        ("dhcp4_leases/52:54:00:aa:bb:cc/ipaddr", "10.100.1.101"),
        ("dhcp4_leases/52:54:00:aa:bb:cc/hostname", "web1"),
        ("dhcp4_leases/52:54:00:aa:bb:cc/expiry", "1731672000"),
        ("dhcp4_reservations/52:54:00:ff:00:01", "static"),
        ("dhcp4_reservations/52:54:00:ff:00:01/ipaddr", "10.100.1.50"),
        ("dhcp4_reservations/52:54:00:ff:00:01/hostname", ""),
        ("firewall_rules/in/last", ""),
        ("firewall_rules/in/last/order", "10"),
        ("firewall_rules/in/last/rule", "drop"),
        ("firewall_rules/in/allow-ssh", ""),
        ("firewall_rules/in/allow-ssh/order", "2"),
        ("firewall_rules/in/allow-ssh/rule", "tcp dport 22 accept"),
        ("firewall_rules/out/all", ""),
        ("firewall_rules/out/all/order", "0"),
        ("firewall_rules/out/all/rule", "accept"),
    ] {
        put(key, value);
    }
    dump.insert("/pvcrs/dhcp6_leases".to_owned(), String::new());
    dump.insert(format!("/pvcrs/dhcp6_leases/{vni}"), String::new());
    dump.insert(
        format!("/pvcrs/dhcp6_leases/{vni}/2001:db8::9"),
        r#"{"duid":"00:01","iaid":"7","mac":null,"hostname":"web6","expiry":1731672001}"#
            .to_owned(),
    );
    let api = start(&dump, common::settings()).await;
    let at = |rest: &str| format!("/network/{vni}/{rest}");
    let (reserved, given, of_ip6) = (
        json!({"hostname": "None", "ip4_address": "10.100.1.50",
               "mac_address": "52:54:00:ff:00:01", "ip6_address": null, "duid": null,
               "timestamp": "static"}),
        json!({"hostname": "web1", "ip4_address": "10.100.1.101",
               "mac_address": "52:54:00:aa:bb:cc", "ip6_address": null, "duid": null,
               "timestamp": "1731672000"}),
        json!({"hostname": "web6", "ip4_address": "", "mac_address": "",
               "ip6_address": "2001:db8::9", "duid": "00:01", "timestamp": "1731672001"}),
    );
    assert_eq!(api.get(&at("lease")).await.ok(), json!([reserved, given, of_ip6]));
    assert_eq!(api.get(&at("lease?static=true")).await.ok(), json!([reserved]));
    assert_eq!(api.get(&at("lease?limit=aa:bb")).await.ok(), json!([given]));
    assert_eq!(api.get(&at("lease/52:54:00:aa:bb:cc")).await.ok(), json!([given]));
    let names = |list: &serde_json::Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|acl| format!("{}:{}", acl["direction"], acl["description"]))
            .collect()
    };
    let all = api.get(&at("acl")).await.ok();
    assert_eq!(
        all[0],
        json!({"direction": "in", "order": 2, "description": "allow-ssh", "rule": "tcp dport 22 \
                                                                                   accept"})
    );
    assert_eq!(names(&all), ["\"in\":\"allow-ssh\"", "\"in\":\"last\"", "\"out\":\"all\""]);
    assert_eq!(names(&api.get(&at("acl?direction=out")).await.ok()), ["\"out\":\"all\""]);
    assert_eq!(names(&api.get(&at("acl?limit=ssh")).await.ok()), ["\"in\":\"allow-ssh\""]);
    assert_eq!(names(&api.get(&at("acl/allow-ssh")).await.ok()), ["\"in\":\"allow-ssh\""]);
    assert_eq!(api.get("/network/nothing/acl").await.refused(400), "there is no network `nothing`");
}

#[tokio::test]
async fn pools_are_listed_by_cephs_number_and_those_without_one_first() {
    let mut dump = Shape::with_vms(0).dump();
    dump.retain(|key, _| !key.starts_with("/ceph/pools/"));
    for (name, stats) in [("aaa", r#"{"id": 12}"#), ("vms", r#"{"id": 2}"#), ("new", "{}")] {
        dump.insert(format!("/ceph/pools/{name}"), String::new());
        dump.insert(format!("/ceph/pools/{name}/stats"), stats.to_owned());
    }
    let api = start(&dump, common::settings()).await;
    let list = api.get("/storage/ceph/pool").await.ok();
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|pool| pool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["new", "vms", "aaa"]);
}

#[tokio::test]
async fn the_storage_reports_on_itself_in_the_words_that_the_primary_has_collected() {
    let mut dump = Shape::with_vms(0).dump();
    dump.remove("/config/primary_node");
    dump.remove("/ceph");
    let api = start(&dump, common::settings()).await;
    let nothing = json!({"type": "status", "primary_node": "none", "ceph_data": "",
        "answered_at": null});
    assert_eq!(api.get("/storage/ceph/status").await.ok(), nothing);

    let api = with_vms(1).await;
    api.write("/config/primary_node", "hv2").await;
    api.write("/ceph", "  cluster:\n    health: HEALTH_OK\n \n").await;
    api.write("/ceph/util", "--- RAW STORAGE ---\nCLASS  SIZE\n").await;
    let answered = r#"{"node":"hv2","answered":{"status":1795735755,"pools":1795735700}}"#;
    api.write("/pvcrs/storage_answered", answered).await;
    let of_status = json!({
        "type": "status", "primary_node": "hv2", "ceph_data": "  cluster:\n    health: HEALTH_OK",
        "answered_at": 1_795_735_755
    });
    assert_eq!(api.get("/storage/ceph/status").await.ok(), of_status);
    let usage = json!({
        "type": "utilization",
        "primary_node": "hv2",
        "ceph_data": "--- RAW STORAGE ---\nCLASS  SIZE",
        "answered_at": null
    });
    assert_eq!(api.get("/storage/ceph/utilization").await.ok(), usage);
    let pools = async || api.get("/storage/ceph/pool").await.ok()[0]["answered_at"].clone();
    assert_eq!(pools().await, 1_795_735_700);
    api.write("/config/primary_node", "legacy").await;
    assert_eq!(pools().await, json!(null), "what another collects since is not as old");
}

#[tokio::test]
async fn pools_say_how_full_they_become_and_how_far_they_are_over_committed() {
    const GIB: u64 = 1 << 30;
    let api = with_vms(0).await;
    let stats = json!({"id": 2, "stored_bytes": 600 * GIB, "free_bytes": 400 * GIB}).to_string();
    api.write("/ceph/pools/vms/stats", stats).await;
    let fullness = async || api.get("/storage/ceph/fullness").await.ok()[0].clone();
    let pool = fullness().await;
    assert_eq!(pool["used_percent"], 60.0);
    assert_eq!((&pool["volumes"], &pool["overcommitted_bytes"]), (&json!(0), &json!(0)));
    assert_eq!((&pool["growth_bytes_per_day"], &pool["full_in"]), (&json!(null), &json!(null)));

    // As records of ours, of a legacy peer, and of nobody who can be understood.
    for (volume, stats) in [
        ("a", json!({"size": 700 * GIB}).to_string()),
        ("b", r#"{"size": "500G"}"#.to_owned()),
        ("c", r#"{"size": "much"}"#.to_owned()),
    ] {
        api.write(&format!("/ceph/volumes/vms/{volume}/stats"), stats).await;
    }
    // 24 GiB a day, in each hour of a week.
    let sample = |hour: u64| json!([hour * 3600, (432 + hour) * GIB, (568 - hour) * GIB]);
    let samples: Vec<Value> = (0..=168).map(sample).collect();
    let record = json!({"ratios": [0.8, 0.9, 1.0], "samples": samples}).to_string();
    api.write("/pvcrs/fullness/vms", record).await;
    let pool = fullness().await;
    assert_eq!((&pool["pool"], &pool["state"]), (&json!("vms"), &json!("ok")));
    assert_eq!((&pool["volumes"], &pool["provisioned_bytes"]), (&json!(3), &json!(1200 * GIB)));
    assert_eq!(pool["overcommitted_bytes"], 200 * GIB);
    assert_eq!((&pool["nearfull_ratio"], &pool["history_seconds"]), (&json!(0.8), &json!(604_800)));
    let near = |member: &str, expected: f64| {
        let found = pool[member].as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 0.001, "{member}: {found}");
    };
    near("growth_bytes_per_day", (24 * GIB) as f64);
    near("nearfull_in", 200.0 * 3600.0);
    near("full_in", 400.0 * 3600.0);
}

#[tokio::test]
async fn pools_say_which_snapshots_hold_the_most_and_what_is_not_known() {
    let api = with_vms(0).await;
    let fullness = async || api.get("/storage/ceph/fullness").await.ok()[0].clone();
    for volume in ["a", "b"] {
        api.write(&format!("/ceph/volumes/vms/{volume}/stats"), r#"{"size": 5}"#.to_owned()).await;
        api.write(&format!("/ceph/snapshots/vms/{volume}/s/stats"), "{}".to_owned()).await;
    }
    let pool = fullness().await;
    let unseen = (&pool["largest_snapshots"], &pool["snapshots_looked_at"]);
    assert_eq!(unseen, (&json!([]), &json!(null)));
    assert_eq!((&pool["snapshots_unknown"], &pool["snapshots"]), (&json!(null), &json!(2)));

    let seen = |volume: &str, snapshot: &str, held: u64, own: Value| {
        json!({
            "volume": volume, "snapshot": snapshot, "held": held, "own": own, "at": 40,
        })
    };
    let largest = [
        seen("gone", "s", 9, json!(9)),
        seen("a", "gone", 8, json!(8)),
        seen("b", "s", 7, json!(null)),
        seen("b", "pvc-clone-0123456789abcdef", 6, json!(0)),
    ];
    let record = json!({"at": 50, "unknown": 1, "largest": largest}).to_string();
    api.write("/pvcrs/snapshot-usage/vms", record).await;
    let pool = fullness().await;
    let shown = |snapshot: &str, bytes: u64, own_bytes: Value| {
        json!({
            "volume": "b", "snapshot": snapshot, "bytes": bytes, "own_bytes": own_bytes,
            "looked_at": 40,
        })
    };
    let expected =
        json!([shown("s", 7, json!(null)), shown("pvc-clone-0123456789abcdef", 6, json!(0))]);
    assert_eq!(pool["largest_snapshots"], expected, "without those that are gone");
    let looked = (&pool["snapshots_looked_at"], &pool["snapshots_unknown"]);
    assert_eq!(looked, (&json!(50), &json!(1)));
}

#[tokio::test]
async fn only_a_storage_that_is_near_is_looked_at_for_a_volume_that_no_record_tells_of() {
    for (storage_is_near, status) in [(true, 200), (false, 404)] {
        let settings = pvc_api::ApiSettings { storage_is_near, ..common::settings() };
        let api = start(&Shape::with_vms(1).dump(), settings).await;
        let id = pvc_model::storage::VolumeId::from_record("vms/extra").unwrap();
        let storage: &dyn pvc_ports::Storage = api.storage.as_ref();
        // The pool may be there already.
        let _ = storage.create_pool(&id.pool).await;
        storage.create(&id, 1 << 20, false).await.unwrap();
        assert_eq!(api.get("/storage/ceph/volume/vms/extra").await.status, status);
        assert_eq!(api.get("/storage/ceph/volume/vms/nothing").await.status, 404);
    }
}

#[tokio::test]
async fn a_reply_that_the_client_has_is_not_sent_again() {
    let api = with_vms(5).await;
    for path in ["/vm", "/vm/vm00001", "/node", "/status", "/network"] {
        let first = api.get(path).await;
        let tag = first.headers["etag"].clone();
        let again =
            request(Method::GET, path).header("If-None-Match", &tag).body(Body::empty()).unwrap();
        let reply = api.send(again).await;
        assert_eq!((reply.status.as_u16(), reply.body.len()), (304, 0), "{path}");
        assert_eq!(reply.headers["etag"], tag);
    }
    let tag = api.get("/vm").await.headers["etag"].clone();
    api.write(&format!("/domains/{}/state", api.uuid("vm00001")), "fail").await;
    let again =
        request(Method::GET, "/vm").header("If-None-Match", &tag).body(Body::empty()).unwrap();
    assert_eq!(api.send(again).await.status, 200);
}

#[tokio::test]
async fn snapshots_show_their_age_and_how_their_definition_differs() {
    let shape = Shape { snapshots: 2, ..Shape::with_vms(2) };
    let mut dump = shape.dump();
    for (key, value) in &mut dump {
        if key.ends_with("/snapshots/s0/xml") {
            *value = value.replace("Made-up VM", "Another \"age\":-9223372036854775808 text");
        }
    }
    let api = start(&dump, common::settings()).await;
    let vm = &api.get("/vm/vm00000").await.ok()[0];
    let snapshots = vm["snapshots"].as_array().unwrap();
    assert_eq!(
        (snapshots[0]["name"].as_str(), snapshots[1]["name"].as_str()),
        (Some("s1"), Some("s0"))
    );
    let age = snapshots[0]["age"].as_i64().unwrap();
    assert!((95_000_000..96_000_000).contains(&age), "{age}");
    assert_eq!(snapshots[0]["xml_diff_lines"], json!([]));
    assert_eq!(snapshots[1]["xml_diff_lines"][0], "--- current");
    assert!(snapshots[1]["xml_diff_lines"].to_string().contains("Another"));
    assert_eq!(snapshots[1]["rbd_snapshots"], json!(["vms/vm00000_sda@s0"]));
}

#[tokio::test]
async fn a_long_list_is_sent_in_pieces_and_is_as_long_as_announced() {
    let api =
        start(&Shape { snapshots: 3, ..Shape::with_vms(400) }.dump(), common::settings()).await;
    let mut sizes = Vec::new();
    for query in ["", "?limit=vm0000", "?limit=vm00007", "?limit=none"] {
        let reply = api.get(&format!("/vm{query}")).await;
        assert_eq!(
            reply.headers["content-length"],
            reply.body.len().to_string().as_str(),
            "{query}"
        );
        sizes.push(reply.ok().as_array().unwrap().len());
    }
    assert_eq!(sizes, [400, 10, 1, 0]);
    assert!(api.get("/vm").await.body.len() > 1 << 20);
}
