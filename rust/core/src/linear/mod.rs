//! Products with packed weights, and gathers of packed rows.
//!
//! [`multiply`] is `y = x W^T + bias` for any format of W. [`multiply_alike`] treats rows alike whatever their number, and
//! takes weights that are [`Prepared`]. [`multiply_rounded`] rounds inputs to a format of their own.
//! [`multiply_integer`] computes it in integers, where inputs and weights are scaled integers. [`gather`] decodes rows by
//! id. Kernels read W in its packed form, a panel of rows at a time.

#[cfg(target_arch = "x86_64")]
mod bf16_codes_vbmi;
#[cfg(target_arch = "x86_64")]
mod bf16_limbs_amx;
mod f32_fma;
mod f32_kept;
mod float;
mod gather;
#[cfg(target_arch = "x86_64")]
mod int8_amx;
#[cfg(target_arch = "x86_64")]
mod int8_limbs_vnni;
mod integer;
mod output;
mod prepared;
mod reference;
mod rounded;
#[cfg(target_arch = "x86_64")]
mod route;

pub use float::multiply;
pub use gather::gather;
pub use integer::{Bias, multiply_integer};
pub use prepared::{Prepared, multiply_alike};
pub use rounded::multiply_rounded;

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
    /// Fixed point with VNNI: limbs of int8 multiplied exactly, groups scaled in float32.
    Int8Limbs,
    /// Codes of inputs and weights with VNNI: groups summed exactly, and scaled in float32.
    Int8Groups,
    /// Decoded weights and inputs as sums of bfloat16 numbers on AMX.
    Bf16Limbs,
    /// int8 products summed in int32 on AMX.
    Int8Amx,
    /// int8 products summed in int32.
    Int8(Level),
}

impl Kernel {
    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fma(Level::Scalar) => "fma scalar",
            Self::Fma(Level::Avx2) => "fma avx2",
            Self::Fma(Level::Avx512) => "fma avx512",
            Self::Int8Limbs => "int8 limbs vnni",
            Self::Int8Groups => "int8 groups vnni",
            Self::Bf16Limbs => "bfloat16 limbs amx",
            Self::Int8Amx => "int8 amx",
            Self::Int8(Level::Scalar) => "int8 scalar",
            Self::Int8(Level::Avx2) => "int8 avx2",
            Self::Int8(Level::Avx512) => "int8 avx512",
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
        if integer::check_formats(format, input)? {
            return rounded_kernel(format, input, m, n, k);
        }
        #[cfg(target_arch = "x86_64")]
        if int8_amx::applies(n, k, level) {
            return Ok(Kernel::Int8Amx);
        }
        return Ok(Kernel::Int8(level));
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(way) = route::way(format, m, n, k, level) {
        return Ok(match way {
            route::Way::Int8Limbs(_) => Kernel::Int8Limbs,
            route::Way::Bf16Limbs(_) => Kernel::Bf16Limbs,
        });
    }
    Ok(Kernel::Fma(level))
}

/// The kernel of [`multiply_rounded`] for `m` rows of inputs rounded to `input`, and `n` rows of `k` weights.
///
/// # Errors
/// None that are not those of [`kernel`].
pub fn rounded_kernel(format: Format, input: Format, m: usize, n: usize, k: usize) -> Result<Kernel> {
    #[cfg(target_arch = "x86_64")]
    if route::groups(format, input, m, n, k, Level::current()).is_some() {
        return Ok(Kernel::Int8Groups);
    }
    let _ = input; // other processors choose by the weights alone
    kernel(format, None, m, n, k)
}

/// Checks the number of inputs and outputs of a product.
fn check_sizes(m: usize, w: &Matrix<'_>, x: usize, out: usize) -> Result<()> {
    let (n, k) = (w.rows, w.columns);
    if m.checked_mul(k) != Some(x) || m.checked_mul(n) != Some(out) {
        return Err(ShapeError::Product { m, n, k, inputs: x, outputs: out }.into());
    }
    Ok(())
}
