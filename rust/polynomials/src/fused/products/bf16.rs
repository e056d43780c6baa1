//! Products of bfloat16, with AMX or AVX-512 BF16: factors are rounded to 8 bits, sums are float32.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use octavo_core::simd::amx::Session;

use super::bf16_limbs_amx::{compiled, nearest};
use super::int8::ByteProducts;
use super::tiles_amx::{Amx, Place, TILE, halves};
use super::{Arithmetic, Block, Factors, Input, Matrix, PANELS, ROWS, Row, Weights};
use crate::fused::kept::Small;
use crate::fused::lanes::{Avx512, Floats, Halves, Job, LANES, Proven};

/// Inputs that a line of a row holds.
const STEP: usize = 32;

/// Instructions that multiply bfloat16, with AVX-512 BF16 for everything else.
pub(in crate::fused) trait HalfProducts: Copy + Send + Sync + 'static {
    /// See [`Arithmetic::Session`].
    type Session;
    /// See [`Arithmetic::TOGETHER`].
    const TOGETHER: usize;

    /// The instruction set of everything else.
    fn lanes(self) -> Avx512;
    /// See [`Arithmetic::session`].
    fn session(self) -> Self::Session;
    /// Computes the sums of at most [`ROWS`] rows.
    ///
    /// # Safety
    /// The place must hold what it says, at least one step, with whole tiles of rows; a session must be alive.
    unsafe fn multiply(self, place: &Place, rows: usize, sums: &mut Block<f32>);
}

impl HalfProducts for Amx {
    type Session = Session;
    const TOGETHER: usize = TILE;

    #[inline(always)]
    fn lanes(self) -> Avx512 {
        ByteProducts::lanes(self)
    }
    #[inline(always)]
    fn session(self) -> Session {
        self.session()
    }
    unsafe fn multiply(self, place: &Place, rows: usize, sums: &mut Block<f32>) {
        // SAFETY: as the caller promises; the instructions exist where `self` does.
        unsafe { halves(place, rows.div_ceil(TILE), sums.as_mut_ptr().cast()) };
    }
}

/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub(in crate::fused) struct Half<P>(pub(in crate::fused) P);

/// Weights by block, then pair of inputs, then panel: a line holds a panel's weights of a pair, by column.
#[derive(Debug)]
pub(in crate::fused) struct HalfWeights;

impl Weights for HalfWeights {
    type Code = f32;
    type Number = f32;
    type Line = Halves;

    fn depth(columns: usize) -> usize {
        columns.next_multiple_of(STEP) / 2
    }

    fn pack(matrix: &Matrix<f32>, panels: Range<usize>, lines: &mut Vec<Halves>) {
        for pair in 0..Self::depth(matrix.columns) {
            lines.extend(panels.clone().map(|panel| {
                let mut line = Halves::default();
                for (i, to) in line.0.iter_mut().enumerate() {
                    *to = nearest(matrix.at(panel * LANES + i / 2, 2 * pair + i % 2));
                }
                line
            }));
        }
    }

    fn correction(_row: &[f32]) -> f32 {
        0.0
    }
}

/// Rows of bfloat16.
#[derive(Debug)]
pub(in crate::fused) struct HalfRows {
    steps: usize,
    lines: Vec<Halves>,
}

/// A row of [`HalfRows`], in vectors of 16.
#[derive(Debug)]
pub(in crate::fused) struct HalfRow<'a> {
    first: *mut __m256bh,
    len: usize,
    row: PhantomData<&'a mut [Halves]>,
}

impl Input<Avx512> for HalfRows {
    type Row<'a> = HalfRow<'a>;

    fn new(rows: usize, lines: usize) -> Self {
        let steps = (lines * LANES).div_ceil(STEP);
        Self { steps, lines: vec![Halves::default(); rows.next_multiple_of(ROWS) * steps] }
    }
    #[inline(always)]
    fn row(&mut self, row: usize) -> HalfRow<'_> {
        let row = &mut self.lines[row * self.steps..][..self.steps];
        HalfRow { first: row.as_mut_ptr().cast(), len: 2 * row.len(), row: PhantomData }
    }
    fn copy(&mut self, from: usize, to: usize) {
        self.lines.copy_within(from * self.steps..(from + 1) * self.steps, to * self.steps);
    }
}

impl Row<Avx512> for HalfRow<'_> {
    #[inline(always)]
    fn put(&mut self, _l: Avx512, line: usize, v: __m512, _inverse: __m512) {
        assert!(line < self.len);
        // SAFETY: the row, borrowed for as long as `self` lives, holds `len` vectors. Rows are made for `Half` alone,
        // which exists only where the instruction does.
        unsafe { self.first.add(line).write(_mm512_cvtneps_pbh(v)) };
    }
}

impl<P: HalfProducts> Arithmetic for Half<P> {
    type Lanes = Avx512;
    type Weights = HalfWeights;
    type Input = HalfRows;
    type Kept = Small;
    type Added = __m512;
    type Session = P::Session;
    const TOGETHER: usize = P::TOGETHER;

    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0.lanes()
    }
    fn run<J: Job<Avx512>>(self, job: J) -> J::Output {
        // SAFETY: `self` exists only where the instructions do, those for bfloat16 included.
        unsafe { compiled(self.lanes(), job) }
    }
    #[inline(always)]
    fn session(self) -> P::Session {
        self.0.session()
    }
    fn multiply(self, factors: Factors<'_, HalfWeights, HalfRows>, sums: &mut Block<f32>) {
        let Factors { weights, panels, input, rows } = factors;
        let (steps, tiles) = (input.steps, rows.len().div_ceil(TILE));
        assert!(steps > 0 && panels <= PANELS && rows.len() <= ROWS);
        assert!((rows.start + tiles * TILE) * steps <= input.lines.len() && weights.len() == steps * TILE * panels);
        let input = input.lines[rows.start * steps..].as_ptr().cast();
        let place = Place { weights: weights.as_ptr().cast(), panels, input, steps };
        // SAFETY: as in the products of int8: the instructions exist, and whole tiles lie in their buffers, as asserted.
        unsafe { self.0.multiply(&place, rows.len(), sums) };
    }
    #[inline(always)]
    fn added(self, line: &Floats) -> __m512 {
        self.lanes().load(line)
    }
    #[inline(always)]
    fn scale(self, _scales: &[Floats], _panel: usize) -> __m512 {
        self.lanes().splat(1.0)
    }
    #[inline(always)]
    fn value(self, sums: &Floats, added: __m512, _scale: __m512) -> __m512 {
        self.lanes().add(self.lanes().load(sums), added)
    }
}
