//! Our locks and values against real Python clients: kazoo 2.8.0, which PVC has on Debian 11 and
//! 12, and the current version, on the same ZooKeeper server. See `tests/interop/README.md`.

#![forbid(unsafe_code)]

mod hand_over;
mod locks;
mod peer;
mod values;

macro_rules! with_both_versions {
    ($($module:ident :: $test:ident),* $(,)?) => {
        mod kazoo_2_8_0 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$module::$test("kazoo-2.8.0").await; })*
        }

        mod kazoo_current {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$module::$test("kazoo-current").await; })*
        }
    };
}

with_both_versions![
    hand_over::a_python_holder_hands_over_to_our_candidate,
    hand_over::our_holder_hands_over_to_a_python_candidate,
    locks::an_exclusive_lock_of_kazoo_excludes_ours,
    locks::an_exclusive_lock_of_ours_excludes_kazoo,
    locks::readers_share_and_exclude_writers,
    locks::the_lock_goes_round_in_the_order_of_the_queue,
    locks::nobody_loses_an_addition_made_under_the_lock,
    locks::the_lock_of_a_python_peer_that_died_comes_free,
    locks::a_lock_is_lost_with_the_session_and_kazoo_gets_it,
    locks::a_contender_whose_session_expires_queues_again,
    locks::a_contender_whose_creation_was_not_answered_is_found_again,
    locks::whoever_stops_waiting_leaves_the_queue,
    locks::a_lock_released_without_a_connection_is_given_up_later,
    locks::children_that_are_no_contenders_are_in_nobodys_way,
    locks::a_reader_of_kazoo_is_not_stuck_behind_a_writer_that_breaks_stalls,
    locks::our_reader_is_not_stuck_behind_a_later_writer,
    values::what_python_writes_is_what_the_store_shows,
    values::what_the_store_writes_is_what_python_reads,
    values::a_write_of_python_makes_our_decision_be_taken_again,
];
