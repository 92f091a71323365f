//! The stream of events.

params! {
    /// Place to begin at.
    #[derive(Default)]
    pub struct Cursor {
        /// The `id` of the last event that was seen; without it the stream begins now. The header
        /// `Last-Event-ID` says the same and wins.
        cursor: Option<String>,
    }
}

operations! { "events":
    /// Streams what changes, as it changes: server-sent events whose data are `Event` objects. The
    /// first event is `reset` when the cursor cannot be continued.
    GetEvents { GET "/events", Reader, read(Cursor) -> events }
}
