//! One step of the decoder: the next token of every row that has not ended.

use super::attention::{Memory, attend, room};
use super::encode::Encoded;
use super::kept::Kept;
use super::lanes::{Floats, LANES, Lanes, Proven};
use super::linear::{Sink, Step, apply, recur};
use super::model::{Linear, Model, Norm};
use super::norm::normalize;
use super::products::{Arithmetic, Blocks, Input, NumberOf, Row};

/// Special tokens; pad and start are never chosen.
pub(super) const START: u8 = 1;
pub(super) const END: u8 = 2;

/// A row that goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    /// Which of the encoded sources it is.
    pub(super) slot: usize,
    /// Tokens taken in so far.
    pub(super) position: usize,
    /// The latest.
    pub(super) token: u8,
}

/// Memory of the decoder. Rows of all fields are those of `active`.
pub(super) struct Decoder<A: Arithmetic> {
    pub(super) active: Vec<Active>,
    /// The hidden state before and after a step.
    hidden: [A::Input; 2],
    cells: Vec<Floats>,
    /// What goes through the layers.
    x: Vec<Floats>,
    normed: A::Input,
    query: Vec<Floats>,
    mixed: A::Input,
    inner: A::Input,
    logits: Vec<Floats>,
    /// Keys and values of the self-attention, by slot.
    own: Vec<Memory<A::Kept>>,
    scores: Vec<Floats>,
    tokens: Vec<u8>,
    places: Vec<usize>,
    /// Most rows.
    rows: usize,
}

impl<A: Arithmetic> Decoder<A> {
    /// Memory for `rows` rows of a model, which are those of `slots` encoded sources.
    pub(super) fn new(model: &Model<A::Weights>, rows: usize, slots: usize) -> Self {
        let shape = &model.shape;
        let lines = |width: usize| vec![Floats::default(); rows * width];
        Self {
            active: Vec::with_capacity(rows),
            hidden: std::array::from_fn(|_| A::Input::new(rows, shape.hidden_lines)),
            cells: lines(shape.hidden_lines),
            x: lines(shape.hidden_lines),
            normed: A::Input::new(rows, shape.hidden_lines),
            query: lines(shape.attention_lines),
            mixed: A::Input::new(rows, shape.attention_lines),
            inner: A::Input::new(rows, shape.inner_lines),
            logits: lines(model.output.panels),
            own: (0..slots).map(|_| Memory::default()).collect(),
            scores: room(rows, shape.max_source.max(shape.max_target)),
            tokens: Vec::with_capacity(rows),
            places: Vec::with_capacity(rows),
            rows,
        }
    }

    /// Adds a row, that of an encoded source.
    #[inline(always)]
    pub(super) fn add(&mut self, a: A, model: &Model<A::Weights>, slot: usize, encoded: &Encoded<A::Kept>) {
        let l = a.lanes();
        let lines = model.shape.hidden_lines;
        let inverse = l.splat(model.decoder.gates.inverse);
        let row = self.active.len();
        let (hidden, cell) = encoded.start.split_at(lines);
        for (line, hidden) in hidden.iter().enumerate() {
            self.hidden[0].row(row).put(l, line, l.load(hidden), inverse);
        }
        self.cells[row * lines..(row + 1) * lines].copy_from_slice(cell);
        self.active.push(Active { slot, position: 0, token: START });
    }

    /// Takes out a row; the last one takes its place.
    pub(super) fn remove(&mut self, row: usize) {
        let last = self.active.len() - 1;
        let lines = self.cells.len() / self.rows;
        self.hidden[0].copy(last, row);
        self.cells.copy_within(last * lines..(last + 1) * lines, row * lines);
        self.active.swap_remove(row);
    }

