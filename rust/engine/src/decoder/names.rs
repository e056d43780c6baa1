//! [`Names`]: how an architecture names its layers.

use crate::layers::Source;

/// Names of layers: of those that stand once, after a prefix, and of those of each block, after its number. A name that an
/// architecture does not have is empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    /// Before all names but that of the head, where the head stands beside the network.
    pub(super) prefix: &'static str,
    /// Prefixes that files have in the place of this one.
    pub(super) other_prefixes: &'static [&'static str],
    pub(super) tokens: &'static str,
    pub(super) positions: &'static str,
    /// Layers between rows of tables and the network, where their widths differ: into it, and out of it.
    pub(super) row_projections: [&'static str; 2],
    pub(super) final_norm: &'static str,
    /// Without the prefix: as the module is called, and as checkpoints do where they call it otherwise.
    pub(super) heads: [&'static str; 2],
    pub(super) blocks: &'static str,
    /// Norms of what attention reads, and of what it gives.
    pub(super) attention_norms: [&'static str; 2],
    /// Query, key and value, or one layer of all three.
    pub(super) projections: &'static [&'static str],
    /// Norms of queries and keys.
    pub(super) head_norms: [&'static str; 2],
    pub(super) out: &'static str,
    /// Scores of heads for seeing nothing.
    pub(super) sinks: &'static str,
    /// Norms of what the feed-forward network reads, and of what it gives.
    pub(super) feed_norms: [&'static str; 2],
    /// One layer of both is `up`.
    pub(super) gate: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) experts: ExpertNames,
    /// The factors of a norm.
    pub(super) gain: &'static str,
    /// Plain weights of linear layers are stored as `[inputs, outputs]`.
    pub(super) transposed: bool,
    /// Whether a tensor may be in a file without being run: buffers that are computed, what only trains.
    pub(super) is_idle: fn(&str) -> bool,
}

/// Names of a mixture of experts: as one module has them, and as checkpoints do that have each expert's layers apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertNames {
    /// The layer that chooses, in either way.
    pub(super) routers: [&'static str; 2],
    /// What stands before the number of an expert, in either way.
    pub(super) modules: [&'static str; 2],
    /// One layer of the activations and the other projection, and the layer behind them.
    pub(super) together: [&'static str; 2],
    /// Activations, other projection, and the layer behind them.
    pub(super) apart: [&'static str; 3],
}

impl ExpertNames {
    /// Of an architecture without experts.
    pub(super) const NONE: Self = Self { routers: [""; 2], modules: [""; 2], together: [""; 2], apart: [""; 3] };
    /// The modules of transformers 5, and names by `apart` for checkpoints.
    pub(super) const fn of(router: &'static str, module: &'static str, apart: [&'static str; 3]) -> Self {
        let together = ["gate_up_proj", "down_proj"];
        Self { routers: ["mlp.gate", router], modules: ["mlp.experts", module], together, apart }
    }
}

impl Names {
    /// Llama, and architectures that name their layers after it.
    pub(super) const LLAMA: Self = Self {
        prefix: "model.",
        other_prefixes: &[],
        tokens: "embed_tokens",
        positions: "",
        row_projections: [""; 2],
        final_norm: "norm",
        heads: ["lm_head", ""],
        blocks: "layers",
        attention_norms: ["input_layernorm", ""],
        projections: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        head_norms: ["self_attn.q_norm", "self_attn.k_norm"],
        out: "self_attn.o_proj",
        sinks: "",
        feed_norms: ["post_attention_layernorm", ""],
        gate: "mlp.gate_proj",
        up: "mlp.up_proj",
        down: "mlp.down_proj",
        experts: ExpertNames::NONE,
        gain: "weight",
        transposed: false,
        is_idle: |name| name.ends_with(".rotary_emb.inv_freq"),
    };

    /// The names of a network inside of one that sees pictures: as modules of transformers 5 have them, and as checkpoints
    /// do. What belongs to pictures is not run.
    pub(super) const fn beside_pictures(self) -> Self {
        Self {
            prefix: "model.language_model.",
            other_prefixes: &["language_model.model."],
            heads: [self.heads[0], "language_model.lm_head"],
            is_idle: |name| {
                let inner = name.strip_prefix("model.").unwrap_or(name);
                inner.starts_with("vision_tower.") || inner.starts_with("multi_modal_projector.")
            },
            ..self
        }
    }

    /// The names with the prefix that a file has: a network that is saved without its head lacks the first part of it.
    pub(super) fn in_file(self, source: &Source) -> Self {
        let has = |prefix: &str| source.has(&format!("{prefix}{}.weight", self.tokens));
        if has(self.prefix) {
            return self;
        }
        if let Some(prefix) = self.other_prefixes.iter().find(|prefix| has(prefix)) {
            return Self { prefix, ..self };
        }
        let shorter = self.prefix.split_once('.').map_or("", |(_, rest)| rest);
        Self { prefix: shorter, ..self }
    }

    /// The name of a layer that stands once.
    pub(super) fn part(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The name of a layer of a block.
    pub(super) fn of_block(&self, number: usize, name: &str) -> String {
        format!("{}{}.{number}.{name}", self.prefix, self.blocks)
    }

    /// The frequencies of the noise that a sampled head was trained with.
    pub(super) const NOISE: &str = "head.noise_V";
}
