//! Reads the configuration of a folder, ours or that of transformers, into a [`Plan`].

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::path::Path;

use serde_json::{Map, Value};

use super::compacted::{self, SIZES};
use super::plan::{BlockPlan, Cap, HeadPlan, NormPlan, Plan, RotaryKind, RotaryPlan};
use crate::error::{ModelFault, Result, in_file, refuse};
use crate::file::{self, CONFIG, shown};
use crate::layers::Activation;
use crate::sizes::whole;

/// Most bytes of the file.
const MOST_BYTES: u64 = 1 << 20;
/// Added to mean squares by the networks of `octavo.lab.language.gpt`.
const OWN_EPSILON: f32 = 1e-6;

/// Whose names the tensors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `octavo.lab.language.gpt`.
    Own,
    /// GPT-2 of transformers.
    Gpt2,
    /// Llama of transformers.
    Llama,
}

/// Reads `config.json` of a folder.
pub(super) fn load(folder: &Path) -> Result<(Family, Plan)> {
    let path = folder.join(CONFIG);
    let bytes = file::read(&path, MOST_BYTES)?;
    parse(&bytes).map_err(|error| in_file(path.display(), error))
}

fn parse(text: &[u8]) -> Result<(Family, Plan)> {
    let content: Value = serde_json::from_slice(text).map_err(|error| refuse(error.to_string()))?;
    let Value::Object(content) = content else { return Err(refuse("not a JSON object")) };
    let fields = Fields { of: &content, name: "" };
    let (family, mut plan) = match (fields.text("kind")?, fields.text("model_type")?) {
        (Some("gpt"), None) => (Family::Own, own(&fields)?),
        (None, Some("gpt2")) => (Family::Gpt2, gpt2(&fields)?),
        (None, Some("llama")) => (Family::Llama, llama(&fields)?),
        (kind, model) => {
            let found = kind.or(model).map_or_else(|| "of no kind".to_owned(), |name| format!("of '{}'", shown(name)));
            return Err(refuse(format!(
                "{found}; the native decoder runs gpt of Octavo, gpt2 and llama of transformers"
            )));
        }
    };
    if let Some(sizes) = fields.get(SIZES) {
        compacted::cut(&mut plan, family, sizes)?;
    }
    Ok((family, plan))
}

/// The fields of an object, for messages with the name of the object before theirs.
struct Fields<'a> {
    of: &'a Map<String, Value>,
    name: &'static str,
}

impl<'a> Fields<'a> {
    fn place(&self, field: &str) -> String {
        if self.name.is_empty() { field.to_owned() } else { format!("{}: {field}", self.name) }
    }

    fn refused(&self, field: &str, accepted: &str) -> crate::Error {
        let given = self.of.get(field).map_or_else(|| "missing".to_owned(), |value| shown(&value.to_string()));
        refuse(format!("{} is {given}; {accepted}", self.place(field)))
    }

    fn get(&self, field: &str) -> Option<&'a Value> {
        self.of.get(field).filter(|value| !value.is_null())
    }

    fn text(&self, field: &str) -> Result<Option<&'a str>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.refused(field, "accepted is a text")),
        }
    }

    fn flag(&self, field: &str, default: bool) -> Result<bool> {
        match self.get(field) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => Err(self.refused(field, "accepted are true and false")),
        }
    }

    fn number(&self, field: &str, default: f64) -> Result<f32> {
        let value = match self.get(field) {
            None => Some(default),
            Some(value) => value.as_f64(),
        };
        #[expect(clippy::cast_possible_truncation, reason = "to the precision of the network")]
        let value = value.map(|value| value as f32).filter(|value| value.is_finite());
        value.ok_or_else(|| self.refused(field, "accepted is a number"))
    }

    fn size(&self, field: &'static str, default: Option<u64>, least: usize, most: usize) -> Result<usize> {
        let value = match self.get(field) {
            None => default,
            Some(value) => value.as_u64(),
        };
        whole(field, value.ok_or_else(|| self.refused(field, "accepted is a whole number"))?, least, most)
    }

    fn object(&self, field: &'static str) -> Result<Fields<'a>> {
        match self.get(field) {
            Some(Value::Object(of)) => Ok(Fields { of, name: field }),
            _ => Err(self.refused(field, "accepted is an object")),
        }
    }

    /// Refuses another value than `wanted` of a field that may be left out.
    fn only(&self, field: &str, wanted: &Value, what: &str) -> Result<()> {
        match self.get(field) {
            None => Ok(()),
            Some(value) if value == wanted => Ok(()),
            Some(_) => Err(self.refused(field, &format!("the native decoder runs {what}"))),
        }
    }
}

