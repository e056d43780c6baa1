//! Tiles of 16 rows of 64 bytes, and their products: by AMX, or by the dot products of AVX-512.
//!
//! Both read the same arrangement: rows of weights as they lie, inputs two columns of bfloat16, or four of int8, by line.
//! Kernels are written once over a [`Session`].

pub mod amx;
mod avx512;
pub(crate) mod groups;

use std::arch::x86_64::*;

use super::{Floats, Line, Processor};

/// Rows of a tile.
pub const ROWS: usize = 16;
/// Bytes of a row of a whole tile.
pub const LINE: usize = 64;
/// Bytes of a tile.
pub(crate) const TILE: usize = ROWS * LINE;

/// What multiplies tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// AMX.
    Amx,
    /// The dot products of AVX-512: BF16 for bfloat16, VNNI for int8.
    Vectors,
}

impl Tiles {
    /// What multiplies tiles on a processor: of int8 from [`Processor::Avx512Vnni`] on, of bfloat16 from
    /// [`Processor::Avx512Bf16`] on.
    pub(crate) fn of(processor: Processor) -> Self {
        if processor == Processor::Amx { Self::Amx } else { Self::Vectors }
    }
}

/// Tiles of inputs that one pass over the weights is multiplied with, at most.
pub(crate) const ACROSS: usize = 4;

/// Sums of 16 rows of weights and 16 times [`ACROSS`] columns of inputs.
pub(crate) type Sums = [[Line<i32, 16>; ROWS]; ACROSS];

/// Where factors of 64 columns after the other lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// 16 rows of weights, `stride` bytes apart, 64 a step.
    pub(crate) weights: *const u8,
    pub(crate) stride: usize,
    /// For each step, tiles of inputs.
    pub(crate) inputs: *const u8,
    pub(crate) steps: usize,
}

/// What 32 columns of weights in bfloat16 are multiplied with, in bytes from the bases that [`Session::add_products`] is
/// given.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Step {
    /// A tile of 16 rows of weights.
    pub(crate) weights: usize,
    /// Lines of 16 columns of 2 inputs: for each limb one or two tiles.
    pub(crate) inputs: usize,
    /// Limbs of the inputs, at least one.
    pub(crate) limbs: usize,
}

/// The factors of [`Session::add_products`]: two panels of weights, and one or two tiles of columns of inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors<'a> {
    pub(crate) steps: &'a [Step],
    pub(crate) weights: *const u8,
    /// Bytes from the first panel's tiles to the second's.
    pub(crate) panel: usize,
    pub(crate) inputs: *const u8,
    /// Tiles of a limb of the inputs: 1 or 2.
    pub(crate) across: usize,
}

/// Sums of two panels of 16 rows of weights and two tiles of 16 columns of inputs.
pub(crate) type FloatSums = [[[Line<f32, 16>; ROWS]; 2]; 2];

/// Sums of the products of two groups, and of the two before, that are not scaled yet.
pub(crate) type ScaledProducts = [[FloatSums; 2]; 2];

/// The scales of a group: of two panels of weights, and by tile of inputs, if they have some.
pub(crate) type Scales<'a> = (&'a [f32; 2 * ROWS], Option<&'a [Floats]>);

/// Holds a thread ready for products of tiles while it lives.
#[derive(Debug)]
pub(crate) enum Session {
    Amx(amx::Session),
    Vectors,
}

impl Session {
    /// Makes the thread ready.
    ///
    /// # Safety
    /// `tiles` must be [`Tiles::of`] a processor that has the tiles' instructions and is this machine's, or one before it.
    pub(crate) unsafe fn new(tiles: Tiles) -> Self {
        match tiles {
            // SAFETY: AMX was allowed.
            Tiles::Amx => Self::Amx(unsafe { amx::Session::new() }),
            Tiles::Vectors => Self::Vectors,
        }
    }

    /// Writes the sums of the products of int8 over all steps: 16 rows of weights times `across` tiles of inputs, which
    /// is 1, 2 or [`ACROSS`].
    ///
    /// # Safety
    /// All that the run names must be readable: at least one step, with `across` tiles of inputs each.
    pub(crate) unsafe fn multiply_across(&self, across: usize, run: Run, sums: &mut Sums) {
        debug_assert!(run.steps > 0 && matches!(across, 1 | 2 | ACROSS));
        // SAFETY: as the caller promises; the instructions were found before the session began.
        unsafe {
            match self {
                Self::Amx(session) => session.multiply_across(across, run, sums),
                Self::Vectors => avx512::multiply_across(run, &mut sums[..across]),
            }
        }
    }

    /// Adds the products of bfloat16 of all steps to sums, in order; `fresh` sums begin at zero.
    ///
    /// # Safety
    /// All that the factors name must be readable: tiles of 1024 bytes, of inputs at least one limb a step, with as many
    /// tiles as `across` says.
    pub(crate) unsafe fn add_products(&self, factors: &Factors<'_>, fresh: bool, sums: &mut FloatSums) {
        // SAFETY: as the caller promises; the instructions were found before the session began.
        unsafe {
            match self {
                Self::Amx(session) => session.add_products(factors, fresh, sums),
                Self::Vectors => avx512::add_products(factors, fresh, sums),
            }
        }
    }

    /// Adds the products of groups of `group` steps, each row of weights times its scale, the sixteen of the first panel
    /// before those of the second, and each column of inputs times its own, if there are some: a line for each tile.
    ///
    /// `products` are what this uses for sums that are not scaled yet.
    ///
    /// # Safety
    /// As for [`Session::add_products`].
    pub(crate) unsafe fn add_scaled<'s>(
        &self,
        factors: &Factors<'_>,
        group: usize,
        scales: impl Fn(usize) -> Scales<'s>,
        products: &mut ScaledProducts,
        sums: &mut FloatSums,
    ) {
        // SAFETY: as the caller promises; the instructions were found before the session began.
        unsafe {
            match self {
                Self::Amx(session) => session.add_scaled(factors, group, scales, products, sums),
                Self::Vectors => avx512::add_scaled(factors, group, scales, sums),
            }
        }
    }
}

/// Adds the products of `N` groups to sums, in order, each row of weights and each column of inputs times its scale.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(crate) fn add_scaled<const N: usize>(
    products: &[FloatSums; N],
    scales: [Scales<'_>; N],
    across: usize,
    sums: &mut FloatSums,
) {
    for (panel, sums) in sums.iter_mut().enumerate() {
        for row in 0..ROWS {
            let of_row = scales.map(|(rows, _)| _mm512_set1_ps(rows[panel * ROWS + row]));
            for (tile, sums) in sums.iter_mut().enumerate().take(across) {
                // SAFETY: lines are aligned and hold sixteen values.
                unsafe {
                    let mut sum = _mm512_load_ps(sums[row].0.as_ptr());
                    for group in 0..N {
                        let mut product = _mm512_load_ps(products[group][panel][tile][row].0.as_ptr());
                        if let Some(columns) = scales[group].1 {
                            product = _mm512_mul_ps(product, _mm512_load_ps(columns[tile].0.as_ptr()));
                        }
                        sum = _mm512_fmadd_ps(product, of_row[group], sum);
                    }
                    _mm512_store_ps(sums[row].0.as_mut_ptr(), sum);
                }
            }
        }
    }
}

const _: () = assert!(size_of::<Step>() == 24 && size_of::<Line<i32, 16>>() == LINE);
