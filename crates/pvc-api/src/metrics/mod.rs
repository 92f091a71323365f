//! Figures for monitoring, in the text format of Prometheus. Pure but for [`scrapes`], where pages
//! are made, and [`exported`], which fetches those of others: a cluster in, a text out. What the
//! last text had of each VM is kept, because most of it is the same in the next.

pub mod exported;
mod health;
mod node;
mod page;
mod resource;
mod scrapes;
mod storage;
mod unread;
mod vm;

pub use health::health;
pub use resource::resource;
pub use scrapes::{Scrape, Scrapes};
pub use vm::VmShares;
