use std::time::Duration;

use pvc_ports::UnitState;
use pvc_role::{Alarm, Context};
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(10);

/// Time that the service manager may take to answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// Time for which a unit may be down before that is a fault: a restart of it is none.
const AFTER: Duration = Duration::from_secs(60);

const FAULT: &str = "UNIT_DOWN";

/// Tells operators of a unit that does not run, and takes it back when it does. Works until `end`.
pub async fn run(context: Context, unit: String, end: CancellationToken) {
    let mut alarm = Alarm::after(AFTER);
    let mut turns = context.turns(&end);
    while turns.next(EVERY).await {
        let trouble = trouble(&context, &unit).await;
        if trouble.is_none() && alarm.was_reported() {
            context.clear_own(FAULT).await;
        }
        if let Some(why) = alarm.due(trouble, context.now()) {
            let message = format!("unit `{unit}` of node {} is down: {why}", context.name());
            context.raise_own(FAULT, &message).await;
        }
    }
}

async fn trouble(context: &Context, unit: &str) -> Option<String> {
    match context.in_time(DEADLINE, context.ports.services.state(unit)).await {
        Ok(UnitState::Active) => None,
        Ok(state) => Some(format!("it is {state:?}")),
        Err(error) => Some(error.to_string()),
    }
}
