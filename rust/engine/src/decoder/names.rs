//! Names of the tensors of each family.

use super::config::Family;
use crate::layers::Source;

/// Names of the parts that stand once.
pub(super) struct Names {
    family: Family,
    /// Before the names of GPT-2, where the head stands beside the network.
    prefix: &'static str,
}

/// Names of the layers of a block.
pub(super) struct BlockNames {
    pub(super) attention_norm: String,
    /// Query, key and value, or one layer of all three.
    pub(super) projections: Vec<String>,
    pub(super) out: String,
    pub(super) feed_norm: String,
    pub(super) gate: String,
    pub(super) up: String,
    pub(super) down: String,
}

impl Names {
    pub(super) fn new(family: Family, source: &Source) -> Self {
        let prefix = match family {
            Family::Own => "",
            Family::Gpt2 => "transformer.",
            Family::Llama => "model.",
        };
        let table = if family == Family::Gpt2 { "wte.weight" } else { "embed_tokens.weight" };
        // A network without a head is saved without the prefix.
        let prefix = if family == Family::Own || source.has(&format!("{prefix}{table}")) { prefix } else { "" };
        Self { family, prefix }
    }

    fn part(&self, own: &str, gpt2: &str, llama: &str) -> String {
        let name = match self.family {
            Family::Own => own,
            Family::Gpt2 => gpt2,
            Family::Llama => llama,
        };
        format!("{}{name}", self.prefix)
    }

    pub(super) fn tokens(&self) -> String {
        self.part("embedding.table", "wte", "embed_tokens")
    }

    pub(super) fn positions(&self) -> String {
        self.part("", "wpe", "")
    }

    pub(super) fn final_norm(&self) -> String {
        self.part("final_norm", "ln_f", "norm")
    }

    /// The factors of a norm.
    pub(super) fn gain(&self, norm: &str) -> String {
        let name = if self.family == Family::Own { "gain" } else { "weight" };
        format!("{norm}.{name}")
    }

    pub(super) fn head(&self) -> &'static str {
        if self.family == Family::Own { "head.project" } else { "lm_head" }
    }

    /// The frequencies of the noise that a sampled head was trained with.
    pub(super) fn noise(&self) -> &'static str {
        "head.noise_V"
    }

    /// Weights of linear layers are stored as `[inputs, outputs]`.
    pub(super) fn transposed(&self) -> bool {
        self.family == Family::Gpt2
    }

    pub(super) fn block(&self, number: usize) -> BlockNames {
        let at = |own: &str, gpt2: &str, llama: &str| {
            let own = format!("blocks.{number}.{own}");
            self.part(&own, &format!("h.{number}.{gpt2}"), &format!("layers.{number}.{llama}"))
        };
        BlockNames {
            attention_norm: at("mixer_norm", "ln_1", "input_layernorm"),
            projections: match self.family {
                Family::Gpt2 => vec![at("", "attn.c_attn", "")],
                _ => vec![
                    at("mixer.query", "", "self_attn.q_proj"),
                    at("mixer.key", "", "self_attn.k_proj"),
                    at("mixer.value", "", "self_attn.v_proj"),
                ],
            },
            out: at("mixer.out", "attn.c_proj", "self_attn.o_proj"),
            feed_norm: at("ffn_norm", "ln_2", "post_attention_layernorm"),
            gate: at("ffn.gate", "", "mlp.gate_proj"),
            up: at("ffn.up", "mlp.c_fc", "mlp.up_proj"),
            down: at("ffn.down", "mlp.c_proj", "mlp.down_proj"),
        }
    }

    /// Whether a tensor may be in a file without being run: what only trains, and buffers that are computed.
    pub(super) fn is_idle(&self, name: &str) -> bool {
        match self.family {
            Family::Own => name.starts_with("objective.") || name == self.noise(),
            Family::Gpt2 => name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"),
            Family::Llama => name.ends_with(".rotary_emb.inv_freq"),
        }
    }
}
