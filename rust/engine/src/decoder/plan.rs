//! [`Plan`]: what a decoder computes, whichever configuration says so.

use crate::layers::Activation;

/// The sizes and switches of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) vocabulary: usize,
    /// Rows of the table of tokens and of the head: the vocabulary, or more of them.
    pub(super) rows: usize,
    pub(super) width: usize,
    /// Most tokens of a text; none for a model without a table of positions.
    pub(super) positions: Option<usize>,
    /// Positions have a table.
    pub(super) has_position_table: bool,
    pub(super) norm: NormPlan,
    pub(super) norms_embedding: bool,
    pub(super) blocks: Vec<BlockPlan>,
    pub(super) head: HeadPlan,
    /// The token before which nothing is seen by what follows it.
    pub(super) document: Option<u32>,
}

/// How vectors are normed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NormPlan {
    /// By their root mean square, with factors or without.
    Rms { epsilon: f32, gains: bool },
    /// By mean and variance, with factors and summands.
    Layer { epsilon: f32 },
}

/// One block: attention and a feed-forward network, each reading the normed stream and adding to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BlockPlan {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Numbers of a head.
    pub(super) size: usize,
    pub(super) rotary: Option<RotaryPlan>,
    /// Queries and keys are normed, head by head.
    pub(super) norms_heads: bool,
    /// Of scores.
    pub(super) scale: f32,
    /// Positions that are seen, the own one included.
    pub(super) window: Option<usize>,
    pub(super) attention_biased: bool,
    /// Of what attention adds to the stream.
    pub(super) added: f32,
    pub(super) inner: usize,
    pub(super) activation: Activation,
    /// The feed-forward network multiplies its activations with a second projection.
    pub(super) gated: bool,
    pub(super) inner_biased: bool,
}

/// Pairs of numbers of a head are turned by angles that grow with the position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RotaryPlan {
    pub(super) base: f32,
    pub(super) kind: RotaryKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RotaryKind {
    /// `base^(-2i/size)`, clockwise, as `octavo.lab.language.gpt` turns.
    Full,
    /// The first half of the pairs from 1 to 1/1024 geometrically, the others not at all; clockwise.
    Half,
    /// As `Full`, counterclockwise, as transformers turns.
    Counter,
}

/// The head: products with a row for every token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HeadPlan {
    /// The rows are those of the table of tokens.
    pub(super) tied: bool,
    pub(super) biased: bool,
    pub(super) cap: Option<Cap>,
    /// Scores are relative to the distribution of noise, which is in the file.
    pub(super) adds_noise: bool,
}

/// A bound that scores approach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cap {
    /// `cap z / sqrt(z^2 + cap^2)`.
    Rational(f32),
    /// `cap tanh(z / cap)`.
    Tanh(f32),
}
