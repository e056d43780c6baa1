//! Products with packed weights, and gathers of packed rows.
//!
//! [`multiply`] is `y = x W^T + bias` for any format of W. [`multiply_alike`] treats rows alike whatever their number, and
//! takes weights that are [`Prepared`]; [`multiply_singly`] treats each as if it were alone. [`multiply_rounded`] rounds inputs to a format of their own.
//! [`multiply_sparse`] reads sparse codes. [`multiply_integer`] computes it in integers, where inputs and weights are scaled integers. [`gather`] decodes rows by
//! id. Kernels read W in its packed form, a panel of rows at a time.

#[cfg(target_arch = "x86_64")]
mod bf16_codes_vbmi;
#[cfg(target_arch = "x86_64")]
mod bf16_limbs;
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod encoded_sample;
#[cfg(target_arch = "x86_64")]
mod f32_codes_avx2;
#[cfg(target_arch = "x86_64")]
mod f32_codes_vbmi;
mod f32_fma;
mod f32_kept;
#[cfg(target_arch = "x86_64")]
mod f32_tiles;
mod float;
mod gather;
#[cfg(target_arch = "x86_64")]
mod group_scales_avx2;
#[cfg(target_arch = "x86_64")]
mod int8_avx2;
#[cfg(target_arch = "x86_64")]
mod int8_group_tiles;
#[cfg(target_arch = "x86_64")]
mod int8_groups_avx2;
#[cfg(target_arch = "x86_64")]
mod int8_limbs_vnni;
#[cfg(target_arch = "x86_64")]
mod int8_pairs_avx2;
#[cfg(target_arch = "x86_64")]
mod int8_rows;
#[cfg(target_arch = "x86_64")]
mod int8_tiles;
mod integer;
#[cfg(target_arch = "x86_64")]
mod level_sums_avx2;
#[cfg(target_arch = "x86_64")]
mod nibble_rows_avx2;
#[cfg(target_arch = "x86_64")]
mod nibble_sums_avx2;
#[cfg(target_arch = "x86_64")]
mod nibbles_avx2;
#[cfg(target_arch = "x86_64")]
mod numbers_avx2;
mod output;
mod prepared;
mod reference;
mod rounded;
#[cfg(target_arch = "x86_64")]
mod route;
mod signed_codes;
mod sparse;
#[cfg(target_arch = "x86_64")]
mod sums_avx2;

pub use float::{multiply, multiply_singly};
pub use gather::gather;
pub use integer::{Bias, multiply_integer};
pub use prepared::{Prepared, multiply_alike};
pub use rounded::{multiply_rounded, multiply_rounded_singly};
pub use sparse::{SparseMatrix, multiply_sparse, sparse_kernel};

use crate::codec::{DType, Packed};
use crate::error::{Result, ShapeError};
use crate::format::Format;
use crate::simd::Level;
#[cfg(target_arch = "x86_64")]
use crate::simd::tiles::Tiles;

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
    /// The same, with codes that become float32 in registers of AVX-512.
    FmaCodes,
    /// The same in registers of AVX2.
    FmaCodesAvx2,
    /// Fixed point with VNNI: limbs of int8 multiplied exactly, groups scaled in float32.
    Int8Limbs,
    /// The same in tiles: on AMX.
    Int8LimbsAmx,
    /// The same with VNNI, of sparse codes, which are expanded in registers.
    SparseLimbs,
    /// Codes of inputs and weights with VNNI: groups summed exactly, and scaled in float32.
    Int8Groups,
    /// The same in tiles: on AMX.
    Int8GroupsAmx,
    /// The same with AVX2.
    Int8GroupsAvx2,
    /// Decoded weights and inputs as sums of bfloat16 numbers, in tiles: on AMX.
    Bf16LimbsAmx,
    /// The same by the dot products of AVX-512.
    Bf16LimbsAvx512,
    /// Codes of inputs and weights in tiles of bfloat16, by the dot products of AVX-512: groups scaled in float32.
    Bf16Codes,
    /// int8 products summed in int32, in tiles: on AMX.
    Int8Amx,
    /// The same by VNNI.
    Int8Vnni,
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
            Self::FmaCodes => "fma codes avx512",
            Self::FmaCodesAvx2 => "fma codes avx2",
            Self::Int8Limbs => "int8 limbs vnni",
            Self::Int8LimbsAmx => "int8 limbs amx",
            Self::SparseLimbs => "sparse int8 limbs vnni",
            Self::Int8Groups => "int8 groups vnni",
            Self::Int8GroupsAmx => "int8 groups amx",
            Self::Int8GroupsAvx2 => "int8 groups avx2",
            Self::Bf16LimbsAmx => "bfloat16 limbs amx",
            Self::Bf16LimbsAvx512 => "bfloat16 limbs avx512",
            Self::Bf16Codes => "bfloat16 codes avx512",
            Self::Int8Amx => "int8 amx",
            Self::Int8Vnni => "int8 vnni",
            Self::Int8(Level::Scalar) => "int8 scalar",
            Self::Int8(Level::Avx2) => "int8 avx2",
            Self::Int8(Level::Avx512) => "int8 avx512",
        }
    }
}

