//! Contract of every [`Sriov`], on a machine (or a network namespace) with nothing to lose.
//!
//! No machine of ours has such a card: on the real thing it shows what is said of interfaces that
//! are none. The rest is kept by the double alone.

use std::sync::Arc;

use pvc_model::sriov::plan::CardSeen;
use pvc_model::sriov::settings::{VfLinkState, VfSetting};
use pvc_ports::{NetworkError, Sriov};

/// Things that the suite needs from whoever runs it.
pub struct SriovFixture {
    /// An interface that is of no such card.
    pub ordinary: String,
    /// A card with no functions yet, and the most that it can have: two or more. `None` where there
    /// is none.
    pub card: Option<(String, u32)>,
}

/// Runs the whole suite.
///
/// # Panics
/// When the cards break the contract.
pub async fn sriov_contract(sriov: Arc<dyn Sriov>, fixture: SriovFixture) {
    let SriovFixture { ordinary, card } = fixture;
    an_interface_that_is_none_or_of_no_card_has_no_functions(&*sriov, &ordinary).await;
    if let Some((card, most)) = card {
        functions_are_made_once_and_set(&*sriov, &card, most).await;
    }
}

async fn seen(sriov: &dyn Sriov, card: &str) -> Option<CardSeen> {
    sriov.card(card).await.expect("a card can be looked at")
}

async fn an_interface_that_is_none_or_of_no_card_has_no_functions(
    sriov: &dyn Sriov,
    ordinary: &str,
) {
    for nothing in ["contract9", "../etc", "", "a/b"] {
        assert_eq!(seen(sriov, nothing).await, None, "{nothing}");
        let error = sriov.make_functions(nothing, 1).await.expect_err("there is none");
        assert!(matches!(&error, NetworkError::NoLink { .. }), "{nothing}: {error}");
        let set = sriov.set_function(nothing, 0, &VfSetting::Trust(true)).await;
        assert!(set.is_err(), "{nothing}");
    }
    assert_eq!(seen(sriov, ordinary).await, Some(CardSeen::default()));
    let error = sriov.make_functions(ordinary, 1).await.expect_err("it can have none");
    assert!(matches!(&error, NetworkError::Unsupported { .. }), "{error}");
    let error = sriov.set_function(ordinary, 0, &VfSetting::Trust(true)).await;
    let error = error.expect_err("it has none");
    assert!(matches!(&error, NetworkError::Refused { .. }), "{error}");
}

async fn functions_are_made_once_and_set(sriov: &dyn Sriov, card: &str, most: u32) {
    let known = async || seen(sriov, card).await.expect("it is there");
    assert_eq!((known().await.most_functions, known().await.functions.len()), (most, 0));
    for _ in 0..2 {
        sriov.make_functions(card, 2).await.expect("it can have two");
        let found = known().await;
        let indices: Vec<u32> = found.functions.iter().map(|function| function.index).collect();
        assert_eq!(indices, [0, 1]);
        let [first, second] = &found.functions[..] else { panic!("{found:?}") };
        assert!(first.pci != second.pci && first.link != second.link, "{found:?}");
        assert!(first.link.is_some() && second.link.is_some(), "no guest has one");
    }
    for setting in [
        VfSetting::Vlan { id: 100, qos: 3 },
        VfSetting::Rates { min: 0, max: 1000 },
        VfSetting::SpoofCheck(false),
        VfSetting::LinkState(VfLinkState::Disable),
        VfSetting::Trust(true),
        VfSetting::QueryRss(true),
    ] {
        sriov.set_function(card, 1, &setting).await.expect("it can be set");
    }
    let functions = known().await.functions;
    let set = &functions[1].settings;
    assert_eq!((set.vlan, set.rates), (Some((100, 3)), Some((0, 1000))));
    assert_eq!((set.spoof_check, set.trust, set.query_rss), (Some(false), Some(true), Some(true)));
    assert_eq!(set.link_state, Some(VfLinkState::Disable));
    assert_ne!(functions[0].settings, *set, "the other one is as it was");
    let absent = sriov.set_function(card, 2, &VfSetting::Trust(true)).await;
    absent.expect_err("there is no such function");
    sriov.make_functions(card, most + 1).await.expect_err("it cannot have as many");
    assert_eq!(known().await.functions.len(), 2, "it keeps those that it has");
    for other in [1, 0] {
        let refused = sriov.make_functions(card, other).await;
        let refused = refused.expect_err("somebody may use those that it has");
        assert!(matches!(&refused, NetworkError::Refused { .. }), "{refused}");
    }
    assert_eq!(known().await.functions.len(), 2);
}
