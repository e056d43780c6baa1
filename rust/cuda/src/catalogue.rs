//! Every program that a format can need: what is compiled ahead of time.

use octavo_core::Format;

use crate::Program;

/// The programs of all rooms that work on `format`, in the order they are compiled ahead of time.
pub fn programs(format: Format) -> Vec<Program> {
    let _ = format;
    Vec::new()
}
