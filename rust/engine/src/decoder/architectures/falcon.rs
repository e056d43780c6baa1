//! Falcon 7B, whose heads share one key, 40B, whose heads share keys in groups, and RW, whose positions are slopes.

use super::Architecture;
use super::usual::vocabulary;
use crate::decoder::fields::{Fields, divided};
use crate::decoder::names::Names;
use crate::decoder::plan::{BlockPlan, FeedPlan, Gate, HeadNorm, HeadPlan, NormPlan, Norms, Order, Plan};
use crate::decoder::rope::{self, Defaults};
use crate::error::Result;

const NAMES: Names = Names {
    prefix: "transformer.",
    tokens: "word_embeddings",
    final_norm: "ln_f",
    blocks: "h",
    projections: &["self_attention.query_key_value"],
    out: "self_attention.dense",
    gate: "",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..Names::LLAMA
};
const APART: Names = Names { attention_norms: ["ln_attn", ""], feed_norms: ["ln_mlp", ""], ..NAMES };

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let is_sloped = fields.flag("alibi", false)?;
    let width = match fields.get("n_embed") {
        Some(_) => fields.size("n_embed", None, 1, 1 << 16)?,
        None => fields.size("hidden_size", Some(4544), 1, 1 << 16)?,
    };
    let heads = fields.size("num_attention_heads", Some(71), 1, 1 << 10)?;
    let size = divided("num_attention_heads", heads, "hidden_size", width)?;
    let is_new = fields.flag("new_decoder_architecture", false)?;
    let kv_heads = if !is_new && fields.flag("multi_query", true)? {
        1
    } else {
        fields.size("num_kv_heads", Some(heads as u64), 1, 1 << 10)?
    };
    divided("num_kv_heads", kv_heads, "num_attention_heads", heads)?;
    let is_parallel = is_new || fields.flag("parallel_attn", true)?;
    let norm_count = fields.size("num_ln_in_parallel_attn", Some(if is_new { 2 } else { 1 }), 1, 2)?;
    let (norms, names) = match (is_parallel, is_new && norm_count == 2) {
        (_, true) => (Norms::ParallelApart, APART),
        (true, false) => (Norms::ParallelShared, NAMES),
        (false, false) => (Norms::Before, NAMES),
    };
    let positions = fields.size("max_position_embeddings", Some(2048), 1, 1 << 24)?;
    let (rotary, positions) = if is_sloped {
        (None, positions)
    } else {
        let (rotary, positions) = rope::rotary(fields, Defaults::USUAL, size, positions)?;
        (Some(rotary), positions)
    };
    let biased = fields.flag("bias", false)?;
    let four = (width as u64).saturating_mul(4);
    let block = BlockPlan {
        norms,
        heads,
        kv_heads,
        size,
        rotary,
        is_sloped,
        head_norm: HeadNorm::None,
        scale: 1.0 / (size as f32).sqrt(),
        score_cap: None,
        has_sinks: false,
        window: None,
        projections_biased: biased,
        order: Order::Grouped,
        out_biased: biased,
        added: [1.0; 2],
        feed: FeedPlan {
            inner: fields.size("ffn_hidden_size", Some(four), 1, 1 << 22)?,
            activation: fields.activation("activation", "gelu")?,
            gate: Gate::None,
            biased,
            experts: None,
        },
    };
    let vocabulary = vocabulary(fields, 65_024)?;
    let plan = Plan {
        vocabulary,
        rows: vocabulary,
        width,
        row_width: width,
        positions: Some(positions),
        position_rows_before: None,
        embedding_scale: 1.0,
        norm: NormPlan::Layer { epsilon: fields.epsilon("layer_norm_epsilon", 1e-5)? },
        norms_embedding: false,
        norms_last: true,
        blocks: vec![block; fields.size("num_hidden_layers", Some(32), 1, 1 << 10)?],
        head: HeadPlan::plain(fields.flag("tie_word_embeddings", true)?),
        document: None,
    };
    Ok(Architecture { plan, names })
}
