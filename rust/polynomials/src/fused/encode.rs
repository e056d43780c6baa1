//! The encoder: a group of sources becomes keys, values and the decoder's first state.

use super::attention::Memory;
use super::kept::Kept;
use super::lanes::{Floats, Lanes, Proven};
use super::linear::{Sink, Step, apply, recur};
use super::model::Model;
use super::norm::normalize;
use super::products::{Arithmetic, Blocks, Input, NumberOf, Row};
use octavo_core::simd::exp;

/// Most sources of a group.
pub(super) const GROUP: usize = 16;
/// Positions that are projected at once: their weights are read once for as many.
const POSITIONS: usize = 128;

/// What a source becomes.
#[derive(Debug, Default)]
pub(super) struct Encoded<K> {
    /// Which source it is.
    pub(super) row: usize,
    /// Tokens of the source.
    pub(super) length: usize,
    /// Keys and values of each block.
    pub(super) blocks: Vec<Memory<K>>,
    /// The decoder's first hidden state, then its first cell.
    pub(super) start: Vec<Floats>,
}

/// Memory of the encoder.
pub(super) struct Encoder<A: Arithmetic> {
    /// By direction: the hidden state before and after a step.
    hidden: [[A::Input; 2]; 2],
    cells: [Vec<Floats>; 2],
    /// Hidden states of both directions, by position of all sources.
    states: Vec<Floats>,
    normed: A::Input,
    ends: A::Input,
    tokens: Vec<u8>,
    places: Vec<usize>,
    /// By position of all sources: which of `encoded`, and which position of it.
    origins: Vec<(usize, usize)>,
}

impl<A: Arithmetic> Encoder<A> {
    /// Memory for a model.
    pub(super) fn new(model: &Model<A::Weights>) -> Self {
        let (lines, both) = (model.shape.encoder_lines, model.shape.memory_lines());
        Self {
            hidden: std::array::from_fn(|_| std::array::from_fn(|_| A::Input::new(GROUP, lines))),
            cells: std::array::from_fn(|_| vec![Floats::default(); GROUP * lines]),
            states: Vec::new(),
            normed: A::Input::new(POSITIONS, both),
            ends: A::Input::new(GROUP, both),
            tokens: Vec::with_capacity(GROUP),
            places: Vec::with_capacity(GROUP),
            origins: Vec::new(),
        }
    }

    /// Encodes at most [`GROUP`] sources, the longest first, each into the one of `encoded` that `slots` names.
    #[inline(always)]
    pub(super) fn encode(
        &mut self,
        a: A,
        model: &Model<A::Weights>,
        sources: &[&[u8]],
        slots: &[usize],
        encoded: &mut [Encoded<A::Kept>],
        sums: &mut Blocks<NumberOf<A>>,
    ) {
        let shape = &model.shape;
        let (both, width) = (shape.memory_lines(), shape.attention_lines);
        self.origins.clear();
        for (source, &slot) in sources.iter().zip(slots) {
            let encoded = &mut encoded[slot];
            self.origins.extend((0..source.len()).map(|position| (slot, position)));
            encoded.length = source.len();
            encoded.blocks.resize_with(shape.blocks, Memory::default);
            encoded.start.resize(2 * shape.hidden_lines, Floats::default());
            for memory in &mut encoded.blocks {
                memory.reserve(source.len(), width);
            }
        }
        if self.states.len() < self.origins.len() * both {
            self.states.resize(self.origins.len() * both, Floats::default());
        }
        self.run_lstms(a, model, sources, sums);
        self.project(a, model, encoded, sums);
        self.bridge(a, model, sources, slots, encoded, sums);
    }

