//! Every program that a format can need: what is compiled ahead of time, and loaded to warm a device up.

use octavo_core::Format;

use crate::Program;
use crate::arch::Arch;

/// The programs of all rooms that work on `format` on devices of an architecture.
///
/// Each room adds its own here; a program that two formats share may occur under both.
pub fn programs(format: Format, arch: Arch) -> Vec<Program> {
    let mut made = crate::codec::programs(format);
    made.extend(crate::linear::programs(format, arch));
    made
}
