//! Lists that scripts of the provisioner ask for, as the API answers them.

use pvc_model::cluster::Cluster;
use pvc_model::storage::PoolName;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::limit::Limit;
use crate::view;

type Found = std::result::Result<Value, String>;

/// Answer to a call of `daemon_lib`; `None` if it asks for no list.
///
/// # Errors
/// The reason why there is none, for the script.
pub fn script_list(
    cluster: &Cluster,
    function: &str,
    arguments: &Map<String, Value>,
) -> Option<Found> {
    let asked = Asked { cluster, arguments };
    Some(match function {
        "ceph.get_list_pool" => asked.pools(),
        "ceph.get_list_volume" => asked.volumes(),
        "ceph.get_list_snapshot" => asked.snapshots(),
        "ceph.get_list_osd" => asked.osds(),
        "vm.get_list" => asked.vms(),
        "vm.get_info" => asked.vm(),
        "network.get_list" => asked.networks(),
        "network.get_info" => asked.network(),
        "node.get_list" => asked.nodes(),
        "node.get_info" => asked.node(),
        _ => return None,
    })
}

struct Asked<'a> {
    cluster: &'a Cluster,
    arguments: &'a Map<String, Value>,
}

fn list<T: Serialize>(found: Vec<T>) -> Found {
    serde_json::to_value(found).map_err(|error| error.to_string())
}

fn one<T: Serialize>(found: Option<T>, what: &str, name: &str) -> Found {
    let found = found.ok_or_else(|| format!("there is no {what} `{}`", pvc_model::shown(name)))?;
    serde_json::to_value(found).map_err(|error| error.to_string())
}

impl Asked<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.arguments.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    fn needed(&self, name: &str) -> std::result::Result<&str, String> {
        self.text(name).ok_or_else(|| format!("the argument `{name}` is no text"))
    }

    /// Pattern of the names that are wanted: a part of them, or the whole if it is not `is_fuzzy`.
    fn limit(&self) -> std::result::Result<Limit, String> {
        let is_fuzzy = self.arguments.get("is_fuzzy").and_then(Value::as_bool).unwrap_or(true);
        let text = self.text("limit").map(|text| match is_fuzzy {
            true => text.to_owned(),
            false => format!("^{}$", text.trim_start_matches('^').trim_end_matches('$')),
        });
        Limit::new(text.as_deref()).map_err(|_| "`limit` is no pattern".to_owned())
    }

    fn is_of_pool(&self, pool: &PoolName) -> bool {
        self.text("pool").is_none_or(|only| pool.as_str() == only)
    }

    fn pools(&self) -> Found {
        let limit = self.limit()?;
        let pools = self.cluster.pools.values().filter(|pool| limit.matches(pool.name.as_str()));
        list(pools.map(|pool| view::storage::pool(pool, self.cluster)).collect())
    }

    fn volumes(&self) -> Found {
        let limit = self.limit()?;
        let volumes = self
            .cluster
            .volumes
            .iter()
            .filter(|(id, _)| self.is_of_pool(&id.pool) && limit.matches(id.volume.as_str()));
        list(volumes.map(|(_, volume)| view::storage::volume(volume)).collect())
    }

    fn snapshots(&self) -> Found {
        let limit = self.limit()?;
        let volumes = self.cluster.volumes.values().filter(|volume| {
            let is_meant = |only: &str| volume.id.volume.as_str() == only;
            self.is_of_pool(&volume.id.pool) && self.text("volume").is_none_or(is_meant)
        });
        let mut found = Vec::new();
        for volume in volumes {
            for (name, text) in &volume.snapshots {
                if limit.matches(name.as_str()) {
                    found.push(view::storage::snapshot(&volume.id, name, text));
                }
            }
        }
        list(found)
    }

    fn osds(&self) -> Found {
        let limit = self.limit()?;
        let osds = self.cluster.osds.values().filter(|osd| limit.matches(&osd.id));
        list(osds.map(|osd| view::osd::osd(osd, self.cluster)).collect())
    }

    fn vms(&self) -> Found {
        let limit = self.limit()?;
        let is_negated = self.arguments.get("negate").and_then(Value::as_bool).unwrap_or(false);
        let is = |wanted: Option<&str>, found: &str| wanted.is_none_or(|wanted| wanted == found);
        let vms = self.cluster.vms.values().filter(|vm| {
            let node = vm.node.as_ref().map(ToString::to_string).unwrap_or_default();
            let tagged = |tag: &str| vm.tags.iter().any(|had| had.name == tag);
            let is_meant = is(self.text("node"), &node)
                && is(self.text("state"), vm.state.as_str())
                && self.text("tag").is_none_or(tagged);
            limit.matches(&vm.name) && is_meant != is_negated
        });
        let mut found: Vec<_> = vms.map(|vm| view::vm::vm_without_texts(vm)).collect();
        found.sort_by(|one, other| one.name.cmp(&other.name));
        list(found)
    }

    fn vm(&self) -> Found {
        let name = self.needed("domain")?;
        one(self.cluster.vm(name).map(|vm| view::vm::vm_without_texts(vm)), "VM", name)
    }

    fn networks(&self) -> Found {
        let limit = self.limit()?;
        let networks =
            self.cluster.networks.values().filter(|network| {
                limit.matches(&network.vni) || limit.matches(&network.description)
            });
        list(networks.filter_map(|network| view::network::network(self.cluster, network)).collect())
    }

    fn network(&self) -> Found {
        let name = self.needed("network")?;
        let found = self.cluster.network(name);
        let found = found.and_then(|network| view::network::network(self.cluster, network));
        one(found, "network", name)
    }

    fn nodes(&self) -> Found {
        let limit = self.limit()?;
        let nodes = self.cluster.nodes.values().filter(|node| limit.matches(node.name.as_str()));
        list(nodes.map(|node| view::node::node(node, self.cluster)).collect())
    }

    fn node(&self) -> Found {
        let name = self.needed("node")?;
        one(self.cluster.node(name).map(|node| view::node::node(node, self.cluster)), "node", name)
    }
}

