//! The stream of events.

use pvc_api_types::operations::event::GetEvents;

use crate::answer::Answer;
use crate::error::Result;
use crate::events;
use crate::table::{Ask, Table};

pub fn add(table: Table) -> Table {
    table.add(get_events)
}

async fn get_events(ask: Ask<GetEvents>) -> Result<Answer<GetEvents>> {
    events::events(&ask.api, &ask.caller.description, &ask.headers, ask.params.cursor)
}
