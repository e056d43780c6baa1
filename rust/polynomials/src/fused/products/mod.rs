//! Matrix products of a few rows with packed weights, in blocks: the accumulators of a block stay in the L1 cache for the
//! epilogue.
//!
//! An [`Arithmetic`] is one way to compute them. The sums of a row do not depend on the other rows.
//!
//! `octavo_core::simd::tiles` is not used: it multiplies whole tiles of 16 rows. By AVX-512 a block of 1, 16 and 24 rows of
//! 128 inputs would take 8.4, 1.4 and 1.8 times as long in int8, and 14.9, 1.0 and 1.3 times in bfloat16; on AMX, of two limbs
//! of bfloat16 a number, it multiplies four pairs of limbs, these kernels three.

#[cfg(target_arch = "x86_64")]
mod bf16;
#[cfg(target_arch = "x86_64")]
mod bf16_limbs_amx;
#[cfg(target_arch = "x86_64")]
mod bf16_vectors;
mod f32_fma;
mod int8;
#[cfg(target_arch = "x86_64")]
mod int8_avx2;
#[cfg(target_arch = "x86_64")]
mod int8_vnni;
#[cfg(target_arch = "x86_64")]
pub(super) mod tiles_amx;

use std::fmt::Debug;
use std::ops::Range;

use super::kept::Kept;
use super::lanes::{Floats, Job, LANES, Lanes, Line, Registers};

#[cfg(target_arch = "x86_64")]
pub(super) use bf16::Half;
#[cfg(target_arch = "x86_64")]
pub(super) use bf16_limbs_amx::Limbs;
#[cfg(target_arch = "x86_64")]
pub(super) use bf16_vectors::Bf16;
pub(super) use f32_fma::Float;
pub(super) use int8::Integer;
#[cfg(target_arch = "x86_64")]
pub(super) use int8_vnni::Vnni;
#[cfg(target_arch = "x86_64")]
pub(super) use tiles_amx::Amx;

/// Most rows of a block.
pub(super) const ROWS: usize = 32;
/// Most panels of a block; a panel is 16 columns. The four gates of 16 units are one block.
pub(super) const PANELS: usize = 4;

/// Sums of a block: by row, then panel.
pub(super) type Block<N> = [[Line<N, LANES>; PANELS]; ROWS];
/// One block is finished while the next is computed; behind each is the one for low bytes.
pub(super) type Blocks<N> = [[Block<N>; 2]; 2];

/// What sums are counted in.
pub(super) trait Number: Copy + Default + Debug + Send + Sync + 'static {
    /// Their sum; integers wrap.
    fn plus(self, other: Self) -> Self;
}

impl Number for f32 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

impl Number for i32 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
}

/// A matrix before it is packed: one row an output. Rows and columns are whole numbers of lanes, filled up with zeros.
#[derive(Clone, Debug)]
pub(super) struct Matrix<T> {
    /// Inputs.
    pub(super) columns: usize,
    /// Row-major.
    pub(super) codes: Vec<T>,
}

impl<T: Copy + Default> Matrix<T> {
    /// Panels of 16 outputs.
    pub(super) fn panels(&self) -> usize {
        self.codes.len() / self.columns / LANES
    }

    /// The element of an output and an input; zero behind the last input.
    fn at(&self, row: usize, column: usize) -> T {
        if column < self.columns { self.codes[row * self.columns + column] } else { T::default() }
    }
}

/// How weights are packed, in lines of one long run: what is used next lies next.
pub(super) trait Weights: Debug + Send + Sync + 'static {
    /// An element of a matrix.
    type Code: Copy + Default + Send + Sync + 'static;
    /// What sums are counted in.
    type Number: Number;
    /// 64 bytes.
    type Line: Copy + Debug + Send + Sync + 'static;

    /// Lines of one panel.
    fn depth(columns: usize) -> usize;
    /// Appends the lines of at most [`PANELS`] panels.
    fn pack(matrix: &Matrix<Self::Code>, panels: Range<usize>, lines: &mut Vec<Self::Line>);
    /// What must be added to the sums of a row besides its bias.
    fn correction(row: &[Self::Code]) -> Self::Number;
    /// The same where the input is wide, as [`Input::widen`] says.
    fn correction_wide(row: &[Self::Code]) -> Self::Number {
        Self::correction(row)
    }
}

