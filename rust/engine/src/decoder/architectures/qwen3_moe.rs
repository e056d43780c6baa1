//! Qwen3-MoE: a Qwen 3 with mixtures of experts in most layers.

use super::Architecture;
use super::qwen::{norm_heads, used_window};
use super::usual::{Usual, set_windows};
use crate::decoder::fields::Fields;
use crate::decoder::names::{ExpertNames, Names};
use crate::decoder::plan::ExpertsPlan;
use crate::error::Result;

const NAMES: Names = Names {
    experts: ExpertNames::of("mlp.gate", "mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
    ..Names::LLAMA
};

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let usual = Usual {
        vocabulary: 151_936,
        width: 2048,
        inner: 6144,
        layers: 24,
        kv_heads: Some(4),
        positions: 32_768,
        ..Usual::LLAMA
    };
    let biased = fields.flag("attention_bias", false)?;
    let mut plan = usual.plan(fields, [biased; 2])?;
    norm_heads(&mut plan, fields)?;
    set_windows(&mut plan, &fields.without(&["layer_types"]).fields(), used_window(fields)?, |_| true)?;
    let inner = fields.size("moe_intermediate_size", Some(768), 1, 1 << 22)?;
    let count = match fields.get("num_local_experts") {
        Some(_) => fields.size("num_local_experts", None, 0, 1 << 12)?,
        None => fields.size("num_experts", Some(128), 0, 1 << 12)?,
    };
    let chosen = fields.size("num_experts_per_tok", Some(8), 1, count.max(1))?;
    let step = fields.size("decoder_sparse_step", Some(1), 1, 1 << 10)?;
    let dense = match fields.get("mlp_only_layers") {
        Some(_) => fields.sizes("mlp_only_layers", 0, 1 << 10)?,
        None => Vec::new(),
    };
    let experts = ExpertsPlan { count, chosen, normed: fields.flag("norm_topk_prob", false)? };
    for (number, block) in plan.blocks.iter_mut().enumerate() {
        if count > 0 && !dense.contains(&number) && number.saturating_add(1).is_multiple_of(step) {
            (block.feed.inner, block.feed.experts) = (inner, Some(experts));
        }
    }
    Ok(Architecture { plan, names: NAMES })
}
