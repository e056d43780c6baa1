//! GPT-NeoX and Pythia: attention and feed-forward network read the same stream.

use super::Architecture;
use super::usual::{Usual, vocabulary};
use crate::decoder::fields::{Fields, divided};
use crate::decoder::names::Names;
use crate::decoder::plan::{Gate, NormPlan, Norms, Order};
use crate::decoder::rope::Defaults;
use crate::error::Result;

const NAMES: Names = Names {
    prefix: "gpt_neox.",
    tokens: "embed_in",
    final_norm: "final_layer_norm",
    heads: ["lm_head", "embed_out"],
    projections: &["attention.query_key_value"],
    out: "attention.dense",
    gate: "",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    is_idle: |name| {
        [".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"].iter().any(|end| name.ends_with(end))
    },
    ..Names::LLAMA
};

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let usual = Usual {
        vocabulary: 50_432,
        width: 6144,
        inner: 24_576,
        layers: 44,
        heads: 64,
        rope: Defaults { partial: Some(0.25), names: ["rotary_emb_base", "rotary_pct"], ..Defaults::USUAL },
        activation: ["hidden_act", "gelu"],
        ..Usual::LLAMA
    };
    let biased = fields.flag("attention_bias", true)?;
    let alone = fields.without(&["head_dim", "num_key_value_heads"]);
    let mut plan = usual.plan(&alone.fields(), [biased; 2])?;
    plan.norm = NormPlan::Layer { epsilon: fields.epsilon("layer_norm_eps", 1e-5)? };
    let norms = if fields.flag("use_parallel_residual", true)? { Norms::ParallelApart } else { Norms::Before };
    for block in &mut plan.blocks {
        (block.norms, block.order) = (norms, Order::Grouped);
        (block.feed.gate, block.feed.biased) = (Gate::None, true);
    }
    divided("num_attention_heads", plan.blocks.first().map_or(1, |block| block.heads), "hidden_size", plan.width)?;
    plan.vocabulary = vocabulary(fields, usual.vocabulary)?;
    Ok(Architecture { plan, names: NAMES })
}
