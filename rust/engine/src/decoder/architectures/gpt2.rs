//! GPT-2 of transformers.

use serde_json::Value;

use super::Architecture;
use super::usual::vocabulary;
use crate::decoder::fields::{Fields, divided};
use crate::decoder::names::{ExpertNames, Names};
use crate::decoder::plan::{BlockPlan, FeedPlan, Gate, HeadNorm, HeadPlan, NormPlan, Norms, Order, Plan};
use crate::error::Result;

const NAMES: Names = Names {
    prefix: "transformer.",
    other_prefixes: &[],
    tokens: "wte",
    positions: "wpe",
    row_projections: [""; 2],
    final_norm: "ln_f",
    heads: ["lm_head", ""],
    blocks: "h",
    attention_norms: ["ln_1", ""],
    projections: &["attn.c_attn"],
    head_norms: [""; 2],
    out: "attn.c_proj",
    sinks: "",
    feed_norms: ["ln_2", ""],
    gate: "",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    experts: ExpertNames::NONE,
    gain: "weight",
    transposed: true,
    is_idle: |name| name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"),
};

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let vocabulary = vocabulary(fields, 50_257)?;
    let width = fields.size("n_embd", Some(768), 1, 1 << 16)?;
    let heads = fields.size("n_head", Some(12), 1, 1 << 10)?;
    let size = divided("n_head", heads, "n_embd", width)?;
    fields.only("scale_attn_by_inverse_layer_idx", &Value::Bool(false), "attention of one scale")?;
    fields.only("add_cross_attention", &Value::Bool(false), "decoders alone")?;
    let inner = fields.size("n_inner", Some((width as u64).saturating_mul(4)), 1, 1 << 22)?;
    let scaled = fields.flag("scale_attn_weights", true)?;
    let block = BlockPlan {
        norms: Norms::Before,
        heads,
        kv_heads: heads,
        size,
        rotary: None,
        is_sloped: false,
        head_norm: HeadNorm::None,
        scale: if scaled { 1.0 / (size as f32).sqrt() } else { 1.0 },
        score_cap: None,
        has_sinks: false,
        window: None,
        projections_biased: true,
        order: Order::Stacked,
        out_biased: true,
        added: [1.0; 2],
        feed: FeedPlan {
            inner,
            activation: fields.activation("activation_function", "gelu_new")?,
            gate: Gate::None,
            biased: true,
            experts: None,
        },
    };
    let layers = fields.size("n_layer", Some(12), 1, 1 << 10)?;
    let plan = Plan {
        vocabulary,
        rows: vocabulary,
        width,
        row_width: width,
        positions: Some(fields.size("n_positions", Some(1024), 1, 1 << 20)?),
        position_rows_before: Some(0),
        embedding_scale: 1.0,
        norm: NormPlan::Layer { epsilon: fields.epsilon("layer_norm_epsilon", 1e-5)? },
        norms_embedding: false,
        norms_last: true,
        blocks: vec![block; layers],
        head: HeadPlan::plain(fields.flag("tie_word_embeddings", true)?),
        document: None,
    };
    Ok(Architecture { plan, names: NAMES })
}