/// The left side of a product: rows as the arithmetic wants them.
pub(super) trait Input<L: Lanes>: Send + 'static {
    /// One row, to be written.
    type Row<'a>: Row<L>
    where
        Self: 'a;

    /// Rows of zeros. `lines`: vectors of 16 elements a row.
    fn new(rows: usize, lines: usize) -> Self;
    /// What the rows that are written next hold in int8 arithmetic: codes of 16 bits or, as at first, of 8.
    fn widen(&mut self, _wide: bool) {}
    /// A row, to be written.
    fn row(&mut self, row: usize) -> Self::Row<'_>;
    /// Copies a row to the place of another.
    fn copy(&mut self, from: usize, to: usize);
}

/// A row that is written 16 elements at a time.
pub(super) trait Row<L: Lanes> {
    /// Writes 16 elements. `inverse`: one over the step of the codes.
    fn put(&mut self, l: L, line: usize, v: L::F, inverse: L::F);
}

/// The factors of one block.
pub(super) struct Factors<'a, W: Weights, I> {
    /// The lines of the block.
    pub(super) weights: &'a [W::Line],
    /// At most [`PANELS`].
    pub(super) panels: usize,
    pub(super) input: &'a I,
    /// At most [`ROWS`].
    pub(super) rows: Range<usize>,
}

/// One way to compute products.
pub(super) trait Arithmetic: Copy + Send + Sync + 'static {
    /// The instruction set of everything else.
    type Lanes: Lanes;
    /// Packed weights.
    type Weights: Weights;
    /// Packed rows.
    type Input: Input<Self::Lanes>;
    /// How keys and values are kept.
    type Kept: Kept<Self::Lanes>;
    /// What is added to 16 sums, in a register.
    type Added: Copy;
    /// Holds the machine ready for products.
    type Session;
    /// Rows that are decoded together: as many as a register block is filled by and the second cache holds.
    const TOGETHER: usize;

    /// The instruction set.
    fn lanes(self) -> Self::Lanes;
    /// Does `job` inside a function compiled for this arithmetic.
    fn run<J: Job<Self::Lanes>>(self, job: J) -> J::Output {
        self.lanes().run(job)
    }
    /// Makes the machine ready; [`Arithmetic::multiply`] wants the session alive.
    fn session(self) -> Self::Session;
    /// Computes the sums of a block. Rows of `sums` behind those asked for are left with no meaning.
    fn multiply(self, factors: Factors<'_, Self::Weights, Self::Input>, sums: &mut Block<NumberOf<Self>>);
    /// Computes the sums of the low bytes of inputs that are wide; those of the high ones are [`Arithmetic::multiply`]'s.
    fn multiply_low(self, _factors: Factors<'_, Self::Weights, Self::Input>, _sums: &mut Block<NumberOf<Self>>) {}
    /// Loads what is added to 16 sums.
    fn added(self, line: &Line<NumberOf<Self>, LANES>) -> Self::Added;
    /// Loads what the sums of a panel are worth, from the scales of the layer.
    fn scale(self, scales: &[Floats], panel: usize) -> FloatsOf<Self>;
    /// The values of 16 sums.
    fn value(self, sums: &Line<NumberOf<Self>, LANES>, added: Self::Added, scale: FloatsOf<Self>) -> FloatsOf<Self>;
    /// The values of 16 sums of high and of low bytes.
    fn value_wide(
        self,
        sums: &Line<NumberOf<Self>, LANES>,
        _low: &Line<NumberOf<Self>, LANES>,
        added: Self::Added,
        scale: FloatsOf<Self>,
    ) -> FloatsOf<Self> {
        self.value(sums, added, scale)
    }
}

/// What the sums of an arithmetic are counted in.
pub(super) type NumberOf<A> = <<A as Arithmetic>::Weights as Weights>::Number;
/// 16 float32 of an arithmetic's lanes.
pub(super) type FloatsOf<A> = <<A as Arithmetic>::Lanes as Registers>::F;
