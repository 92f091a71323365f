//! Figures for monitoring, in the text format of Prometheus. Pure: a cluster in, a text out.

mod health;
mod node;
mod page;
mod resource;
mod storage;
mod vm;

pub use health::health;
pub use resource::resource;
