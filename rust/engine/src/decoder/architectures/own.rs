//! Networks of `octavo.lab.language.gpt`.

use serde_json::Value;

use super::Architecture;
use crate::decoder::fields::{Fields, divided};
use crate::decoder::names::{ExpertNames, Names};
use crate::decoder::plan::{
    BlockPlan, Cap, FeedPlan, Gains, Gate, HeadNorm, HeadPlan, NormPlan, Norms, Order, Plan, RotaryKind, RotaryPlan,
    Scaling,
};
use crate::error::{Result, refuse};
use crate::layers::Activation;
use crate::sizes::whole;

/// Added to mean squares.
const EPSILON: f32 = 1e-6;

const NAMES: Names = Names {
    prefix: "",
    other_prefixes: &[],
    tokens: "embedding.table",
    positions: "",
    row_projections: [""; 2],
    final_norm: "final_norm",
    heads: ["head.project", ""],
    blocks: "blocks",
    attention_norms: ["mixer_norm", ""],
    projections: &["mixer.query", "mixer.key", "mixer.value"],
    head_norms: [""; 2],
    out: "mixer.out",
    sinks: "",
    feed_norms: ["ffn_norm", ""],
    gate: "ffn.gate",
    up: "ffn.up",
    down: "ffn.down",
    experts: ExpertNames::NONE,
    gain: "gain",
    transposed: false,
    is_idle: |name| name.starts_with("objective.") || name == Names::NOISE,
};

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let vocabulary = fields.size("vocabulary", None, 1, 1 << 24)?;
    let width = fields.size("width", None, 2, 1 << 16)?;
    let embedding = fields.object("embedding")?;
    technique(&embedding, "table")?;
    embedding.only("smear", &Value::Bool(false), "tables without smearing")?;
    embedding.only("pairs", &Value::from(0), "tables without pairs of tokens")?;
    let stream = fields.object("stream")?;
    for field in ["input_skip", "mirror_skip", "backout"] {
        stream.only(field, &Value::Bool(false), "streams without skips past blocks")?;
    }
    stream.only("value_layers", &Value::Array(Vec::new()), "blocks without tables of values")?;
    let added = stream.number("mixer_scale", 1.0)?;
    let gains = stream.flag("gains", false)?;
    let pattern = fields.text("pattern")?.unwrap_or_default();
    let mixers = fields.object("mixers")?;
    let mut blocks = Vec::new();
    for letter in pattern.chars() {
        let Some(Value::Object(of)) = mixers.of.get(letter.encode_utf8(&mut [0; 4]) as &str) else {
            return Err(refuse(format!("pattern has {letter:?}, which is no mixer")));
        };
        let mixer = Fields { of, name: "mixers" };
        technique(&mixer, "attention")?;
        blocks.push(block(&mixer, &fields.object("ffn")?, width, added)?);
    }
    whole("pattern: blocks", blocks.len() as u64, 1, 1 << 10)?;
    let (head, rows) = head(&fields.object("head")?, vocabulary)?;
    let end =
        fields.get("end_of_text").is_some().then(|| fields.size("end_of_text", None, 0, vocabulary)).transpose()?;
    let document = end.filter(|_| fields.flag("keep_documents", false).unwrap_or(false));
    fields.flag("keep_documents", false)?;
    let gains = if gains { Gains::Whole } else { Gains::None };
    let plan = Plan {
        vocabulary,
        rows,
        width,
        row_width: width,
        positions: None,
        position_rows_before: None,
        embedding_scale: 1.0,
        norm: NormPlan::Rms { epsilon: EPSILON, gains },
        norms_embedding: stream.flag("norm_embedding", false)?,
        norms_last: true,
        blocks,
        head,
        document: document.and_then(|id| u32::try_from(id).ok()),
    };
    Ok(Architecture { plan, names: NAMES })
}

fn technique(fields: &Fields<'_>, wanted: &str) -> Result<()> {
    match fields.text("name")? {
        Some(name) if name == wanted => Ok(()),
        _ => Err(fields.refused("name", &format!("the native decoder runs {wanted}"))),
    }
}