/// The kernel that multiplies `m` rows of a dtype with `n` rows of `k` weights; with `input`, that of [`multiply_integer`].
///
/// # Errors
/// [`crate::Error::Format`] where [`multiply_integer`] does not take the formats.
pub fn kernel(format: Format, dtype: DType, input: Option<Format>, m: usize, n: usize, k: usize) -> Result<Kernel> {
    let level = Level::current();
    if let Some(input) = input {
        if integer::check_formats(format, input)? {
            return rounded_kernel(format, input, m, n, k);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = int8_tiles::tiles(n, k, level) {
            return Ok(if tiles == Tiles::Amx { Kernel::Int8Amx } else { Kernel::Int8Vnni });
        }
        return Ok(Kernel::Int8(level));
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(way) = route::way(format, dtype, m, n, k, level) {
        return Ok(match way {
            route::Way::Int8Limbs(_) => Kernel::Int8Limbs,
            route::Way::Int8LimbTiles(_) => Kernel::Int8LimbsAmx,
            route::Way::F32Codes(_) => Kernel::FmaCodes,
            route::Way::F32CodesAvx2(_) => Kernel::FmaCodesAvx2,
            route::Way::Bf16Limbs(_, Tiles::Amx) => Kernel::Bf16LimbsAmx,
            route::Way::Bf16Limbs(_, Tiles::Vectors) => Kernel::Bf16LimbsAvx512,
        });
    }
    let _ = dtype; // elsewhere kernels do not depend on it
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
    #[cfg(target_arch = "x86_64")]
    if let Some(codes) = route::group_tiles(format, input, m, n, k, Level::current()) {
        return Ok(if codes.tiles == Tiles::Amx { Kernel::Int8GroupsAmx } else { Kernel::Int8Groups });
    }
    #[cfg(target_arch = "x86_64")]
    if route::groups_avx2(format, input, m, n, k, Level::current()).is_some() {
        return Ok(Kernel::Int8GroupsAvx2);
    }
    #[cfg(target_arch = "x86_64")]
    if route::codes(format, input, m, n, k, Level::current()).is_some() {
        return Ok(Kernel::Bf16Codes);
    }
    #[cfg(target_arch = "x86_64")]
    let held = bf16_limbs::held_by(input);
    #[cfg(not(target_arch = "x86_64"))]
    let held = DType::F32;
    let _ = input; // other processors choose by the weights alone
    kernel(format, held, None, m, n, k)
}

/// Checks the number of inputs and outputs of a product.
fn check_sizes(m: usize, w: &Matrix<'_>, x: usize, out: usize) -> Result<()> {
    let (n, k) = (w.rows, w.columns);
    if m.checked_mul(k) != Some(x) || m.checked_mul(n) != Some(out) {
        return Err(ShapeError::Product { m, n, k, inputs: x, outputs: out }.into());
    }
    Ok(())
}