#[cfg(test)]
mod tests {
    use pvc_store::synthetic::Shape;
    use serde_json::json;

    use super::*;

    fn asked(cluster: &Cluster, function: &str, arguments: Value) -> Option<Found> {
        script_list(cluster, function, arguments.as_object().expect("an object"))
    }

    #[tokio::test]
    async fn scripts_get_lists_as_the_api_answers_them() {
        let tree = pvc_embedded::EmbeddedTree::in_memory();
        let (clock, random) = (pvc_testkit::TokioClock::new(), pvc_testkit::SeededRandom::new(1));
        let (clock, random) = (std::sync::Arc::new(clock), std::sync::Arc::new(random));
        let store = pvc_store::Store::open(tree.connect(), clock, random).await.expect("empty");
        store.load(&Shape::with_vms(3).dump()).await.expect("it is whole");
        let view = store.fresh().await.expect("it can be read");
        let names = |function: &str, arguments: Value| {
            let found = asked(&view, function, arguments).expect("a list").expect("it is had");
            let found = found.as_array().expect("a list").clone();
            found.iter().map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let all: Vec<String> = names("vm.get_list", json!({}));
        assert_eq!(all, ["vm00000", "vm00001", "vm00002"]);
        let part: Vec<String> = names("vm.get_list", json!({"limit": "0001"}));
        assert_eq!(part, ["vm00001"]);
        let whole: Vec<String> = names("vm.get_list", json!({"limit": "0001", "is_fuzzy": false}));
        assert_eq!(whole, Vec::<String>::new());
        let none: Vec<String> = names("vm.get_list", json!({"state": "nowhere", "negate": true}));
        assert_eq!(none.len(), 3);
        let one = asked(&view, "vm.get_info", json!({"domain": "vm00002"})).expect("known");
        assert_eq!(one.expect("it is there")["name"], "vm00002");
        let missing = asked(&view, "node.get_info", json!({"node": "nowhere"})).expect("known");
        assert_eq!(missing.expect_err("there is none"), "there is no node `nowhere`");
        let nodes: Vec<String> = names("node.get_list", json!({}));
        assert_eq!(nodes.len(), view.nodes.len());
        assert!(asked(&view, "zk.write", json!({})).is_none());
    }
}
