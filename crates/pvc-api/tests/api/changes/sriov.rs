//! SR-IOV cards and their functions.

use pvc_model::sriov::{PciTexts, PfRecord, VfConfig, VfRecord};
use pvc_store::Change;

use super::*;

fn config() -> VfConfig {
    let text = |text: &str| text.to_owned();
    VfConfig {
        vlan_id: text("0"),
        vlan_qos: text("0"),
        tx_rate_min: text("0"),
        tx_rate_max: text("0"),
        spoof_check: text("True"),
        link_state: text("auto"),
        trust: text("False"),
        query_rss: text("False"),
    }
}

impl Api {
    /// Gives node `pvchv1` the card `ens1f1` with the functions `ens1f1v2` and `ens1f1v10`, as its
    /// daemon does.
    pub async fn with_cards(&self) {
        let changed = self.store.change(|_| {
            let mut changes = Changes::new();
            let (name, mtu) = ("ens1f1".to_owned(), "9000".to_owned());
            let pf = PfRecord { name, mtu, vfcount: "2".to_owned() };
            changes.push(Change::PutPf("pvchv1".into(), pf));
            for index in [10, 2] {
                let vf = VfRecord {
                    name: format!("ens1f1v{index}"),
                    pf: "ens1f1".to_owned(),
                    mtu: "9000".to_owned(),
                    mac: format!("02:00:00:00:00:{index:02}"),
                    phy_mac: format!("02:00:00:00:00:{index:02}"),
                    config: config(),
                    pci: PciTexts {
                        domain: "0000".to_owned(),
                        bus: "3b".to_owned(),
                        slot: "0a".to_owned(),
                        function: "2".to_owned(),
                    },
                    ..VfRecord::default()
                };
                changes.push(Change::PutVf("pvchv1".into(), Box::new(vf)));
            }
            Ok::<_, std::convert::Infallible>((changes, ()))
        });
        changed.await.unwrap();
    }
}

#[tokio::test]
async fn cards_and_functions_are_shown_as_pvc_1_0_3_shows_them() {
    let api = with_vms(1).await;
    assert_eq!(api.get("/sriov").await.ok(), json!(null));
    assert_eq!(api.get("/sriov/pf/pvchv1").await.ok(), json!([]), "it has none");
    api.with_cards().await;
    let cards = json!([{"phy": "ens1f1", "mtu": "9000", "vfs": ["ens1f1v2", "ens1f1v10"]}]);
    assert_eq!(api.get("/sriov/pf?node=pvchv1").await.ok(), cards);
    assert_eq!(api.get("/sriov/pf/pvchv1").await.ok(), cards);
    let function = json!({
        "phy": "ens1f1v2", "pf": "ens1f1", "mtu": "9000", "mac": "02:00:00:00:00:02",
        "config": {"vlan_id": "0", "vlan_qos": "0", "tx_rate_min": "0", "tx_rate_max": "0",
                   "link_state": "auto", "spoof_check": "True", "trust": "False",
                   "query_rss": "False"},
        "pci": {"domain": "0000", "bus": "3b", "slot": "0a", "function": "2"},
        "usage": {"used": "False", "domain": ""},
    });
    for path in ["/sriov/vf?node=pvchv1", "/sriov/vf/pvchv1", "/sriov/vf/pvchv1?pf=ens1f1"] {
        let all = api.get(path).await.ok();
        assert_eq!((&all[0], all.as_array().unwrap().len()), (&function, 2), "{path}");
    }
    assert_eq!(api.get("/sriov/vf/pvchv1/ens1f1v2").await.ok(), json!([function]));
    assert_eq!(api.get("/sriov/vf/pvchv1?pf=ens1f0").await.ok(), json!([]));
}

#[tokio::test]
async fn q36_an_unknown_node_or_function_is_a_mistake_and_no_failure() {
    let api = with_vms(1).await;
    api.with_cards().await;
    for path in ["/sriov/pf", "/sriov/vf", "/sriov/pf?node=nowhere", "/sriov/pf/nowhere"] {
        api.get(path).await.refused(400);
    }
    for path in ["/sriov/vf?node=nowhere", "/sriov/vf/nowhere"] {
        assert_eq!(api.get(path).await.refused(400), "there is no node `nowhere`");
    }
    api.get("/sriov/vf/nowhere/ens1f1v2").await.refused(404);
    let words = api.get("/sriov/vf/pvchv1/ens1f1v3").await.refused(404);
    assert_eq!(words, "node `pvchv1` has no SR-IOV function `ens1f1v3`");
    api.put("/sriov/vf/nowhere/ens1f1v2?trust=true").await.refused(404);
    api.put("/sriov/vf/pvchv1/ens1f1v3?trust=true").await.refused(404);
    api.put("/sriov/vf/pvchv1/..%2Fens1f1?trust=true").await.refused(404);
}

#[tokio::test]
async fn settings_are_changed_one_by_one_and_what_cannot_be_is_refused() {
    let api = with_vms(1).await;
    api.with_cards().await;
    let path = "/sriov/vf/pvchv1/ens1f1v2";
    for given in [
        "",
        "vlan_id=4096",
        "vlan_id=-1",
        "vlan_id=abc",
        "vlan_qos=8",
        "tx_rate_min=10&tx_rate_max=5",
        "tx_rate_max=1000000000000",
        "link_state=up",
        "trust=maybe&link_state=",
    ] {
        api.put(&format!("{path}?{given}")).await.refused(400);
    }
    assert_eq!(api.get(path).await.ok()[0]["config"]["vlan_id"], "0", "nothing was changed");
    let tried = api.put(&format!("{path}?vlan_id=100&dry_run=true")).await.ok();
    assert!(tried["message"].as_str().unwrap().starts_with("nothing was changed"), "{tried}");
    assert_eq!(api.get(path).await.ok()[0]["config"]["vlan_id"], "0");
    let done = api.put(&format!("{path}?vlan_id=100&vlan_qos=7&link_state=enable")).await.ok();
    assert_eq!(done["message"], "Changed SR-IOV function ens1f1v2 of node pvchv1.");
    api.put(&format!("{path}?trust=yes&spoof_check=off&tx_rate_max=1000")).await.ok();
    let expected = json!({
        "vlan_id": "100", "vlan_qos": "7", "tx_rate_min": "0", "tx_rate_max": "1000",
        "link_state": "enable", "spoof_check": "False", "trust": "True", "query_rss": "False",
    });
    assert_eq!(api.get(path).await.ok()[0]["config"], expected);
    assert_eq!(api.get("/sriov/vf/pvchv1/ens1f1v10").await.ok()[0]["config"]["vlan_id"], "0");
}
