//! Calls that generate with the shipped architecture: `kernels/seq2seq`, the encoder's LSTMs and greedy decoding.

use std::sync::Arc;

use crate::{Argument, Call, Program, Result};

const FILES: &[(&str, &str)] = &[
    ("base.cu", include_str!("../../kernels/base.cu")),
    ("rows.cu", include_str!("../../kernels/seq2seq/rows.cu")),
    ("encode.cu", include_str!("../../kernels/seq2seq/encode.cu")),
    ("attend.cu", include_str!("../../kernels/seq2seq/attend.cu")),
    ("decode.cu", include_str!("../../kernels/seq2seq/decode.cu")),
];
/// Tiles of 16 rows that a block may take; registers hold no more.
const TILES: [usize; 2] = [1, 2];

/// The sizes of a model, as in its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens.
    pub vocabulary: usize,
    /// Units of the encoder, each way.
    pub encoder: usize,
    /// Width of the decoder.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Blocks of cross-attention and feed-forward network.
    pub layers: usize,
    /// Inner width of the feed-forward networks.
    pub feedforward: usize,
    /// Tokens of a row of sources.
    pub max_source: usize,
    /// Tokens of a row of targets.
    pub max_target: usize,
}

/// Properties of a device that decide the rows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of shared memory that one block may have.
    pub shared: usize,
}

/// Addresses of weights, at multiples of 16: matrices in bfloat16 as fragments (`kernels/seq2seq/rows.cu`), and tables and
/// biases in float32.
///
/// Encoder: a matrix and a table for each direction. Decoder: matrices of gates, self-attention's queries, keys and values,
/// its output, then for each layer queries, output, and the feed-forward network's two, then logits; the table, and the
/// biases of the others in the same order. Rows of gates are ordered by 8 units, then gate; logits are padded to a multiple
/// of 8, queries hold the scale of the scores and log2(e).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// bfloat16.
    pub matrices: u64,
    /// float32.
    pub vectors: u64,
}

/// How rows are generated.
#[derive(Clone, Debug)]
pub struct Generation {
    program: Arc<Program>,
    sizes: Sizes,
    rows: usize,
    tiles: usize,
}

impl Generation {
    /// `None` where the kernels do not take the model, and for no rows.
    pub fn new(sizes: Sizes, rows: usize, device: Device) -> Option<Self> {
        let Sizes { vocabulary, encoder, hidden, heads, layers, feedforward, max_source, max_target } = sizes;
        let taken = matches!(hidden, 32 | 64 | 128 | 256)
            && (1..=32).contains(&heads)
            && hidden.is_multiple_of(8 * heads)
            && matches!(encoder, 32..=192 if encoder.is_multiple_of(32))
            && matches!(feedforward, 32..=4096 if feedforward.is_multiple_of(32))
            && (4..=256).contains(&vocabulary)
            && [layers, max_source, max_target].iter().all(|size| (1..=4096).contains(size))
            && (1..=i32::MAX as usize).contains(&rows);
        if !taken {
            return None;
        }
        // The fewest rows a block at which every block has a multiprocessor to itself: blocks that share one end later.
        // Wide encoders have registers for one tile.
        let fits = |tiles| {
            decode_bytes(&sizes, tiles).max(encode_bytes(&sizes, tiles)) <= device.shared && tiles * encoder <= 256
        };
        let fitting = TILES.into_iter().filter(|&tiles| fits(tiles));
        let enough = |tiles: &usize| rows.div_ceil(16 * tiles) <= device.multiprocessors;
        let tiles = fitting.clone().find(enough).or(fitting.max())?;
        Some(Self { program: Arc::new(program(&sizes, tiles)), sizes, rows, tiles })
    }

    /// The kernels.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of scratch memory of [`Generation::decode`], at a multiple of 16.
    pub fn scratch(&self) -> usize {
        4 * self.rows * self.sizes.max_target * self.sizes.hidden
    }

    /// Encodes `source` (bytes `[rows, max_source]`, padded with 0): writes the states of both directions side by side,
    /// `[rows, max_source, 2, encoder]`, and the last ones, `[rows, 2, encoder]`, in bfloat16. Positions behind the end
    /// of a row are not written.
    pub fn encode(&self, weights: Weights, source: u64, states: u64, ends: u64) -> Result<Call> {
        let addresses = [weights.matrices, weights.vectors, source, states, ends];
        let arguments = addresses.map(Argument::Address).into_iter().chain([self.count()]).collect();
        self.call("encode", 2, 2 * self.sizes.encoder, encode_bytes(&self.sizes, self.tiles), arguments)
    }

