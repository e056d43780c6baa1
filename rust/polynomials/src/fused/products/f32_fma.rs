//! Products in float32: one chain of fused multiply-adds for each sum, in the order of the inputs.

use std::ops::Range;

use super::{Arithmetic, Block, Factors, Input, Matrix, PANELS, ROWS, Row, Weights};
use crate::fused::lanes::{Floats, Job, LANES, Lanes};

/// float32 on some lanes.
#[derive(Clone, Copy, Debug)]
pub(in crate::fused) struct Float<L>(pub(in crate::fused) L);

/// Weights by block, then input, then panel: a line holds a panel's weights of one input.
#[derive(Debug)]
pub(in crate::fused) struct FloatWeights;

impl Weights for FloatWeights {
    type Code = f32;
    type Number = f32;
    type Line = Floats;

    fn depth(columns: usize) -> usize {
        columns
    }

    fn pack(matrix: &Matrix<f32>, panels: Range<usize>, lines: &mut Vec<Floats>) {
        for column in 0..matrix.columns {
            lines.extend(panels.clone().map(|panel| {
                let mut line = Floats::default();
                for (i, to) in line.0.iter_mut().enumerate() {
                    *to = matrix.at(panel * LANES + i, column);
                }
                line
            }));
        }
    }

    fn correction(_row: &[f32]) -> f32 {
        0.0
    }
}

/// Rows of float32.
#[derive(Debug)]
pub(in crate::fused) struct FloatRows {
    stride: usize,
    lines: Vec<Floats>,
}

impl<L: Lanes> Input<L> for FloatRows {
    type Row<'a> = &'a mut [Floats];

    fn new(rows: usize, lines: usize) -> Self {
        Self { stride: lines, lines: vec![Floats::default(); rows * lines] }
    }
    #[inline(always)]
    fn row(&mut self, row: usize) -> &mut [Floats] {
        &mut self.lines[row * self.stride..][..self.stride]
    }
    fn copy(&mut self, from: usize, to: usize) {
        self.lines.copy_within(from * self.stride..(from + 1) * self.stride, to * self.stride);
    }
}

impl<L: Lanes> Row<L> for &mut [Floats] {
    #[inline(always)]
    fn put(&mut self, l: L, line: usize, v: L::F, _inverse: L::F) {
        l.store(v, &mut self[line]);
    }
}

impl<L: Lanes> Arithmetic for Float<L> {
    type Lanes = L;
    type Weights = FloatWeights;
    type Input = FloatRows;
    type Kept = Floats;
    type Added = L::F;
    type Session = ();
    const TOGETHER: usize = 24;

    #[inline(always)]
    fn lanes(self) -> L {
        self.0
    }
    #[inline(always)]
    fn session(self) {}
    #[inline(always)]
    fn multiply(self, factors: Factors<'_, FloatWeights, FloatRows>, sums: &mut Block<f32>) {
        self.0.run(Multiply { factors, sums });
    }
    #[inline(always)]
    fn added(self, line: &Floats) -> L::F {
        self.0.load(line)
    }
    #[inline(always)]
    fn scale(self, _scales: &[Floats], _panel: usize) -> L::F {
        self.0.splat(1.0)
    }
    #[inline(always)]
    fn value(self, sums: &Floats, added: L::F, _scale: L::F) -> L::F {
        self.0.add(self.0.load(sums), added)
    }
}

struct Multiply<'a> {
    factors: Factors<'a, FloatWeights, FloatRows>,
    sums: &'a mut Block<f32>,
}

impl<L: Lanes> Job<L> for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, l: L) {
        let Self { factors: Factors { weights, panels, input, rows }, sums } = self;
        let columns = input.stride * LANES;
        assert!(rows.len() <= ROWS && panels <= PANELS && weights.len() == panels * columns);
        assert!(rows.end * input.stride <= input.lines.len());
        let (most_rows, most_panels) = L::BLOCK;
        let chunks = rows.len().div_ceil(most_rows);
        for (chunk, sums) in sums[..rows.len()].chunks_mut(most_rows).enumerate() {
            // SAFETY: rows lie in their buffer, as asserted, `columns` in each, and so do the lines of the weights.
            let input =
                unsafe { input.lines.as_ptr().add((rows.start + chunk * most_rows) * input.stride).cast::<f32>() };
            let part = Part { weights: weights.as_ptr(), panels, input, columns, ahead: ahead(chunk, chunks) };
            // SAFETY: as above.
            unsafe {
                if most_panels == PANELS && panels == PANELS {
                    match sums.len() {
                        1 => chains::<L, 1, 4>(l, &part, sums, 0),
                        2 => chains::<L, 2, 4>(l, &part, sums, 0),
                        3 => chains::<L, 3, 4>(l, &part, sums, 0),
                        4 => chains::<L, 4, 4>(l, &part, sums, 0),
                        5 => chains::<L, 5, 4>(l, &part, sums, 0),
                        _ => chains::<L, 6, 4>(l, &part, sums, 0),
                    }
                } else {
                    for panel in 0..panels {
                        match sums.len() {
                            1 => chains::<L, 1, 1>(l, &part, sums, panel),
                            2 => chains::<L, 2, 1>(l, &part, sums, panel),
                            3 => chains::<L, 3, 1>(l, &part, sums, panel),
                            4 => chains::<L, 4, 1>(l, &part, sums, panel),
                            5 => chains::<L, 5, 1>(l, &part, sums, panel),
                            _ => chains::<L, 6, 1>(l, &part, sums, panel),
                        }
                    }
                }
            }
        }
    }
}

/// The rows of a block that are computed at once.
struct Part {
    weights: *const Floats,
    panels: usize,
    input: *const f32,
    columns: usize,
    /// Lines of the next block to ask for with every input: from the first, this many of [`PANELS`].
    ahead: (usize, usize),
}

/// Spreads the asking for the next block's weights, which may lie outside of the second cache, over the parts.
const fn ahead(part: usize, parts: usize) -> (usize, usize) {
    let each = PANELS.div_ceil(parts);
    let first = part * each;
    (first, if first < PANELS { each } else { 0 })
}

/// The sums of `R` rows and `P` panels from `panel`.
///
/// # Safety
/// `weights` must cover `columns` times `panels` lines, `input` `R` rows of `columns`; `sums` must have `R` rows, and
/// `panel + P` be at most `panels`.
#[inline(always)]
unsafe fn chains<L: Lanes, const R: usize, const P: usize>(
    l: L,
    part: &Part,
    sums: &mut [[Floats; PANELS]],
    panel: usize,
) {
    let Part { weights, panels, input, columns, ahead: (first, each) } = *part;
    let mut chains = [[l.splat(0.0); P]; R];
    for k in 0..columns {
        let line = weights.wrapping_add(k * panels + panel);
        if P == PANELS {
            for at in 0..each {
                l.fetch(line.wrapping_add(columns * PANELS + first + at));
            }
        }
        let mut w = [l.splat(0.0); P];
        for (p, w) in w.iter_mut().enumerate() {
            // SAFETY: inside, as the caller promises.
            *w = l.load(unsafe { &*line.add(p) });
        }
        for (r, chain) in chains.iter_mut().enumerate() {
            // SAFETY: as above.
            let x = l.splat(unsafe { *input.add(r * columns + k) });
            for p in 0..P {
                chain[p] = l.fma(x, w[p], chain[p]);
            }
        }
    }
    for (chain, sums) in chains.iter().zip(sums) {
        for p in 0..P {
            l.store(chain[p], &mut sums[panel + p]);
        }
    }
}
