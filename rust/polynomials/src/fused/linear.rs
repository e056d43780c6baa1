//! Layers over rows: products block by block, with the epilogue of a block while its accumulators are in the L1 cache.

use std::ops::Range;

use super::cell;
use super::lanes::{Floats, Lanes, Proven};
use super::model::{Linear, Model, Recurrent};
use super::products::{Arithmetic, Block, Blocks, Factors, FloatsOf, Input, NumberOf, PANELS, ROWS, Row, Weights};

/// Takes the outputs of a layer.
pub(super) trait Sink<L: Lanes> {
    /// Takes `P` panels of a row, from `panel`: [`PANELS`] of a whole block, or one.
    fn take<const P: usize>(&mut self, l: L, row: usize, panel: usize, values: [L::F; P]);
}

/// What is done with the sums of a block, and those of its low bytes.
trait Finish<A: Arithmetic> {
    fn finish(&mut self, a: A, panels: Range<usize>, rows: Range<usize>, sums: &[Block<NumberOf<A>>; 2]);
}

/// Computes the products of the first `rows` of `input`, and finishes each block while the next is computed: units for
/// products and for the rest work side by side.
#[inline(always)]
fn products<A: Arithmetic>(
    a: A,
    (model, linear): (&Model<A::Weights>, &Linear<A::Weights>),
    input: &A::Input,
    rows: usize,
    sums: &mut Blocks<NumberOf<A>>,
    mut finish: impl Finish<A>,
) {
    let multiply = |panel: usize, row: usize, [sums, low]: &mut [Block<NumberOf<A>>; 2]| {
        let (weights, panels) = model.block(linear, panel);
        let factors = || Factors { weights, panels, input, rows: row..rows.min(row + ROWS) };
        a.multiply(factors(), sums);
        if linear.wide {
            a.multiply_low(factors(), low);
        }
    };
    let [mut now, mut next] = sums.each_mut();
    let (mut panel, mut row) = (0, 0);
    multiply(panel, row, now);
    loop {
        let (panels, here) = (panel..linear.panels.min(panel + PANELS), row..rows.min(row + ROWS));
        row += ROWS;
        if row >= rows {
            (panel, row) = (panel + PANELS, 0);
        }
        if panel >= linear.panels {
            finish.finish(a, panels, here, now);
            break;
        }
        multiply(panel, row, next);
        finish.finish(a, panels, here, now);
        (now, next) = (next, now);
    }
}

/// Applies a layer to the first `rows` of `input`, at least one.
#[inline(always)]
pub(super) fn apply<A: Arithmetic>(
    a: A,
    (model, linear): (&Model<A::Weights>, &Linear<A::Weights>),
    input: &A::Input,
    rows: usize,
    sums: &mut Blocks<NumberOf<A>>,
    sink: impl Sink<A::Lanes>,
) {
    products(a, (model, linear), input, rows, sums, Apply { linear, sink });
}

struct Apply<'a, W: Weights, S> {
    linear: &'a Linear<W>,
    sink: S,
}

impl<A: Arithmetic, S: Sink<A::Lanes>> Finish<A> for Apply<'_, A::Weights, S> {
    #[inline(always)]
    fn finish(&mut self, a: A, panels: Range<usize>, rows: Range<usize>, sums: &[Block<NumberOf<A>>; 2]) {
        if panels.len() == PANELS {
            self.panels::<A, PANELS>(a, panels.start, 0, rows, sums);
        } else {
            for at in 0..panels.len() {
                self.panels::<A, 1>(a, panels.start + at, at, rows.clone(), sums);
            }
        }
    }
}

impl<W: Weights, S> Apply<'_, W, S> {
    #[inline(always)]
    fn panels<A, const P: usize>(
        &mut self,
        a: A,
        panel: usize,
        at: usize,
        rows: Range<usize>,
        [sums, low]: &[Block<NumberOf<A>>; 2],
    ) where
        A: Arithmetic<Weights = W>,
        S: Sink<A::Lanes>,
    {
        let l = a.lanes();
        let (bias, scales) = (&self.linear.bias[panel..panel + P], &self.linear.scales);
        let mut added = [a.added(&bias[0]); P];
        let mut scale = [a.scale(scales, panel); P];
        for p in 1..P {
            (added[p], scale[p]) = (a.added(&bias[p]), a.scale(scales, panel + p));
        }
        for (row, (sums, low)) in rows.zip(sums.iter().zip(low)) {
            let mut values = [l.splat(0.0); P];
            for p in 0..P {
                values[p] = if self.linear.wide {
                    a.value_wide(&sums[at + p], &low[at + p], added[p], scale[p])
                } else {
                    a.value(&sums[at + p], added[p], scale[p])
                };
            }
            self.sink.take(l, row, panel, values);
        }
    }
}

/// The rows of an LSTM: what goes in and what comes out.
pub(super) struct Step<'a, I> {
    /// A token for each row, at least one.
    pub(super) tokens: &'a [u8],
    /// The hidden state before.
    pub(super) before: &'a I,
    /// The hidden state after, for the next step.
    pub(super) after: &'a mut I,
    /// Cells by row.
    pub(super) cells: &'a mut [Floats],
    /// Where the hidden state after goes in float32: the rows of `states` begin at `places`.
    pub(super) states: &'a mut [Floats],
    pub(super) places: &'a [usize],
}

/// Takes one more token into every row of an LSTM.
#[inline(always)]
pub(super) fn recur<A: Arithmetic>(
    a: A,
    (model, lstm): (&Model<A::Weights>, &Recurrent<A::Weights>),
    step: Step<'_, A::Input>,
    sums: &mut Blocks<NumberOf<A>>,
) {
    let Step { tokens, before, after, cells, states, places } = step;
    let lines = lstm.gates.panels / PANELS;
    let inverse = a.lanes().splat(lstm.gates.inverse);
    let cells = Cells::<A> { lstm, tokens, after, cells, states, places, lines, inverse };
    products(a, (model, &lstm.gates), before, tokens.len(), sums, cells);
}

struct Cells<'a, A: Arithmetic> {
    lstm: &'a Recurrent<A::Weights>,
    tokens: &'a [u8],
    after: &'a mut A::Input,
    cells: &'a mut [Floats],
    states: &'a mut [Floats],
    places: &'a [usize],
    lines: usize,
    inverse: FloatsOf<A>,
}

impl<A: Arithmetic> Finish<A> for Cells<'_, A> {
    #[inline(always)]
    fn finish(&mut self, a: A, panels: Range<usize>, rows: Range<usize>, [sums, _]: &[Block<NumberOf<A>>; 2]) {
        let l = a.lanes();
        let line = panels.start / PANELS;
        let scales = &self.lstm.gates.scales;
        let mut scale = [a.scale(scales, panels.start); PANELS];
        for (gate, scale) in scale.iter_mut().enumerate().skip(1) {
            *scale = a.scale(scales, panels.start + gate);
        }
        for (row, sums) in rows.zip(sums) {
            let token = usize::from(self.tokens[row]) * self.lines * PANELS;
            let added = &self.lstm.table[token + panels.start..][..PANELS];
            let mut gates = [l.splat(0.0); PANELS];
            for gate in 0..PANELS {
                gates[gate] = a.value(&sums[gate], a.added(&added[gate]), scale[gate]);
            }
            let cell = &mut self.cells[row * self.lines + line];
            let (hidden, new) = cell::cell(l, gates, l.load(cell));
            l.store(new, cell);
            l.store(hidden, &mut self.states[self.places[row] + line]);
            self.after.row(row).put(l, line, hidden, self.inverse);
        }
    }
}
