//! Words and rules, pure: records, requests, plans, placement.
