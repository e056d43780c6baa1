//! Products of int8: exact sums in int32, the same at every level.
//!
//! Inputs are stored 128 too large, as unsigned bytes, which is what the instructions want; a correction of every sum by
//! -128 times its weights, part of the bias, takes that back.

use std::marker::PhantomData;
use std::ops::Range;

use super::{Arithmetic, Block, Factors, Input, Matrix, PANELS, ROWS, Row, Weights};
use crate::fused::lanes::{Bytes, Floats, LANES, Lanes, Scalar, Sums};

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
}

/// Rows of int8, 128 too large.
#[derive(Debug)]
pub(in crate::fused) struct ByteRows {
    steps: usize,
    lines: Vec<Bytes>,
}

/// A row of [`ByteRows`], 16 bytes a vector.
#[derive(Debug)]
pub(in crate::fused) struct ByteRow<'a> {
    first: *mut [u8; LANES],
    len: usize,
    row: PhantomData<&'a mut [Bytes]>,
}

impl<L: Lanes> Input<L> for ByteRows {
    type Row<'a> = ByteRow<'a>;

    fn new(rows: usize, lines: usize) -> Self {
        let steps = (lines * LANES).div_ceil(STEP);
        Self { steps, lines: vec![Bytes::default(); rows.next_multiple_of(ROWS) * steps] }
    }
    #[inline(always)]
    fn row(&mut self, row: usize) -> ByteRow<'_> {
        let row = &mut self.lines[row * self.steps..][..self.steps];
        ByteRow { first: row.as_mut_ptr().cast(), len: row.len() * (STEP / LANES), row: PhantomData }
    }
    fn copy(&mut self, from: usize, to: usize) {
        self.lines.copy_within(from * self.steps..(from + 1) * self.steps, to * self.steps);
    }
}

impl<L: Lanes> Row<L> for ByteRow<'_> {
    #[inline(always)]
    fn put(&mut self, l: L, line: usize, v: L::F, inverse: L::F) {
        assert!(line < self.len);
        // SAFETY: the row, borrowed for as long as `self` lives, holds `len` times 16 bytes.
        unsafe { self.first.add(line).write(l.to_bytes(v, inverse)) };
    }
}

impl<P: ByteProducts> Arithmetic for Integer<P> {
    type Lanes = P::Lanes;
    type Weights = ByteWeights;
    type Input = ByteRows;
    type Kept = Floats;
    type Added = <P::Lanes as Lanes>::I;
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
        let Factors { weights, panels, input, rows } = factors;
        let steps = input.steps;
        assert!(rows.len() <= ROWS && panels <= PANELS && weights.len() == steps * STEP / GROUP * panels);
        let input = &input.lines[rows.start * steps..];
        self.0.multiply(&Operands { weights, panels, input, steps, rows: rows.len() }, sums);
    }
    #[inline(always)]
    fn added(self, line: &Sums) -> Self::Added {
        self.0.lanes().load_sums(line)
    }
    #[inline(always)]
    fn scale(self, scales: &[Floats], panel: usize) -> <P::Lanes as Lanes>::F {
        self.0.lanes().load(&scales[panel])
    }
    #[inline(always)]
    fn value(self, sums: &Sums, added: Self::Added, scale: <P::Lanes as Lanes>::F) -> <P::Lanes as Lanes>::F {
        let l = self.0.lanes();
        l.mul(l.to_floats(l.add_sums(l.load_sums(sums), added)), scale)
    }
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