    #[inline(always)]
    fn run_lstms(&mut self, a: A, model: &Model<A::Weights>, sources: &[&[u8]], sums: &mut Blocks<NumberOf<A>>) {
        let l = a.lanes();
        let (lines, both) = (model.shape.encoder_lines, model.shape.memory_lines());
        for direction in 0..2 {
            let inverse = l.splat(model.encoder[direction].gates.inverse);
            for row in 0..sources.len() {
                for line in 0..lines {
                    self.hidden[direction][0].row(row).put(l, line, l.splat(0.0), inverse);
                }
            }
            self.cells[direction].fill(Floats::default());
        }
        let mut rows = sources.len();
        for position in 0..sources.first().map_or(0, |source| source.len()) {
            while sources[rows - 1].len() <= position {
                rows -= 1;
            }
            for direction in 0..2 {
                self.tokens.clear();
                self.places.clear();
                let mut first = 0;
                for source in &sources[..rows] {
                    let at = if direction == 0 { position } else { source.len() - 1 - position };
                    self.tokens.push(source[at]);
                    self.places.push((first + at) * both + direction * lines);
                    first += source.len();
                }
                let [even, odd] = &mut self.hidden[direction];
                let (before, after) = if position % 2 == 0 { (&*even, odd) } else { (&*odd, even) };
                let step = Step {
                    tokens: &self.tokens,
                    before,
                    after,
                    cells: &mut self.cells[direction][..rows * lines],
                    states: &mut self.states,
                    places: &self.places,
                };
                recur(a, (model, &model.encoder[direction]), step, sums);
            }
        }
    }

    /// Keys and values of all blocks.
    #[inline(always)]
    fn project(
        &mut self,
        a: A,
        model: &Model<A::Weights>,
        encoded: &mut [Encoded<A::Kept>],
        sums: &mut Blocks<NumberOf<A>>,
    ) {
        let l = a.lanes();
        let both = model.shape.memory_lines();
        let inverse = l.splat(model.memory.inverse);
        self.normed.widen(model.memory.wide);
        for (origins, states) in self.origins.chunks(POSITIONS).zip(self.states.chunks(POSITIONS * both)) {
            normalize(l, &model.memory_norm, &states[..origins.len() * both], &mut self.normed, inverse);
            let sink = Project { origins, encoded, width: model.shape.attention_lines };
            apply(a, (model, &model.memory), &self.normed, origins.len(), sums, sink);
        }
    }

    /// The decoder's first state.
    #[inline(always)]
    fn bridge(
        &mut self,
        a: A,
        model: &Model<A::Weights>,
        sources: &[&[u8]],
        slots: &[usize],
        encoded: &mut [Encoded<A::Kept>],
        sums: &mut Blocks<NumberOf<A>>,
    ) {
        let l = a.lanes();
        let (lines, both) = (model.shape.encoder_lines, model.shape.memory_lines());
        let inverse = l.splat(model.bridge.inverse);
        self.ends.widen(model.bridge.wide);
        let mut first = 0;
        for (row, source) in sources.iter().enumerate() {
            let ends = [first + source.len() - 1, first];
            for (direction, end) in ends.into_iter().enumerate() {
                for line in direction * lines..(direction + 1) * lines {
                    self.ends.row(row).put(l, line, l.load(&self.states[end * both + line]), inverse);
                }
            }
            first += source.len();
        }
        let sink = Start { slots, encoded, hidden_lines: model.shape.hidden_lines };
        apply(a, (model, &model.bridge), &self.ends, sources.len(), sums, sink);
    }
}

struct Project<'a, K> {
    origins: &'a [(usize, usize)],
    encoded: &'a mut [Encoded<K>],
    width: usize,
}

impl<L: Lanes, K: Kept<L>> Sink<L> for Project<'_, K> {
    #[inline(always)]
    fn take<const P: usize>(&mut self, l: L, row: usize, panel: usize, values: [L::F; P]) {
        let (slot, position) = self.origins[row];
        let (part, line) = (panel / self.width, panel % self.width);
        let memory = &mut self.encoded[slot].blocks[part / 2];
        if part % 2 == 0 {
            memory.put_key(l, self.width, position, line, values);
        } else {
            memory.put_value(l, self.width, position, line, values);
        }
    }
}

struct Start<'a, K> {
    slots: &'a [usize],
    encoded: &'a mut [Encoded<K>],
    hidden_lines: usize,
}

impl<L: Lanes, K> Sink<L> for Start<'_, K> {
    #[inline(always)]
    fn take<const P: usize>(&mut self, l: L, row: usize, panel: usize, values: [L::F; P]) {
        let start = &mut self.encoded[self.slots[row]].start[panel..panel + P];
        for (at, (v, to)) in values.into_iter().zip(start).enumerate() {
            let v = if panel + at < self.hidden_lines { exp::tanh(l, v) } else { v };
            l.store(v, to);
        }
    }
}