    /// Finds the next token of every row.
    #[inline(always)]
    pub(super) fn step(
        &mut self,
        a: A,
        model: &Model<A::Weights>,
        encoded: &[Encoded<A::Kept>],
        sums: &mut Blocks<NumberOf<A>>,
    ) {
        let l = a.lanes();
        let (shape, rows) = (&model.shape, self.active.len());
        let (width, lines) = (shape.attention_lines, shape.hidden_lines);
        self.tokens.clear();
        self.tokens.extend(self.active.iter().map(|active| active.token));
        self.places.clear();
        self.places.extend((0..rows).map(|row| row * lines));
        let [before, after] = &mut self.hidden;
        let cells = &mut self.cells[..rows * lines];
        let (tokens, places) = (&self.tokens[..], &self.places[..]);
        recur(a, (model, &model.decoder), Step { tokens, before, after, cells, states: &mut self.x, places }, sums);
        self.hidden.swap(0, 1);

        self.normalize(a, &model.self_norm, lines, &model.self_input);
        for active in &self.active {
            self.own[active.slot].reserve(active.position + 1, width);
        }
        let sink = SelfInput { width, query: &mut self.query, active: &self.active, own: &mut self.own };
        apply(a, (model, &model.self_input), &self.normed, rows, sums, sink);
        let inverse = l.splat(model.self_output.inverse);
        self.mixed.widen(model.self_output.wide);
        let (queries, active, own) = (&self.query[..rows * width], &self.active, &self.own);
        let memory = |row: usize| (&own[active[row].slot], active[row].position + 1);
        attend(l, shape, queries, memory, &mut self.scores, &mut self.mixed, inverse);
        apply(a, (model, &model.self_output), &self.mixed, rows, sums, Add { x: &mut self.x, width: lines });

        for (number, block) in model.blocks.iter().enumerate() {
            self.normalize(a, &block.cross_norm, lines, &block.query);
            apply(a, (model, &block.query), &self.normed, rows, sums, Store { to: &mut self.query, width });
            let inverse = l.splat(block.output.inverse);
            self.mixed.widen(block.output.wide);
            let (queries, active) = (&self.query[..rows * width], &self.active);
            let memory = |row: usize| {
                let encoded = &encoded[active[row].slot];
                (&encoded.blocks[number], encoded.length)
            };
            attend(l, shape, queries, memory, &mut self.scores, &mut self.mixed, inverse);
            apply(a, (model, &block.output), &self.mixed, rows, sums, Add { x: &mut self.x, width: lines });
            self.normalize(a, &block.inner_norm, lines, &block.expand);
            let inverse = l.splat(block.contract.inverse);
            self.inner.widen(block.contract.wide);
            apply(a, (model, &block.expand), &self.normed, rows, sums, Relu { inner: &mut self.inner, inverse });
            apply(a, (model, &block.contract), &self.inner, rows, sums, Add { x: &mut self.x, width: lines });
        }

        self.normalize(a, &model.output_norm, lines, &model.output);
        let width = model.output.panels;
        apply(a, (model, &model.output), &self.normed, rows, sums, Store { to: &mut self.logits, width });
        for (active, logits) in self.active.iter_mut().zip(self.logits.chunks_exact(width)) {
            active.token = most_likely(logits, shape.vocabulary);
            active.position += 1;
        }
    }

    /// Writes the norm of the rows as input of `reader`.
    #[inline(always)]
    fn normalize(&mut self, a: A, norm: &Norm, lines: usize, reader: &Linear<A::Weights>) {
        let l = a.lanes();
        let inverse = l.splat(reader.inverse);
        self.normed.widen(reader.wide);
        normalize(l, norm, &self.x[..self.active.len() * lines], &mut self.normed, inverse);
    }
}

/// The token of the largest logit, the lowest of equals; never pad or start.
#[inline(always)]
fn most_likely(logits: &[Floats], vocabulary: usize) -> u8 {
    let (mut token, mut largest) = (END, f32::NEG_INFINITY);
    for candidate in usize::from(END)..vocabulary {
        let logit = logits[candidate / LANES].0[candidate % LANES];
        if logit > largest {
            (token, largest) = (candidate as u8, logit);
        }
    }
    token
}

/// Adds to the rows.
struct Add<'a> {
    x: &'a mut [Floats],
    width: usize,
}

impl<L: Lanes> Sink<L> for Add<'_> {
    #[inline(always)]
    fn take<const P: usize>(&mut self, l: L, row: usize, panel: usize, values: [L::F; P]) {
        let first = row * self.width + panel;
        for (x, v) in self.x[first..first + P].iter_mut().zip(values) {
            l.store(l.add(l.load(x), v), x);
        }
    }
}

/// Stores by row.
struct Store<'a> {
    to: &'a mut [Floats],
    width: usize,
}

impl<L: Lanes> Sink<L> for Store<'_> {
    #[inline(always)]
    fn take<const P: usize>(&mut self, l: L, row: usize, panel: usize, values: [L::F; P]) {
        let first = row * self.width + panel;
        for (to, v) in self.to[first..first + P].iter_mut().zip(values) {
            l.store(v, to);
        }
    }
}

/// What is above zero, as input of the next layer.
struct Relu<'a, L: Lanes, I> {
    inner: &'a mut I,
    inverse: L::F,
}

impl<L: Lanes, I: Input<L>> Sink<L> for Relu<'_, L, I> {
    #[inline(always)]
    fn take<const P: usize>(&mut self, l: L, row: usize, panel: usize, values: [L::F; P]) {
        let mut to = self.inner.row(row);
        for (at, v) in values.into_iter().enumerate() {
            to.put(l, panel + at, l.max(v, l.splat(0.0)), self.inverse);
        }
    }
}

/// Query, key and value of the self-attention.
struct SelfInput<'a, K> {
    width: usize,
    query: &'a mut [Floats],
    active: &'a [Active],
    own: &'a mut [Memory<K>],
}

impl<L: Lanes, K: Kept<L>> Sink<L> for SelfInput<'_, K> {
    #[inline(always)]
    fn take<const P: usize>(&mut self, l: L, row: usize, panel: usize, values: [L::F; P]) {
        let (part, line) = (panel / self.width, panel % self.width);
        let Active { slot, position, .. } = self.active[row];
        match part {
            0 => Store { to: self.query, width: self.width }.take(l, row, line, values),
            1 => self.own[slot].put_key(l, self.width, position, line, values),
            _ => self.own[slot].put_value(l, self.width, position, line, values),
        }
    }
}