    /// Writes the targets of encoded sources to `tokens`, bytes `[rows, max_target]`, 0 behind the end of a row; rows
    /// without a source have none.
    ///
    /// `memory`: keys and values of each layer's cross-attention, `[rows, max_source, layers, 2, hidden]`. `bridged`: the
    /// first hidden state before its tanh, and the first cells, `[rows, 2, hidden]`. Both in bfloat16, at
    /// multiples of 16.
    pub fn decode(&self, weights: Weights, given: Encoded, scratch: u64, tokens: u64, epsilon: f32) -> Result<Call> {
        let Encoded { source, memory, bridged } = given;
        let addresses = [weights.matrices, weights.vectors, source, memory, bridged, scratch, tokens];
        let arguments = addresses.map(Argument::Address).into_iter();
        let arguments = arguments.chain([self.count(), Argument::F32(epsilon)]).collect();
        self.call("decode", 1, 2 * self.sizes.hidden, decode_bytes(&self.sizes, self.tiles), arguments)
    }

    fn count(&self) -> Argument {
        Argument::I32(self.rows as i32)
    }

    fn call(
        &self,
        entry: &'static str,
        directions: u32,
        threads: usize,
        shared: usize,
        arguments: Vec<Argument>,
    ) -> Result<Call> {
        let grid = [crate::blocks(self.rows as u64, 16 * self.tiles as u64)?, directions, 1];
        let (block, shared) = ([threads as u32, 1, 1], shared as u32);
        Ok(Call { program: self.program.clone(), entry, grid, block, shared, arguments, early: false })
    }
}

/// Addresses of the inputs of generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Bytes `[rows, max_source]`, padded with 0.
    pub source: u64,
    /// Keys and values.
    pub memory: u64,
    /// The first state.
    pub bridged: u64,
}

/// Bytes from one row of bfloat16 activations to the next.
const fn pitch(width: usize) -> usize {
    2 * width + 16
}

fn encode_bytes(sizes: &Sizes, tiles: usize) -> usize {
    16 * tiles * (2 * pitch(sizes.encoder) + 4)
}

fn decode_bytes(sizes: &Sizes, tiles: usize) -> usize {
    let Sizes { vocabulary, hidden, feedforward, .. } = *sizes;
    let wide = pitch(hidden).max(pitch(feedforward)).max(4 * vocabulary.next_multiple_of(8) + 16);
    let (cells, moments, words) = (4 * hidden, 8 * hidden / 16, 2 * 4);
    16 * tiles * (2 * pitch(hidden) + wide + cells + moments + words) + 4
}

fn program(sizes: &Sizes, tiles: usize) -> Program {
    let Sizes { vocabulary, encoder, hidden, heads, layers, feedforward, max_source, max_target } = *sizes;
    // Large tiles leave room for others on their multiprocessor, so that one computes while another waits for memory.
    let blocks = if tiles == 1 { 1 } else { (256 / hidden).max(1) };
    let defines = [
        ("TILES", tiles),
        ("BLOCKS", blocks),
        ("VOCABULARY", vocabulary),
        ("ENCODER", encoder),
        ("WIDTH", hidden),
        ("HEADS", heads),
        ("LAYERS", layers),
        ("INNER", feedforward),
        ("SOURCE", max_source),
        ("TARGET", max_target),
    ];
    let defines = defines.map(|(name, value)| (name, value.to_string())).to_vec();
    let name = format!("seq2seq-{hidden}x{layers}-rows{}", 16 * tiles);
    Program { name, files: FILES, defines, entries: &["encode", "decode"] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: Sizes = Sizes {
        vocabulary: 31,
        encoder: 64,
        hidden: 128,
        heads: 4,
        layers: 2,
        feedforward: 256,
        max_source: 32,
        max_target: 32,
    };
    const H100: Device = Device { multiprocessors: 132, shared: 227 << 10 };

    #[test]
    fn blocks_take_more_rows_as_there_are_more() {
        let tiles = |rows, device| Generation::new(SHIPPED, rows, device).map(|made| made.tiles);
        let small = Device { multiprocessors: 132, shared: 48 << 10 };
        for (rows, large, less) in [(1, 1, 1), (2112, 1, 1), (2113, 2, 1), (1 << 20, 2, 1)] {
            assert_eq!((tiles(rows, H100), tiles(rows, small)), (Some(large), Some(less)), "{rows} rows");
        }
        assert_eq!(tiles(1, Device { multiprocessors: 1, shared: 16 << 10 }), None);
    }

    #[test]
    fn models_that_the_kernels_do_not_take_are_refused() {
        for sizes in [
            Sizes { hidden: 96, ..SHIPPED },
            Sizes { heads: 32, ..SHIPPED },
            Sizes { heads: 0, ..SHIPPED },
            Sizes { heads: usize::MAX, ..SHIPPED },
            Sizes { encoder: 48, ..SHIPPED },
            Sizes { encoder: 224, ..SHIPPED },
            Sizes { feedforward: 40, ..SHIPPED },
            Sizes { vocabulary: 257, ..SHIPPED },
            Sizes { layers: 0, ..SHIPPED },
        ] {
            assert!(Generation::new(sizes, 1, H100).is_none(), "{sizes:?}");
        }
        assert!(Generation::new(SHIPPED, 0, H100).is_none());
    }
}
