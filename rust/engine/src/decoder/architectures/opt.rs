//! OPT: a table of positions that begins at row 2. The model of 350M norms sums, and its tokens have vectors of their own
//! width.

use serde_json::Value;

use super::Architecture;
use super::usual::vocabulary;
use crate::decoder::fields::{Fields, divided};
use crate::decoder::names::Names;
use crate::decoder::plan::{BlockPlan, FeedPlan, Gate, HeadNorm, HeadPlan, NormPlan, Norms, Order, Plan};
use crate::error::Result;

/// PyTorch's own, which the configuration does not name.
const EPSILON: f32 = 1e-5;

const NAMES: Names = Names {
    prefix: "model.decoder.",
    positions: "embed_positions",
    final_norm: "final_layer_norm",
    attention_norms: ["self_attn_layer_norm", ""],
    out: "self_attn.out_proj",
    feed_norms: ["final_layer_norm", ""],
    gate: "",
    up: "fc1",
    down: "fc2",
    row_projections: ["project_in", "project_out"],
    ..Names::LLAMA
};
const BEHIND: Names =
    Names { attention_norms: ["", NAMES.attention_norms[0]], feed_norms: ["", NAMES.feed_norms[0]], ..NAMES };

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let norms_before = fields.flag("do_layer_norm_before", true)?;
    let norms_last = norms_before && !fields.flag("_remove_final_layer_norm", false)?;
    fields.only("layer_norm_elementwise_affine", &Value::Bool(true), "norms with factors")?;
    let width = fields.size("hidden_size", Some(768), 1, 1 << 16)?;
    let row_width = fields.size("word_embed_proj_dim", Some(768), 1, 1 << 16)?;
    let heads = fields.size("num_attention_heads", Some(12), 1, 1 << 10)?;
    let size = divided("num_attention_heads", heads, "hidden_size", width)?;
    let biased = fields.flag("enable_bias", true)?;
    let block = BlockPlan {
        norms: if norms_before { Norms::Before } else { Norms::Sum },
        heads,
        kv_heads: heads,
        size,
        rotary: None,
        is_sloped: false,
        head_norm: HeadNorm::None,
        scale: 1.0 / (size as f32).sqrt(),
        score_cap: None,
        has_sinks: false,
        window: None,
        projections_biased: biased,
        order: Order::Stacked,
        out_biased: biased,
        added: [1.0; 2],
        feed: FeedPlan {
            inner: fields.size("ffn_dim", Some(3072), 1, 1 << 22)?,
            activation: fields.activation("activation_function", "relu")?,
            gate: Gate::None,
            biased,
            experts: None,
        },
    };
    let vocabulary = vocabulary(fields, 50_272)?;
    let plan = Plan {
        vocabulary,
        rows: vocabulary,
        width,
        row_width,
        positions: Some(fields.size("max_position_embeddings", Some(2048), 1, 1 << 20)?),
        position_rows_before: Some(2),
        embedding_scale: 1.0,
        norm: NormPlan::Layer { epsilon: EPSILON },
        norms_embedding: false,
        norms_last,
        blocks: vec![block; fields.size("num_hidden_layers", Some(12), 1, 1 << 10)?],
        head: HeadPlan::plain(fields.flag("tie_word_embeddings", true)?),
        document: None,
    };
    Ok(Architecture { plan, names: if norms_before { NAMES } else { BEHIND } })
}
