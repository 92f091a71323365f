//! Whether guests are told their metadata, which others serve: a fault says so if they are not.

use std::time::Duration;

use pvc_model::guest_network::GuestNetworks;
use pvc_role::{Alarm, Context};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const FAULT: &str = "METADATA";

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Time for which the service may be down before that is a fault.
const GRACE: Duration = Duration::from_secs(30);

/// Works until `end`. `trouble` is what keeps the service from serving.
pub async fn run(
    context: Context,
    trouble: watch::Receiver<Option<String>>,
    end: CancellationToken,
) {
    let mut alarm = Alarm::after(GRACE);
    let mut turns = context.turns(&end);
    while turns.next(INTERVAL).await {
        let trouble = trouble.borrow().clone().filter(|_| may_be_asked(&context));
        let message = trouble
            .map(|words| format!("node {}: metadata is not served: {words}", context.name()));
        context.alarm_own(FAULT, &mut alarm, message).await;
    }
}

/// Whether there are guests that could ask.
fn may_be_asked(context: &Context) -> bool {
    let networks = GuestNetworks::of(&context.store.view()).networks;
    networks.iter().any(|network| !network.gateways().is_empty())
}
