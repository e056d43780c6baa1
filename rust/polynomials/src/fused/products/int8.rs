//! Products of int8: exact sums in int32, the same at every level.
//!
//! Inputs are stored as unsigned bytes with an offset of 128, which the instructions need. The bias holds the correction of
//! each sum: -128 times the sum of its weights.
//!
//! Inputs of 16 bits are two such rows, high and low bytes, with an offset of 32768 together. The result is 256 times the
//! sum of the high bytes plus the sum of the low bytes.

use std::marker::PhantomData;
use std::ops::Range;

use super::{Arithmetic, Block, Factors, Input, Matrix, PANELS, ROWS, Row, Weights};
use crate::fused::kept::Small;
use crate::fused::lanes::{Bytes, Floats, LANES, Lanes, Proven, Registers, Scalar, Sums};

/// Inputs are filled up to a multiple of this: what one step of AMX takes.
const STEP: usize = 64;
/// Inputs that a lane multiplies at once.
const GROUP: usize = 4;

/// int8 with the products of `P`.
#[derive(Clone, Copy, Debug)]
pub(in crate::fused) struct Integer<P>(pub(in crate::fused) P);

/// Products of bytes on one instruction set.
pub(in crate::fused) trait ByteProducts: Copy + Send + Sync + 'static {
    /// The instruction set of everything else.
    type Lanes: Lanes;
    /// See [`Arithmetic::Session`].
    type Session;
    /// See [`Arithmetic::TOGETHER`].
    const TOGETHER: usize = 24;
    /// The instruction set.
    fn lanes(self) -> Self::Lanes;
    /// See [`Arithmetic::session`].
    fn session(self) -> Self::Session;
    /// Computes the sums of a block.
    fn multiply(self, operands: &Operands, sums: &mut Block<i32>);
}

/// Where the factors of a block lie.
#[derive(Debug)]
pub(in crate::fused) struct Operands<'a> {
    /// `steps` times 16 times `panels` lines: 16 columns times 4 inputs a line.
    pub(in crate::fused) weights: &'a [Bytes],
    /// At most [`PANELS`].
    pub(in crate::fused) panels: usize,
    /// Rows of `steps` lines, to the end of the buffer, so that a whole number of tiles of 16 rows is there.
    pub(in crate::fused) input: &'a [Bytes],
    /// Steps of 64 inputs.
    pub(in crate::fused) steps: usize,
    /// Rows asked for, at most [`ROWS`].
    pub(in crate::fused) rows: usize,
}

/// int8 weights by block, then groups of four inputs, then panel: a line holds a panel's weights of a group, by column.
#[derive(Debug)]
pub(in crate::fused) struct ByteWeights;

impl Weights for ByteWeights {
    type Code = i8;
    type Number = i32;
    type Line = Bytes;

    fn depth(columns: usize) -> usize {
        columns.next_multiple_of(STEP) / GROUP
    }

    fn pack(matrix: &Matrix<i8>, panels: Range<usize>, lines: &mut Vec<Bytes>) {
        for group in 0..Self::depth(matrix.columns) {
            lines.extend(panels.clone().map(|panel| {
                let mut line = Bytes::default();
                for (i, to) in line.0.iter_mut().enumerate() {
                    *to = matrix.at(panel * LANES + i / GROUP, group * GROUP + i % GROUP).cast_unsigned();
                }
                line
            }));
        }
    }

    fn correction(row: &[i8]) -> i32 {
        row.iter().fold(0, |sum, &code| sum - 128 * i32::from(code))
    }
    fn correction_wide(row: &[i8]) -> i32 {
        row.iter().fold(0, |sum: i32, &code| sum.wrapping_sub(32768 * i32::from(code)))
    }
}

/// Rows of int8, 128 too large; or of int16.
#[derive(Debug)]
pub(in crate::fused) struct ByteRows {
    steps: usize,
    /// Bytes of int8 or high bytes of int16, then as many low bytes of int16.
    lines: Vec<Bytes>,
    wide: bool,
}

/// A row of [`ByteRows`], 16 bytes a vector.
#[derive(Debug)]
pub(in crate::fused) struct ByteRow<'a> {
    first: *mut [u8; LANES],
    /// Where the low bytes are, if there are some.
    low: Option<*mut [u8; LANES]>,
    len: usize,
    row: PhantomData<&'a mut [Bytes]>,
}

impl<L: Lanes> Input<L> for ByteRows {
    type Row<'a> = ByteRow<'a>;