fn block(mixer: &Fields<'_>, ffn: &Fields<'_>, width: usize, added: f32) -> Result<BlockPlan> {
    mixer.only("gate", &Value::from(0), "attention without gates")?;
    let heads = mixer.size("heads", Some(12), 1, 1 << 10)?;
    let kv_heads = match mixer.size("kv_heads", Some(0), 0, 1 << 10)? {
        0 => heads,
        kv_heads => kv_heads,
    };
    let size = divided("heads", heads, "width", width)?;
    divided("kv_heads", kv_heads, "heads", heads)?;
    let base = mixer.number("base", 10_000.0)?;
    let rotary = |kind| RotaryPlan { base, kind, turned: size & !1, scaling: Scaling::None };
    let rotary = match mixer.text("rotary")?.unwrap_or("full") {
        "full" => Some(rotary(RotaryKind::Full)),
        "half" => Some(rotary(RotaryKind::Half)),
        "none" => None,
        _ => return Err(mixer.refused("rotary", "accepted are full, half and none")),
    };
    let scale = Some(mixer.number("scale", 0.0)?).filter(|&scale| scale > 0.0);
    let window = Some(mixer.size("window", Some(0), 0, usize::MAX >> 1)?).filter(|&window| window > 0);
    let factor = ffn.number("factor", 4.0)?;
    let (activation, gated) = match ffn.text("name")? {
        Some("gelu") => (Activation::Gelu, false),
        Some("squared_relu") => (Activation::SquaredRelu, false),
        Some("gated") => (Activation::Silu, true),
        _ => return Err(ffn.refused("name", "the native decoder runs gelu, squared_relu and gated")),
    };
    let factor = ffn.get("factor").and_then(Value::as_f64).unwrap_or(f64::from(factor));
    // As Python rounds: halves to even.
    #[expect(clippy::cast_possible_truncation, reason = "a size of 1 to 1024 times the width")]
    let inner = (factor * width as f64).round_ties_even().max(1.0) as u64;
    let gate = if gated { Gate::Apart } else { Gate::None };
    let biased = mixer.flag("bias", false)?;
    let norms_heads = mixer.flag("qk_norm", false)?;
    Ok(BlockPlan {
        norms: Norms::Before,
        heads,
        kv_heads,
        size,
        rotary,
        is_sloped: false,
        head_norm: if norms_heads { HeadNorm::Bare { epsilon: EPSILON } } else { HeadNorm::None },
        scale: scale.unwrap_or(1.0 / (size as f32).sqrt()),
        score_cap: None,
        has_sinks: false,
        window,
        projections_biased: biased,
        order: Order::Stacked,
        out_biased: biased,
        added: [added, 1.0],
        feed: FeedPlan {
            inner: whole("ffn: factor times the width", inner, 1, 1 << 22)?,
            activation,
            gate,
            biased: ffn.flag("bias", false)?,
            experts: None,
        },
    })
}

fn head(head: &Fields<'_>, vocabulary: usize) -> Result<(HeadPlan, usize)> {
    let adds_noise = match head.text("name")? {
        // Sampled heads train otherwise, and give the same probabilities, but for one whose scores are those above noise.
        Some("softmax" | "sampled_softmax" | "noise_contrastive") => false,
        Some("negative_sampling") => true,
        _ => return Err(head.refused("name", "the native decoder runs softmax and the sampled heads")),
    };
    let cap = head.number("cap", 0.0)?;
    let cap = match (cap > 0.0, head.text("cap_kind")?.unwrap_or("rational")) {
        (false, _) => None,
        (true, "rational") => Some(Cap::Rational(cap)),
        (true, "tanh") => Some(Cap::Tanh(cap)),
        _ => return Err(head.refused("cap_kind", "accepted are rational and tanh")),
    };
    let rows = match head.size("padded", Some(0), 0, 1 << 24)? {
        0 => vocabulary,
        padded if padded >= vocabulary => padded,
        _ => return Err(head.refused("padded", "accepted are 0, the vocabulary and more")),
    };
    let (tied, biased) = (head.flag("tied", true)?, head.flag("bias", false)?);
    Ok((HeadPlan { tied, biased, divisor: 1.0, cap, adds_noise }, rows))
}