fn vocabulary(fields: &Fields<'_>, name: &'static str, default: Option<u64>) -> Result<usize> {
    fields.size(name, default, 1, 1 << 24)
}

/// A network of `octavo.lab.language.gpt`.
fn own(fields: &Fields<'_>) -> Result<Plan> {
    let vocabulary = vocabulary(fields, "vocabulary", None)?;
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
        blocks.push(own_block(&mixer, &fields.object("ffn")?, width, added)?);
    }
    whole("pattern: blocks", blocks.len() as u64, 1, 1 << 10)?;
    let (head, rows) = own_head(&fields.object("head")?, vocabulary)?;
    let end =
        fields.get("end_of_text").is_some().then(|| fields.size("end_of_text", None, 0, vocabulary)).transpose()?;
    let document = end.filter(|_| fields.flag("keep_documents", false).unwrap_or(false));
    fields.flag("keep_documents", false)?;
    Ok(Plan {
        vocabulary,
        rows,
        width,
        positions: None,
        has_position_table: false,
        norm: NormPlan::Rms { epsilon: OWN_EPSILON, gains },
        norms_embedding: stream.flag("norm_embedding", false)?,
        blocks,
        head,
        document: document.and_then(|id| u32::try_from(id).ok()),
    })
}

fn technique(fields: &Fields<'_>, wanted: &str) -> Result<()> {
    match fields.text("name")? {
        Some(name) if name == wanted => Ok(()),
        _ => Err(fields.refused("name", &format!("the native decoder runs {wanted}"))),
    }
}

