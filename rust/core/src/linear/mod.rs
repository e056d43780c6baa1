//! Products with packed weights, and gathers of packed rows.
//!
//! [`multiply`] is `y = x W^T + bias` for any format of W. [`multiply_integer`] computes it in integers, where inputs and
//! weights are scaled integers. [`gather`] decodes rows by id. Kernels read W in its packed form, a panel of rows at a time.

#[cfg(target_arch = "x86_64")]
mod bytes;
#[cfg(target_arch = "x86_64")]
mod codes;
#[cfg(target_arch = "x86_64")]
mod digits;
mod dot;
#[cfg(target_arch = "x86_64")]
mod fast;
mod float;
mod gather;
mod integer;
mod output;
#[cfg(target_arch = "x86_64")]
mod parts;
mod reference;

pub use float::multiply;
pub use gather::gather;
pub use integer::{Bias, multiply_integer};

use crate::codec::Packed;
use crate::error::{Result, ShapeError};
use crate::format::Format;
use crate::simd::Level;

/// A packed matrix, encoded along its rows.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Format of the weights.
    pub format: Format,
    /// Codes, scales, zeros, levels.
    pub packed: Packed<'a>,
    /// Rows: output features, or ids of an embedding.
    pub rows: usize,
    /// Columns: input features, or the width of an embedding.
    pub columns: usize,
}

/// The kernels of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Rows decoded to float32 in the L1 cache; sixteen chains of fused multiply-adds.
    Fma(Level),
    /// Fixed point with VNNI: digits of int8 multiplied exactly, groups scaled in float32.
    Digits,
    /// Decoded weights and inputs as sums of bfloat16 numbers on AMX.
    Parts,
    /// int8 products summed in int32 on AMX.
    Tiles,
    /// int8 products summed in int32.
    Bytes(Level),
}

impl Kernel {
    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fma(Level::Scalar) => "fma scalar",
            Self::Fma(Level::Avx2) => "fma avx2",
            Self::Fma(Level::Avx512) => "fma avx512",
            Self::Digits => "int8 digits vnni",
            Self::Parts => "bfloat16 parts amx",
            Self::Tiles => "int8 amx",
            Self::Bytes(Level::Scalar) => "int8 scalar",
            Self::Bytes(Level::Avx2) => "int8 avx2",
            Self::Bytes(Level::Avx512) => "int8 avx512",
        }
    }
}

/// The kernel that multiplies `m` rows with `n` rows of `k` weights; with `input`, that of [`multiply_integer`].
///
/// # Errors
/// [`crate::Error::Format`] where [`multiply_integer`] does not take the formats.
pub fn kernel(format: Format, input: Option<Format>, m: usize, n: usize, k: usize) -> Result<Kernel> {
    let level = Level::current();
    if let Some(input) = input {
        integer::check_formats(format, input)?;
        #[cfg(target_arch = "x86_64")]
        if bytes::applies(n, k, level) {
            return Ok(Kernel::Tiles);
        }
        return Ok(Kernel::Bytes(level));
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(way) = fast::way(format, m, n, k, level) {
        return Ok(match way {
            fast::Way::Digits(_) => Kernel::Digits,
            fast::Way::Parts(_) => Kernel::Parts,
        });
    }
    Ok(Kernel::Fma(level))
}

/// Checks the number of inputs and outputs of a product.
fn check_sizes(m: usize, w: &Matrix<'_>, x: usize, out: usize) -> Result<()> {
    let (n, k) = (w.rows, w.columns);
    if m.checked_mul(k) != Some(x) || m.checked_mul(n) != Some(out) {
        return Err(ShapeError::Product { m, n, k, inputs: x, outputs: out }.into());
    }
    Ok(())
}
