//! octavo-core: one definition of every number format. Codecs, packing, CPU kernels and the container.
//!
//! FORMATS.md at the root of the repository is the normative arithmetic; `codec::grid` is its scalar reference, and every
//! fast path gives the same bits.

#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "kernels of x86-64 use more of what the kernels of all architectures share")
)]

mod bitpack;
pub mod codec;
pub mod container;
pub mod dropout_norm;
mod dtype;
pub mod error;
mod files;
pub mod float;
mod float_state;
pub mod format;
pub mod huge_pages;
pub mod linear;
pub mod pool;
pub mod simd;
pub mod solve;
pub mod sparse;
pub mod text;

pub use bitpack::{pack_rows, unpack_rows};
pub use codec::{DType, Layout, Nonfinite, Options, Packed, PackedMut, ScaleRule, Sizes, Values, ValuesMut};
pub use error::{Error, Result};
pub use float_state::FloatState;
pub use format::{Format, packed_bytes};
pub use simd::Level;
