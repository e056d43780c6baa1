//! Expands a tile of sources: as many rows as fit the caches are decoded together; a row that ends makes room for the next.

use super::decode::{Decoder, END};
use super::encode::{Encoded, Encoder, GROUP};
use super::lanes::{Job, LANES, Line};
use super::model::Model;
use super::products::{Arithmetic, Blocks, NumberOf, PANELS, ROWS};

/// Memory for one tile at a time.
pub(super) struct Tile<A: Arithmetic> {
    sums: Box<Blocks<NumberOf<A>>>,
    encoder: Encoder<A>,
    decoder: Decoder<A>,
    encoded: Vec<Encoded<A::Kept>>,
    /// Places in `encoded` that hold nothing any more.
    free: Vec<usize>,
    /// Places that hold a source which waits to be decoded.
    waiting: Vec<usize>,
    rows: usize,
}

impl<A: Arithmetic> Tile<A> {
    /// Memory to decode `rows` rows together.
    pub(super) fn new(model: &Model<A::Weights>, rows: usize) -> Self {
        let slots = rows + GROUP;
        Self {
            sums: Box::new([[[[Line([NumberOf::<A>::default(); LANES]); PANELS]; ROWS]; 2]; 2]),
            encoder: Encoder::new(model),
            decoder: Decoder::new(model, rows, slots),
            encoded: (0..slots).map(|_| Encoded::default()).collect(),
            free: (0..slots).collect(),
            waiting: Vec::with_capacity(GROUP),
            rows,
        }
    }
}

/// Expansion of a tile's rows.
pub(super) struct Expand<'a, A: Arithmetic> {
    pub(super) arithmetic: A,
    pub(super) model: &'a Model<A::Weights>,
    pub(super) source: &'a [&'a [u8]],
    pub(super) out: &'a mut [Vec<u8>],
    pub(super) tile: &'a mut Tile<A>,
}

impl<A: Arithmetic> Job<A::Lanes> for Expand<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run(self, _lanes: A::Lanes) {
        let Self { arithmetic, model, source, out, tile } = self;
        let _session = arithmetic.session();
        let mut order: Vec<usize> = (0..source.len()).collect();
        order.sort_by_key(|&row| std::cmp::Reverse(source[row].len()));
        let mut left = &order[..];
        loop {
            while tile.decoder.active.len() < tile.rows {
                if tile.waiting.is_empty() && !left.is_empty() {
                    let (group, rest) = left.split_at(left.len().min(GROUP));
                    left = rest;
                    tile.encode(arithmetic, model, source, group);
                }
                let Some(slot) = tile.waiting.pop() else { break };
                tile.decoder.add(arithmetic, model, slot, &tile.encoded[slot]);
            }
            if tile.decoder.active.is_empty() {
                break;
            }
            tile.decoder.step(arithmetic, model, &tile.encoded, &mut tile.sums);
            tile.finish(model.shape.max_target, out);
        }
    }
}

impl<A: Arithmetic> Tile<A> {
    #[inline(always)]
    fn encode(&mut self, a: A, model: &Model<A::Weights>, source: &[&[u8]], group: &[usize]) {
        let sources: Vec<&[u8]> = group.iter().map(|&row| source[row]).collect();
        let slots = self.free.split_off(self.free.len() - group.len());
        self.encoder.encode(a, model, &sources, &slots, &mut self.encoded, &mut self.sums);
        for (&slot, &row) in slots.iter().zip(group) {
            self.encoded[slot].row = row;
        }
        self.waiting.extend(slots.iter().rev());
    }

    /// Writes the tokens found and takes out the rows that have ended.
    fn finish(&mut self, max_target: usize, out: &mut [Vec<u8>]) {
        let mut row = 0;
        while row < self.decoder.active.len() {
            let active = self.decoder.active[row];
            if active.token != END {
                out[self.encoded[active.slot].row].push(active.token);
            }
            if active.token == END || active.position == max_target {
                self.free.push(active.slot);
                self.decoder.remove(row);
            } else {
                row += 1;
            }
        }
    }
}