fn own_block(mixer: &Fields<'_>, ffn: &Fields<'_>, width: usize, added: f32) -> Result<BlockPlan> {
    mixer.only("gate", &Value::from(0), "attention without gates")?;
    let heads = mixer.size("heads", Some(12), 1, 1 << 10)?;
    let kv_heads = match mixer.size("kv_heads", Some(0), 0, 1 << 10)? {
        0 => heads,
        kv_heads => kv_heads,
    };
    let size = divided("heads", heads, "width", width)?;
    divided("kv_heads", kv_heads, "heads", heads)?;
    let base = mixer.number("base", 10_000.0)?;
    let rotary = match mixer.text("rotary")?.unwrap_or("full") {
        "full" => Some(RotaryPlan { base, kind: RotaryKind::Full }),
        "half" => Some(RotaryPlan { base, kind: RotaryKind::Half }),
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
    Ok(BlockPlan {
        heads,
        kv_heads,
        size,
        rotary,
        norms_heads: mixer.flag("qk_norm", false)?,
        scale: scale.unwrap_or(1.0 / (size as f32).sqrt()),
        window,
        attention_biased: mixer.flag("bias", false)?,
        added,
        inner: whole("ffn: factor times the width", inner, 1, 1 << 22)?,
        activation,
        gated,
        inner_biased: ffn.flag("bias", false)?,
    })
}

fn own_head(head: &Fields<'_>, vocabulary: usize) -> Result<(HeadPlan, usize)> {
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
    Ok((HeadPlan { tied: head.flag("tied", true)?, biased: head.flag("bias", false)?, cap, adds_noise }, rows))
}

fn divided(field: &'static str, value: usize, other: &'static str, whole: usize) -> Result<usize> {
    let quotient = whole.checked_div(value).filter(|_| whole.is_multiple_of(value));
    quotient.ok_or_else(|| refuse(ModelFault::Divisor { field, value, other, whole }))
}

fn activation(fields: &Fields<'_>, field: &str, default: &str) -> Result<Activation> {
    match fields.text(field)?.unwrap_or(default) {
        "gelu" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        "relu2" => Ok(Activation::SquaredRelu),
        "silu" | "swish" => Ok(Activation::Silu),
        _ => Err(fields.refused(field, "the native decoder runs gelu, gelu_new, relu, relu2 and silu")),
    }
}

/// GPT-2 of transformers; defaults are those of its `GPT2Config`.
fn gpt2(fields: &Fields<'_>) -> Result<Plan> {
    let vocabulary = vocabulary(fields, "vocab_size", Some(50257))?;
    let width = fields.size("n_embd", Some(768), 1, 1 << 16)?;
    let heads = fields.size("n_head", Some(12), 1, 1 << 10)?;
    let size = divided("n_head", heads, "n_embd", width)?;
    fields.only("scale_attn_by_inverse_layer_idx", &Value::Bool(false), "attention of one scale")?;
    fields.only("add_cross_attention", &Value::Bool(false), "decoders alone")?;
    let inner = fields.size("n_inner", Some((width as u64).saturating_mul(4)), 1, 1 << 22)?;
    let scaled = fields.flag("scale_attn_weights", true)?;
    let block = BlockPlan {
        heads,
        kv_heads: heads,
        size,
        rotary: None,
        norms_heads: false,
        scale: if scaled { 1.0 / (size as f32).sqrt() } else { 1.0 },
        window: None,
        attention_biased: true,
        added: 1.0,
        inner,
        activation: activation(fields, "activation_function", "gelu_new")?,
        gated: false,
        inner_biased: true,
    };
    let layers = fields.size("n_layer", Some(12), 1, 1 << 10)?;
    Ok(Plan {
        vocabulary,
        rows: vocabulary,
        width,
        positions: Some(fields.size("n_positions", Some(1024), 1, 1 << 20)?),
        has_position_table: true,
        norm: NormPlan::Layer { epsilon: epsilon(fields, "layer_norm_epsilon", 1e-5)? },
        norms_embedding: false,
        blocks: vec![block; layers],
        head: HeadPlan { tied: fields.flag("tie_word_embeddings", true)?, biased: false, cap: None, adds_noise: false },
        document: None,
    })
}

/// Llama of transformers.
fn llama(fields: &Fields<'_>) -> Result<Plan> {
    let vocabulary = vocabulary(fields, "vocab_size", Some(32000))?;
    let width = fields.size("hidden_size", Some(4096), 1, 1 << 16)?;
    let heads = fields.size("num_attention_heads", Some(32), 1, 1 << 10)?;
    let kv_heads = fields.size("num_key_value_heads", Some(heads as u64), 1, 1 << 10)?;
    divided("num_key_value_heads", kv_heads, "num_attention_heads", heads)?;
    let size = match fields.get("head_dim") {
        Some(_) => fields.size("head_dim", None, 2, 1 << 12)?,
        None => divided("num_attention_heads", heads, "hidden_size", width)?,
    };
    if fields.get("rope_scaling").is_some() && fields.get("rope_parameters").is_none() {
        return Err(fields.refused("rope_scaling", "the native decoder runs rotary positions without scaling"));
    }
    let base = match fields.get("rope_parameters") {
        Some(_) => {
            let rope = fields.object("rope_parameters")?;
            rope.only("rope_type", &Value::from("default"), "rotary positions without scaling")?;
            rope.number("rope_theta", 10_000.0)?
        }
        None => fields.number("rope_theta", 10_000.0)?,
    };
    let block = BlockPlan {
        heads,
        kv_heads,
        size,
        rotary: Some(RotaryPlan { base, kind: RotaryKind::Counter }),
        norms_heads: false,
        scale: 1.0 / (size as f32).sqrt(),
        window: None,
        attention_biased: fields.flag("attention_bias", false)?,
        added: 1.0,
        inner: fields.size("intermediate_size", Some(11008), 1, 1 << 22)?,
        activation: activation(fields, "hidden_act", "silu")?,
        gated: true,
        inner_biased: fields.flag("mlp_bias", false)?,
    };
    let layers = fields.size("num_hidden_layers", Some(32), 1, 1 << 10)?;
    Ok(Plan {
        vocabulary,
        rows: vocabulary,
        width,
        positions: Some(fields.size("max_position_embeddings", Some(2048), 1, 1 << 24)?),
        has_position_table: false,
        norm: NormPlan::Rms { epsilon: epsilon(fields, "rms_norm_eps", 1e-6)?, gains: true },
        norms_embedding: false,
        blocks: vec![block; layers],
        head: HeadPlan {
            tied: fields.flag("tie_word_embeddings", false)?,
            biased: false,
            cap: None,
            adds_noise: false,
        },
        document: None,
    })
}

fn epsilon(fields: &Fields<'_>, field: &str, default: f64) -> Result<f32> {
    let value = fields.number(field, default)?;
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(fields.refused(field, "accepted is a number from 0 to 1"))
    }
}
