//! Contract of every [`Power`], with a machine that may be switched off.

use std::sync::Arc;

use pvc_ports::{Bmc, Power, PowerError};

/// Things that the suite needs from whoever runs it.
pub struct PowerFixture {
    /// BMC of a machine that is on, and may be switched off and on.
    pub bmc: Bmc,
    /// Asks the machine itself whether it is on.
    pub is_really_on: Box<dyn Fn() -> bool + Send + Sync>,
    /// Takes every command and does nothing. Its machine is on.
    pub ignoring: Bmc,
    /// Says that its machine is off, whatever it is told.
    pub lying: Bmc,
    /// Nobody answers there.
    pub absent: Bmc,
}

/// Runs the whole suite.
///
/// # Panics
/// When the power switch breaks the contract.
pub async fn power_contract(power: Arc<dyn Power>, fixture: PowerFixture) {
    let suite = Suite { power, fixture };
    suite.what_is_switched_is_so_when_the_call_returns().await;
    suite.whoever_has_the_wrong_password_switches_nothing().await;
    suite.a_bmc_that_is_not_there_says_neither_on_nor_off().await;
    suite.a_bmc_that_ignores_commands_is_found_out().await;
    suite.a_bmc_is_taken_at_its_word().await;
}

struct Suite {
    power: Arc<dyn Power>,
    fixture: PowerFixture,
}

impl Suite {
    /// Each twice: what is so already is no error.
    async fn what_is_switched_is_so_when_the_call_returns(&self) {
        let bmc = &self.fixture.bmc;
        for on in [true, false, false, true, true] {
            let switched = match on {
                true => self.power.switch_on(bmc).await,
                false => self.power.cut(bmc).await,
            };
            switched.expect("it does as it is told");
            assert_eq!((self.fixture.is_really_on)(), on);
            assert_eq!(self.power.is_on(bmc).await.expect("it answers"), on);
        }
    }

    async fn whoever_has_the_wrong_password_switches_nothing(&self) {
        let password = format!("not {}", self.fixture.bmc.password);
        self.is_unusable(&Bmc { password, ..self.fixture.bmc.clone() }).await;
        assert!((self.fixture.is_really_on)());
    }

    async fn a_bmc_that_is_not_there_says_neither_on_nor_off(&self) {
        self.is_unusable(&self.fixture.absent).await;
    }

    async fn a_bmc_that_ignores_commands_is_found_out(&self) {
        let bmc = &self.fixture.ignoring;
        assert!(self.power.is_on(bmc).await.expect("it answers"));
        self.power.switch_on(bmc).await.expect("it is on already");
        is_ignored(self.power.cut(bmc).await, false);
        assert!(self.power.is_on(bmc).await.expect("it answers"));
    }

    /// Nobody else can be asked: what it says is what counts, for better or worse.
    async fn a_bmc_is_taken_at_its_word(&self) {
        let bmc = &self.fixture.lying;
        assert!(!self.power.is_on(bmc).await.expect("it answers"));
        self.power.cut(bmc).await.expect("it says that it is off");
        is_ignored(self.power.switch_on(bmc).await, true);
    }

    async fn is_unusable(&self, bmc: &Bmc) {
        for error in [
            self.power.is_on(bmc).await.expect_err("nobody says so"),
            self.power.cut(bmc).await.expect_err("nobody does so"),
            self.power.switch_on(bmc).await.expect_err("nobody does so"),
        ] {
            assert!(
                matches!(&error, PowerError::Unusable { host, .. } if *host == bmc.host),
                "{error}"
            );
        }
    }
}

fn is_ignored(switched: Result<(), PowerError>, on: bool) {
    let error = switched.expect_err("it does nothing");
    assert!(matches!(error, PowerError::Ignored { wanted, .. } if wanted == on), "{error}");
}
