//! Contract of every [`Firewall`], on a machine (or a network namespace) with nothing to lose.

use std::net::IpAddr;
use std::sync::Arc;

use pvc_model::firewall::{TableFamily, TableName};
use pvc_model::host_filter::HostFilter;
use pvc_model::link::IpNet;
use pvc_ports::{Firewall, FirewallError};

/// Environment that the suite needs from whoever runs it.
pub struct FirewallFixture {
    pub firewall: Arc<dyn Firewall>,
    /// Shows every table of this machine. There is at least one, and none of them is PVC's.
    pub tables: Box<dyn Fn() -> String + Send + Sync>,
    /// Rules that stay in their table, and that the kernel refuses.
    pub refused: String,
}

/// Runs the whole suite.
///
/// # Panics
/// When the firewall breaks the contract.
pub async fn firewall_contract(fixture: FirewallFixture) {
    let foreign = (fixture.tables)();
    assert!(!foreign.is_empty(), "there is a table to be left alone");
    fixture.a_table_is_replaced_whole_and_removed().await;
    fixture.two_tables_are_apart().await;
    fixture.what_is_refused_leaves_the_table_as_it_was().await;
    fixture.what_is_only_checked_is_not_loaded().await;
    fixture.rules_that_leave_their_table_are_not_taken().await;
    let had_old_rules = fixture.firewall.remove_old_rules().await.expect("there is nothing to do");
    assert!(!had_old_rules, "PVC 1.0.3 was never here");
    assert_eq!((fixture.tables)(), foreign, "tables of others stay as they are");
}

fn table(family: TableFamily, name: &str) -> TableName {
    TableName::new(family, name).expect("a name of ours")
}

fn hosts() -> TableName {
    table(TableFamily::Inet, "pvc-contract")
}

/// The rules of a filter for nodes at these addresses.
fn rules(nodes: &[[u8; 4]]) -> String {
    let nodes = nodes.iter().map(|node| IpNet::from(IpAddr::from(*node))).collect();
    HostFilter::new(nodes, [].into(), [2181]).expect("there are nodes").rules()
}

impl FirewallFixture {
    async fn shown(&self, table: &TableName) -> Option<String> {
        self.firewall.table(table).await.expect("a table can be looked at")
    }

    async fn apply(&self, table: &TableName, rules: Option<&str>) {
        self.firewall.apply(table, rules).await.expect("the rules are taken");
    }

    async fn a_table_is_replaced_whole_and_removed(&self) {
        let hosts = hosts();
        assert_eq!(self.shown(&hosts).await, None, "nothing is filtered that nobody asked for");
        self.apply(&hosts, None).await;
        self.apply(&hosts, Some(&rules(&[[10, 0, 1, 1]]))).await;
        let first = self.shown(&hosts).await;
        assert!(first.is_some());
        assert_eq!(self.shown(&hosts).await, first, "what is the same looks the same");
        self.apply(&hosts, Some(&rules(&[[10, 0, 1, 1], [10, 0, 1, 2]]))).await;
        assert_ne!(self.shown(&hosts).await, first);
        self.apply(&hosts, Some(&rules(&[[10, 0, 1, 1]]))).await;
        assert_eq!(self.shown(&hosts).await, first, "nothing of another one is left");
        for _ in 0..2 {
            self.apply(&hosts, None).await;
            assert_eq!(self.shown(&hosts).await, None);
        }
    }

    async fn two_tables_are_apart(&self) {
        let (hosts, guests) = (hosts(), table(TableFamily::Bridge, "pvc-contract"));
        self.apply(&hosts, Some(&rules(&[[10, 0, 1, 1]]))).await;
        let first = self.shown(&hosts).await;
        self.apply(&guests, Some("chain guard {\n\tcounter accept\n}")).await;
        assert_ne!(self.shown(&guests).await, None);
        assert_eq!(self.shown(&hosts).await, first);
        self.apply(&guests, None).await;
        assert_eq!(self.shown(&guests).await, None);
        assert_eq!(self.shown(&hosts).await, first);
    }

    async fn what_is_refused_leaves_the_table_as_it_was(&self) {
        let hosts = hosts();
        let before = self.shown(&hosts).await;
        assert!(before.is_some());
        let error =
            self.firewall.apply(&hosts, Some(&self.refused)).await.expect_err("it is refused");
        assert!(matches!(&error, FirewallError::Refused { why, .. } if !why.is_empty()), "{error}");
        assert_eq!(self.shown(&hosts).await, before);
    }

    async fn what_is_only_checked_is_not_loaded(&self) {
        let hosts = hosts();
        let before = self.shown(&hosts).await;
        let other = rules(&[[10, 0, 9, 9]]);
        self.firewall.check(&hosts, &other).await.expect("it would be taken");
        let error = self.firewall.check(&hosts, &self.refused).await.expect_err("it is refused");
        assert!(matches!(error, FirewallError::Refused { .. }), "{error}");
        assert_eq!(self.shown(&hosts).await, before);
    }

    async fn rules_that_leave_their_table_are_not_taken(&self) {
        let hosts = hosts();
        let before = self.shown(&hosts).await;
        for bad in [
            "}\nflush ruleset\ntable inet pvc-contract {",
            "chain c { } }; delete table inet pvc-contract; table inet pvc-other { chain d { }",
            "include \"/etc/nftables.conf\"",
        ] {
            let error = self.firewall.apply(&hosts, Some(bad)).await.expect_err("it goes too far");
            assert!(matches!(error, FirewallError::BadRules { .. }), "{error}");
            assert!(self.firewall.check(&hosts, bad).await.is_err(), "{bad}");
        }
        assert_eq!(self.shown(&hosts).await, before);
        self.apply(&hosts, None).await;
    }
}
