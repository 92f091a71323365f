//! The words of parameters against those of the records that they stand for.

use pvc_api_types::operations::network::Way;
use pvc_api_types::operations::provisioner::{
    SystemTemplateAddition, SystemTemplateChange, SystemTemplateNew,
};
use pvc_api_types::operations::sriov::LinkStateWord;
use pvc_api_types::operations::storage::{CompressionWord, ImageFormatWord, TierWord};
use pvc_api_types::operations::vm::{
    ListedState, MethodWord, SelectorWord, StateWord, TraceProtocol,
};
use pvc_api_types::param::{Choice, Parameters as _};
use pvc_model::disk_image::{Compression, DiskFormat};
use pvc_model::guest_network::trace::Protocol;
use pvc_model::network::Direction;
use pvc_model::pool::Tier;
use pvc_model::request::StateRequest;
use pvc_model::sriov::settings::VfLinkState;
use pvc_model::vm::{MigrationMethod, Selector, VmState};

fn and_none(words: &[&'static str]) -> Vec<&'static str> {
    words.iter().copied().chain(["none"]).collect()
}

#[test]
fn a_selector_and_a_method_are_called_as_they_are_recorded_or_none() {
    assert_eq!(SelectorWord::WORDS, and_none(Selector::WORDS));
    assert_eq!(MethodWord::WORDS, and_none(MigrationMethod::WORDS));
}

#[test]
fn a_template_says_of_its_free_texts_that_they_are_the_same_words() {
    for parameters in [
        SystemTemplateAddition::described(),
        SystemTemplateNew::described(),
        SystemTemplateChange::described(),
    ] {
        for (name, words) in
            [("node_selector", SelectorWord::WORDS), ("migration_method", MethodWord::WORDS)]
        {
            let parameter = parameters.iter().find(|parameter| parameter.name == name).unwrap();
            let said = parameter.description.as_deref().unwrap();
            let named: Vec<&str> = said.split('`').skip(1).step_by(2).collect();
            assert_eq!(named, words, "{name}");
        }
    }
}

#[test]
fn vms_are_listed_by_all_states_but_those_that_are_shown_as_another() {
    let mut states = VmState::WORDS.to_vec();
    states.retain(|state| !["migrate-live", "delete"].contains(state));
    assert_eq!(ListedState::WORDS, states);
}

#[test]
fn each_state_that_can_be_requested_is_a_word_and_the_state_of_the_record() {
    let mut words = StateWord::WORDS.to_vec();
    words.sort_unstable();
    let mut requests: Vec<&str> = StateRequest::ALL.iter().map(|one| one.as_str()).collect();
    requests.sort_unstable();
    assert_eq!(words, requests);
    assert!(words.iter().all(|word| VmState::WORDS.contains(word)));
}

#[test]
fn an_image_is_sent_in_every_format_and_compression_that_is_taken() {
    assert_eq!(ImageFormatWord::WORDS, DiskFormat::ALL.map(DiskFormat::as_str));
    let words: Vec<&str> =
        ["none"].into_iter().chain(Compression::ALL.map(Compression::as_str)).collect();
    assert_eq!(CompressionWord::WORDS, words);
}

#[test]
fn tiers_directions_protocols_and_states_of_links_are_called_as_in_records_and_answers() {
    let tiers = [Tier::Hdd, Tier::Ssd, Tier::Nvme, Tier::Default];
    assert_eq!(TierWord::WORDS, tiers.map(Tier::as_str));
    assert_eq!(Way::WORDS, [Direction::In, Direction::Out].map(Direction::as_str));
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Icmp];
    assert_eq!(TraceProtocol::WORDS, protocols.map(Protocol::as_str));
    assert_eq!(LinkStateWord::WORDS, VfLinkState::WORDS);
}
