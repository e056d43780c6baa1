//! Gemma 2 and 3: norms around attention and feed-forward network, windows in most layers.

use super::Architecture;
use super::usual::{Usual, is_local, set_rotary, set_windows, window};
use crate::decoder::fields::Fields;
use crate::decoder::names::Names;
use crate::decoder::plan::{Cap, Gains, HeadNorm, NormPlan, Norms, Plan};
use crate::decoder::rope::{self, Defaults};
use crate::error::Result;

const GEMMA_2: Usual = Usual {
    vocabulary: 256_000,
    width: 2304,
    inner: 9216,
    layers: 26,
    heads: 8,
    kv_heads: Some(4),
    size: Some(256),
    positions: 8192,
    tied: true,
    activation: ["hidden_activation", "gelu_pytorch_tanh"],
    ..Usual::LLAMA
};
const GEMMA_3: Usual = Usual {
    vocabulary: 262_208,
    positions: 131_072,
    rope: Defaults { base: 1_000_000.0, ..Defaults::USUAL },
    ..GEMMA_2
};

const NAMES: Names = Names {
    attention_norms: ["input_layernorm", "post_attention_layernorm"],
    feed_norms: ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
    ..Names::LLAMA
};

pub(super) fn read_2(fields: &Fields<'_>) -> Result<Architecture> {
    let biased = fields.flag("attention_bias", false)?;
    let mut plan = GEMMA_2.plan(fields, [biased; 2])?;
    set_gemma(&mut plan, fields, Some(30.0))?;
    let cap = cap(fields, "attn_logit_softcapping", Some(50.0))?;
    plan.blocks.iter_mut().for_each(|block| block.score_cap = cap);
    set_windows(&mut plan, fields, window(fields, Some(4096))?, |number| number.is_multiple_of(2))?;
    Ok(Architecture { plan, names: NAMES })
}

pub(super) fn read_3(fields: &Fields<'_>) -> Result<Architecture> {
    let biased = fields.flag("attention_bias", false)?;
    let (_, _, _, size) = GEMMA_3.heads(fields)?;
    let positions = GEMMA_3.positions(fields)?;
    // The parameters of rotary positions have a place for each kind of layers, where those of others have one.
    let without = fields.without(&["rope_parameters", "rope_scaling"]);
    let mut plan = GEMMA_3.plan(&without.fields(), [biased; 2])?;
    set_gemma(&mut plan, fields, None)?;
    let epsilon = fields.epsilon("rms_norm_eps", GEMMA_3.epsilon)?;
    plan.blocks.iter_mut().for_each(|block| block.head_norm = HeadNorm::Heads { epsilon, gains: Gains::LessOne });
    let pattern = fields.size("sliding_window_pattern", Some(6), 1, 1 << 10)?;
    let is_default = |number: usize| !number.saturating_add(1).is_multiple_of(pattern);
    set_windows(&mut plan, fields, window(fields, Some(4096))?, is_default)?;
    let local = is_local(fields, plan.blocks.len(), is_default)?;
    let of = |number: usize| local.get(number).copied().unwrap_or(false);
    let (global, all) = rope::rotary_of_kind(fields, "full_attention", GEMMA_3.rope, size, positions)?;
    let near = Defaults { base: 10_000.0, names: ["rope_local_base_freq", "partial_rotary_factor"], ..GEMMA_3.rope };
    let (near, _) = rope::rotary_of_kind(fields, "sliding_attention", near, size, positions)?;
    set_rotary(&mut plan, Some(&global), |number| !of(number));
    set_rotary(&mut plan, Some(&near), of);
    plan.positions = Some(all);
    Ok(Architecture { plan, names: NAMES })
}

/// What both share.
fn set_gemma(plan: &mut Plan, fields: &Fields<'_>, cap_default: Option<f32>) -> Result<()> {
    fields.only("use_bidirectional_attention", &serde_json::Value::Bool(false), "attention to earlier tokens")?;
    plan.embedding_scale = (plan.width as f32).sqrt();
    if let NormPlan::Rms { gains, .. } = &mut plan.norm {
        *gains = Gains::LessOne;
    }
    plan.head.cap = cap(fields, "final_logit_softcapping", cap_default)?.map(Cap::Tanh);
    let scalar = fields.number("query_pre_attn_scalar", 256.0)?;
    if scalar <= 0.0 {
        return Err(fields.refused("query_pre_attn_scalar", "accepted is a number above 0"));
    }
    for block in &mut plan.blocks {
        block.norms = Norms::Around;
        block.scale = 1.0 / scalar.sqrt();
    }
    Ok(())
}

fn cap(fields: &Fields<'_>, field: &str, default: Option<f32>) -> Result<Option<f32>> {
    let cap = fields.optional(field, default, || fields.number(field, 0.0))?;
    match cap {
        Some(cap) if cap <= 0.0 => Err(fields.refused(field, "accepted are null and a number above 0")),
        cap => Ok(cap),
    }
}
