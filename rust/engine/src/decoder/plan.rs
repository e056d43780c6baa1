//! [`Plan`]: what a decoder computes, whichever configuration says so.

use crate::layers::Activation;

/// The sizes and switches of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) vocabulary: usize,
    /// Rows of the table of tokens and of the head: the vocabulary, or more of them.
    pub(super) rows: usize,
    pub(super) width: usize,
    /// Numbers of a row of these; others than the width are projected to it, and back before the head (OPT 350M).
    pub(super) row_width: usize,
    /// Most tokens of a text; none for a model without such a bound.
    pub(super) positions: Option<usize>,
    /// Rows of the table of positions before that of position 0; none for a model without a table.
    pub(super) position_rows_before: Option<usize>,
    /// Factor of the rows of the table of tokens.
    pub(super) embedding_scale: f32,
    pub(super) norm: NormPlan,
    pub(super) norms_embedding: bool,
    /// What the last block gives is normed.
    pub(super) norms_last: bool,
    pub(super) blocks: Vec<BlockPlan>,
    pub(super) head: HeadPlan,
    /// The token before which nothing is seen by what follows it.
    pub(super) document: Option<u32>,
}

/// How vectors are normed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NormPlan {
    /// By their root mean square.
    Rms { epsilon: f32, gains: Gains },
    /// By mean and variance, with factors and summands.
    Layer { epsilon: f32 },
}

/// The factors of a norm by the root mean square.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gains {
    None,
    /// As they are in the file.
    Whole,
    /// The file has them less 1, as Gemma does.
    LessOne,
}

/// One block: attention and a feed-forward network, each adding to the stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BlockPlan {
    pub(super) norms: Norms,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Numbers of a head.
    pub(super) size: usize,
    pub(super) rotary: Option<RotaryPlan>,
    /// Scores grow with the position of the key, by a slope of each head. Source: Press et al. 2022 (ALiBi).
    pub(super) is_sloped: bool,
    pub(super) head_norm: HeadNorm,
    /// Of scores.
    pub(super) scale: f32,
    /// A bound that scores approach, `cap tanh(score / cap)`.
    pub(super) score_cap: Option<f32>,
    /// Each head has a score for seeing nothing (gpt-oss).
    pub(super) has_sinks: bool,
    /// Positions that are seen, the own one included.
    pub(super) window: Option<usize>,
    pub(super) projections_biased: bool,
    /// Rows of one layer of queries, keys and values.
    pub(super) order: Order,
    pub(super) out_biased: bool,
    /// Factors of what attention and the feed-forward network add to the stream.
    pub(super) added: [f32; 2],
    pub(super) feed: FeedPlan,
}

/// Where a block norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norms {
    /// What attention reads, and then what the feed-forward network reads.
    Before,
    /// What either gives, before it is added (OLMo 2).
    After,
    /// Both (Gemma 2).
    Around,
    /// The stream, once either has been added (OPT 350M).
    Sum,
    /// Attention and the feed-forward network read the same stream, each through a norm of its own (GPT-NeoX).
    ParallelApart,
    /// They read the same norm of the stream (Falcon 7B).
    ParallelShared,
}

/// How the heads of queries and keys are normed, by their root mean square but for [`Self::Layers`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum HeadNorm {
    None,
    /// Each head, without factors.
    Bare {
        epsilon: f32,
    },
    /// Each head, with factors that all share.
    Heads {
        epsilon: f32,
        gains: Gains,
    },
    /// All heads of a position together, with a factor for each number (OLMo 2).
    Together {
        epsilon: f32,
    },
    /// Each head by mean and variance, with factors of its own (StableLM).
    Layers {
        epsilon: f32,
    },
}

/// The order of rows where queries, keys and values are one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// All queries, all keys, all values.
    Stacked,
    /// For each head of keys: its heads of queries, the key, the value (GPT-NeoX, Falcon).
    Grouped,
}

/// A feed-forward network, or several of one shape among which each token chooses.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FeedPlan {
    pub(super) inner: usize,
    pub(super) activation: Activation,
    pub(super) gate: Gate,
    pub(super) biased: bool,
    pub(super) experts: Option<ExpertsPlan>,
}

/// Whether activations are multiplied with a second projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Gate {
    None,
    /// A layer of its own has the activations.
    Apart,
    /// One layer has both: rows of the activations, then of the other projection (Phi-3).
    Together,
    /// One layer has both in turn, and both are bounded by `most`: `(other + 1) * x * sigmoid(slope * x)` (gpt-oss).
    Pairs {
        slope: f32,
        most: f32,
    },
}

/// A mixture of experts. Source: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpertsPlan {
    pub(super) count: usize,
    /// How many of them a token takes, those of the largest probabilities.
    pub(super) chosen: usize,
    /// The probabilities of those are divided by their sum.
    pub(super) normed: bool,
}

/// Pairs of numbers of a head are turned by angles that grow with the position.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RotaryPlan {
    pub(super) base: f32,
    pub(super) kind: RotaryKind,
    /// Numbers of a head that are turned, the first ones.
    pub(super) turned: usize,
    pub(super) scaling: Scaling,
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

/// How angles change for texts longer than those of training, `positions` long. Source: `modeling_rope_utils.py` of
/// transformers, whose names these are.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scaling {
    None,
    /// All angles are divided. Source: Chen et al. 2023.
    Linear {
        factor: f32,
    },
    /// The base grows with the length of a text beyond `positions`.
    Dynamic {
        factor: f32,
        positions: usize,
    },
    /// Slow angles are divided, fast ones are not. Source: Grattafiori et al. 2024 (Llama 3.1).
    Llama3 {
        factor: f32,
        low: f32,
        high: f32,
        positions: usize,
    },
    /// The same with a ramp over pairs; cosines and sines are multiplied by `attention`. Source: Peng et al. 2023.
    Yarn {
        factor: f32,
        fast: f64,
        slow: f64,
        positions: usize,
        truncate: bool,
        attention: f32,
    },
    /// A divisor for each pair, others for texts longer than `positions`. Source: Ding et al. 2024.
    Long {
        short: Vec<f32>,
        long: Vec<f32>,
        positions: usize,
        attention: f32,
    },
}

/// The head: products with a row for every token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HeadPlan {
    /// The rows are those of the table of tokens.
    pub(super) tied: bool,
    pub(super) biased: bool,
    /// Scores are divided by it.
    pub(super) divisor: f32,
    pub(super) cap: Option<Cap>,
    /// Scores are relative to the distribution of noise, which is in the file.
    pub(super) adds_noise: bool,
}

impl HeadPlan {
    /// Products alone.
    pub(super) const fn plain(tied: bool) -> Self {
        Self { tied, biased: false, divisor: 1.0, cap: None, adds_noise: false }
    }
}

/// A bound that scores approach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cap {
    /// `cap z / sqrt(z^2 + cap^2)`.
    Rational(f32),
    /// `cap tanh(z / cap)`.
    Tanh(f32),
}
