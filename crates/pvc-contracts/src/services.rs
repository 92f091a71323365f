//! Contract of every [`Services`], with units that do nothing.

#![allow(clippy::disallowed_methods, reason = "real adapters work in real time")]

use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{Services, ServicesError, UnitState};
use tokio::time::{Instant, sleep};

/// The units that must be installed, none of them running.
pub struct ServicesFixture {
    /// Runs until it is stopped.
    pub good: String,
    /// Never comes further than on its way.
    pub hanging: String,
    /// Fails at once.
    pub failing: String,
}

/// Time that a call may take, and a state that is waited for.
const SECONDS: Duration = Duration::from_secs(15);

/// Runs the whole suite.
///
/// # Panics
/// When the service manager breaks the contract.
pub async fn services_contract(services: Arc<dyn Services>, fixture: ServicesFixture) {
    let suite = Suite { services, fixture };
    suite.a_unit_that_does_not_exist_is_missing().await;
    suite.a_unit_runs_until_it_is_stopped().await;
    suite.restarting_starts_what_does_not_run().await;
    suite.a_unit_that_hangs_holds_up_nobody().await;
    suite.a_unit_that_fails_says_so().await;
    suite.enabling_starts_nothing().await;
}

struct Suite {
    services: Arc<dyn Services>,
    fixture: ServicesFixture,
}

impl Suite {
    async fn a_unit_that_does_not_exist_is_missing(&self) {
        let absent = "pvc-contract-absent.service";
        assert_eq!(self.services.state(absent).await.expect("asking succeeds"), UnitState::Missing);
        let error = self.services.start(absent).await.expect_err("there is nothing to start");
        assert!(matches!(&error, ServicesError::Missing { unit } if unit == absent), "{error}");
        let error =
            self.services.set_enabled(absent, true).await.expect_err("there is nothing to enable");
        assert!(matches!(&error, ServicesError::Missing { unit } if unit == absent), "{error}");
    }

    async fn a_unit_runs_until_it_is_stopped(&self) {
        let good = &self.fixture.good;
        for _ in 0..2 {
            self.services.start(good).await.expect("it can be started");
            self.until(good, UnitState::Active).await;
        }
        for _ in 0..2 {
            self.services.stop(good).await.expect("it can be stopped");
            self.until(good, UnitState::Inactive).await;
        }
    }

    async fn restarting_starts_what_does_not_run(&self) {
        let good = &self.fixture.good;
        for _ in 0..2 {
            self.services.restart(good).await.expect("it can be restarted");
            self.until(good, UnitState::Active).await;
        }
        self.services.stop(good).await.expect("it can be stopped");
        self.until(good, UnitState::Inactive).await;
    }

    async fn a_unit_that_hangs_holds_up_nobody(&self) {
        let begun = Instant::now();
        self.services.start(&self.fixture.hanging).await.expect("the start begins");
        self.until(&self.fixture.hanging, UnitState::Starting).await;
        assert!(begun.elapsed() < SECONDS);
        self.services.stop(&self.fixture.hanging).await.expect("it can be stopped");
        self.until(&self.fixture.hanging, UnitState::Inactive).await;
    }

    async fn a_unit_that_fails_says_so(&self) {
        self.services.start(&self.fixture.failing).await.expect("the start begins");
        self.until(&self.fixture.failing, UnitState::Failed).await;
    }

    async fn enabling_starts_nothing(&self) {
        for enabled in [true, true, false, false] {
            self.services
                .set_enabled(&self.fixture.good, enabled)
                .await
                .expect("it can be enabled");
            assert_eq!(
                self.services.state(&self.fixture.good).await.expect("a state"),
                UnitState::Inactive
            );
        }
    }

    async fn until(&self, unit: &str, wanted: UnitState) {
        let until = Instant::now() + SECONDS;
        loop {
            let state = self.services.state(unit).await.expect("asking succeeds");
            if state == wanted {
                return;
            }
            assert!(Instant::now() < until, "`{unit}` is {state:?} and not {wanted:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}