    fn new(rows: usize, lines: usize) -> Self {
        let steps = (lines * LANES).div_ceil(STEP);
        Self { steps, lines: vec![Bytes::default(); 2 * rows.next_multiple_of(ROWS) * steps], wide: false }
    }
    #[inline(always)]
    fn row(&mut self, row: usize) -> ByteRow<'_> {
        let half = self.lines.len() / 2;
        let (high, low) = self.lines.split_at_mut(half);
        let [high, low] = [high, low].map(|lines| &mut lines[row * self.steps..][..self.steps]);
        let low = self.wide.then(|| low.as_mut_ptr().cast());
        ByteRow { first: high.as_mut_ptr().cast(), low, len: high.len() * (STEP / LANES), row: PhantomData }
    }
    fn widen(&mut self, wide: bool) {
        self.wide = wide;
    }
    fn copy(&mut self, from: usize, to: usize) {
        for first in [0, self.lines.len() / 2] {
            let rows = &mut self.lines[first..];
            rows.copy_within(from * self.steps..(from + 1) * self.steps, to * self.steps);
        }
    }
}

impl<L: Lanes> Row<L> for ByteRow<'_> {
    #[inline(always)]
    fn put(&mut self, l: L, line: usize, v: L::F, inverse: L::F) {
        assert!(line < self.len);
        // SAFETY: the row, borrowed for as long as `self` lives, holds `len` times 16 bytes, and so does that of low ones.
        unsafe {
            if let Some(low) = self.low {
                let [high_bytes, low_bytes] = l.to_words(v, inverse);
                self.first.add(line).write(high_bytes);
                low.add(line).write(low_bytes);
            } else {
                self.first.add(line).write(l.to_bytes(v, inverse));
            }
        }
    }
}

impl<P: ByteProducts> Arithmetic for Integer<P> {
    type Lanes = P::Lanes;
    type Weights = ByteWeights;
    type Input = ByteRows;
    type Kept = Small;
    type Added = <P::Lanes as Registers>::I;
    type Session = P::Session;
    const TOGETHER: usize = P::TOGETHER;

    #[inline(always)]
    fn lanes(self) -> P::Lanes {
        self.0.lanes()
    }
    #[inline(always)]
    fn session(self) -> P::Session {
        self.0.session()
    }
    #[inline(always)]
    fn multiply(self, factors: Factors<'_, ByteWeights, ByteRows>, sums: &mut Block<i32>) {
        self.0.multiply(&operands(&factors, 0), sums);
    }
    #[inline(always)]
    fn multiply_low(self, factors: Factors<'_, ByteWeights, ByteRows>, sums: &mut Block<i32>) {
        self.0.multiply(&operands(&factors, factors.input.lines.len() / 2), sums);
    }
    #[inline(always)]
    fn added(self, line: &Sums) -> Self::Added {
        self.0.lanes().load_sums(line)
    }
    #[inline(always)]
    fn scale(self, scales: &[Floats], panel: usize) -> <P::Lanes as Registers>::F {
        self.0.lanes().load(&scales[panel])
    }
    #[inline(always)]
    fn value(self, sums: &Sums, added: Self::Added, scale: <P::Lanes as Registers>::F) -> <P::Lanes as Registers>::F {
        let l = self.0.lanes();
        l.mul(l.to_floats(l.add_sums(l.load_sums(sums), added)), scale)
    }
    #[inline(always)]
    fn value_wide(
        self,
        sums: &Sums,
        low: &Sums,
        added: Self::Added,
        scale: <P::Lanes as Registers>::F,
    ) -> <P::Lanes as Registers>::F {
        let l = self.0.lanes();
        let high = l.add_sums(l.to_high_bytes(l.load_sums(sums)), added);
        l.mul(l.to_floats(l.add_sums(high, l.load_sums(low))), scale)
    }
}

/// The factors of a block, the input's from its line `first`.
#[inline(always)]
fn operands<'a>(factors: &Factors<'a, ByteWeights, ByteRows>, first: usize) -> Operands<'a> {
    let Factors { weights, panels, input, ref rows } = *factors;
    let steps = input.steps;
    assert!(rows.len() <= ROWS && panels <= PANELS && weights.len() == steps * STEP / GROUP * panels);
    let input = &input.lines[first..][..input.lines.len() / 2][rows.start * steps..];
    Operands { weights, panels, input, steps, rows: rows.len() }
}

impl ByteProducts for Scalar {
    type Lanes = Self;
    type Session = ();

    #[inline(always)]
    fn lanes(self) -> Self {
        self
    }
    #[inline(always)]
    fn session(self) {}
    fn multiply(self, operands: &Operands, sums: &mut Block<i32>) {
        let Operands { weights, panels, input, steps, rows } = *operands;
        for (row, sums) in input.chunks_exact(steps).take(rows).zip(sums) {
            *sums = Default::default();
            let inputs = row.iter().flat_map(|line| line.0.as_chunks::<GROUP>().0);
            for (weights, inputs) in weights.chunks_exact(panels).zip(inputs) {
                for (weights, sums) in weights.iter().zip(&mut *sums) {
                    for (sum, weights) in sums.0.iter_mut().zip(weights.0.as_chunks::<GROUP>().0) {
                        for (&w, &x) in weights.iter().zip(inputs) {
                            *sum = sum.wrapping_add(i32::from(w.cast_signed()) * i32::from(x));
                        }
                    }
                }
            }
        }
    }
}
