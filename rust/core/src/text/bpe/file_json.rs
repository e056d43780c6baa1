//! `tokenizer.json`, the file of the package `tokenizers`, of a byte-level BPE: reading and writing.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::byte_characters;
use super::file_merges::resolved;
use super::special_tokens::Added;
use super::vocabulary::{Order, Parts};
use super::{BytePairs, Pattern};
use crate::error::{BytePairFault, DataError, Error, Result};

/// Most bytes of a file: a vocabulary of 256 thousand tokens takes about 20 MB.
pub(super) const MOST_BYTES: usize = 64 << 20;

#[derive(Deserialize)]
struct Content {
    model: Model,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Vec<AddedContent>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    r#type: Option<String>,
    vocab: BTreeMap<String, u32>,
    merges: Vec<Pair>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    byte_fallback: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Pair {
    Two((String, String)),
    Line(String),
}

#[derive(Deserialize)]
struct AddedContent {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

fn refuse(field: &'static str, found: &dyn std::fmt::Display, accepted: &'static str) -> Error {
    let found = found.to_string().chars().take(200).collect();
    DataError::from(BytePairFault::Field { field, found, accepted }).into()
}

impl BytePairs {
    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Data`] naming the field for a file that is no JSON, is of another model than byte-level BPE, or has a rule that
    /// is not known here: ids would be wrong.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        if text.len() > MOST_BYTES {
            return Err(DataError::from(BytePairFault::Bytes { bytes: text.len(), limit: MOST_BYTES }).into());
        }
        let Content { model, normalizer, pre_tokenizer, post_processor, decoder, added_tokens } =
            serde_json::from_slice(text).map_err(DataError::Json)?;
        check_model(&model)?;
        let composed = match kind(&normalizer) {
            "" if normalizer.is_null() => false,
            "NFC" => true,
            _ => return Err(refuse("normalizer", &normalizer, "none or NFC")),
        };
        let pattern = pattern(&pre_tokenizer)?;
        if !decoder.is_null() && kind(&decoder) != "ByteLevel" {
            return Err(refuse("decoder", &decoder, "ByteLevel"));
        }
        let mut added = Vec::with_capacity(added_tokens.len());
        for token in added_tokens {
            let AddedContent { id, content, single_word, lstrip, rstrip, normalized, special } = token;
            if single_word || lstrip || rstrip || (normalized && composed) {
                let accepted = "tokens without single_word, lstrip, rstrip, and without normalized under a normalizer";
                return Err(refuse("added_tokens", &format!("{content:?}"), accepted));
            }
            added.push(Added { content, id, special, normalized });
        }
        let mut pairs = Vec::with_capacity(model.merges.len());
        for pair in model.merges {
            pairs.push(match pair {
                Pair::Two(pair) => pair,
                Pair::Line(line) => match line.split_once(' ') {
                    Some((left, right)) => (left.to_owned(), right.to_owned()),
                    None => return Err(refuse("model.merges", &line, "two tokens and a space between them")),
                },
            });
        }
        let ids: BTreeSet<u32> = added.iter().map(|token| token.id).collect();
        let (tokens, order) = resolved(model.vocab, &pairs, model.ignore_merges, &ids)?;
        let around = around(&post_processor)?;
        Self::new(Parts { tokens, order, pattern, added, composed, around })
    }

    /// The text of a `tokenizer.json`, which the package `tokenizers` reads, too.
    ///
    /// # Errors
    /// [`Error::Data`] if serialization fails, which no vocabulary brings about.
    pub fn to_json(&self) -> Result<String> {
        let parts = self.parts();
        let characters = byte_characters::all();
        let text = |token: &[u8]| byte_characters::text(token, &characters);
        let token = |id: u32| text(parts.tokens.get(&id).map_or(&[], Vec::as_slice));
        let merges: Vec<Value> = match &parts.order {
            Order::Merges { merges, .. } => {
                merges.iter().map(|&(left, right, _)| json!([token(left), token(right)])).collect()
            }
            Order::Ranks => parts
                .tokens
                .values()
                .flat_map(|whole| (1..whole.len()).filter_map(|at| whole.split_at_checked(at)))
                .filter(|(left, right)| self.tokens.id(left) != u32::MAX && self.tokens.id(right) != u32::MAX)
                .map(|(left, right)| json!([text(left), text(right)]))
                .collect(),
        };
        let whole = matches!(parts.order, Order::Ranks | Order::Merges { whole: true, .. });
        let vocab: Map<String, Value> = parts.tokens.iter().map(|(&id, bytes)| (text(bytes), id.into())).collect();
        let added: Vec<Value> = parts
            .added
            .iter()
            .map(|Added { content, id, special, normalized }| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": normalized, "special": special})
            })
            .collect();
        let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        let sequence = |first: Value, regex: bool| json!({"type": "Sequence", "pretokenizers": [first, bytes(regex)]});
        let pre_tokenizer = match parts.pattern {
            Pattern::Gpt2 => bytes(true),
            Pattern::SmolLm => sequence(json!({"type": "Digits", "individual_digits": true}), true),
            other => {
                let pattern = json!({"Regex": other.expression()});
                let split = json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
                sequence(split, false)
            }
        };
        let all = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": if parts.composed { json!({"type": "NFC"}) } else { Value::Null },
            "pre_tokenizer": pre_tokenizer,
            "post_processor": self.template(),
            "decoder": bytes(true),
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": whole,
                      "vocab": vocab, "merges": merges},
        });
        serde_json::to_string(&all).map(|text| text + "\n").map_err(|error| DataError::Json(error).into())
    }

    /// The part of a file that puts tokens around a text.
    fn template(&self) -> Value {
        let (before, behind) = &self.parts().around;
        if before.is_empty() && behind.is_empty() {
            return Value::Null;
        }
        let name = |&id: &u32| String::from_utf8_lossy(self.token(id).unwrap_or(&[])).into_owned();
        let piece = |id: &u32| json!({"SpecialToken": {"id": name(id), "type_id": 0}});
        let text = |which: &str, number: u32| json!({"Sequence": {"id": which, "type_id": number}});
        let one = |which, number| -> Vec<Value> {
            before.iter().map(piece).chain([text(which, number)]).chain(behind.iter().map(piece)).collect()
        };
        let tokens: Map<String, Value> = before
            .iter()
            .chain(behind)
            .map(|id| (name(id), json!({"id": name(id), "ids": [id], "tokens": [name(id)]})))
            .collect();
        let pair: Vec<Value> = one("A", 0).into_iter().chain(one("B", 1)).collect();
        json!({"type": "TemplateProcessing", "single": one("A", 0), "pair": pair, "special_tokens": tokens})
    }
}

fn check_model(model: &Model) -> Result<()> {
    if model.r#type.as_deref().is_some_and(|name| name != "BPE") {
        return Err(refuse("model.type", &model.r#type.as_deref().unwrap_or(""), "BPE"));
    }
    if model.dropout.is_some_and(|share| share != 0.0) {
        return Err(refuse("model.dropout", &"a share of merges is left out", "no dropout"));
    }
    if model.byte_fallback {
        return Err(refuse("model.byte_fallback", &"true", "a byte-level BPE, whose tokens are bytes"));
    }
    for affix in [&model.continuing_subword_prefix, &model.end_of_word_suffix].into_iter().flatten() {
        if !affix.is_empty() {
            return Err(refuse("model", &format!("prefix or suffix {affix:?}"), "a byte-level BPE, which has none"));
        }
    }
    Ok(())
}

/// The `type` of a part, empty where it has none.
fn kind(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or("")
}

fn flag(part: &Value, name: &str, default: bool) -> bool {
    part.get(name).and_then(Value::as_bool).unwrap_or(default)
}

fn pattern(part: &Value) -> Result<Pattern> {
    let accepted = "ByteLevel, Digits with ByteLevel, or Split with ByteLevel";
    let single = std::slice::from_ref(part);
    let steps = match kind(part) {
        "Sequence" => part.get("pretokenizers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice),
        _ => single,
    };
    let Some((bytes, first)) = steps.split_last() else { return Err(refuse("pre_tokenizer", part, accepted)) };
    if kind(bytes) != "ByteLevel" {
        return Err(refuse("pre_tokenizer", part, accepted));
    }
    if flag(bytes, "add_prefix_space", true) {
        return Err(refuse("pre_tokenizer.add_prefix_space", &"true", "false"));
    }
    let is_gpt2 = flag(bytes, "use_regex", true);
    match first {
        [] if is_gpt2 => Ok(Pattern::Gpt2),
        [digits] if kind(digits) == "Digits" && flag(digits, "individual_digits", false) && is_gpt2 => {
            Ok(Pattern::SmolLm)
        }
        [split] if kind(split) == "Split" && !is_gpt2 => {
            let is_isolated = split.get("behavior").and_then(Value::as_str) == Some("Isolated");
            if !is_isolated || flag(split, "invert", false) {
                return Err(refuse("pre_tokenizer", split, "Split with the behavior Isolated, not inverted"));
            }
            let expression = split.get("pattern").and_then(|pattern| pattern.get("Regex")).and_then(Value::as_str);
            expression.and_then(Pattern::from_expression).ok_or_else(|| Pattern::unknown(expression.unwrap_or("")))
        }
        _ => Err(refuse("pre_tokenizer", part, accepted)),
    }
}

/// The ids around a text.
fn around(part: &Value) -> Result<(Vec<u32>, Vec<u32>)> {
    let accepted = "ByteLevel, TemplateProcessing, or both";
    match kind(part) {
        "" if part.is_null() => Ok(Default::default()),
        "ByteLevel" => Ok(Default::default()),
        "Sequence" => {
            let steps = part.get("processors").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let mut found = steps.iter().filter(|step| kind(step) != "ByteLevel");
            match (found.next(), found.next()) {
                (None, _) => Ok(Default::default()),
                (Some(step), None) if kind(step) == "TemplateProcessing" => around(step),
                _ => Err(refuse("post_processor", part, accepted)),
            }
        }
        "TemplateProcessing" => {
            let (mut before, mut behind, mut sequences) = (Vec::new(), Vec::new(), 0u32);
            let single = part.get("single").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for piece in single {
                if piece.get("Sequence").is_some() {
                    sequences = sequences.saturating_add(1);
                    continue;
                }
                let name = piece.get("SpecialToken").and_then(|token| token.get("id")).and_then(Value::as_str);
                let ids = name
                    .and_then(|name| part.get("special_tokens")?.get(name)?.get("ids"))
                    .and_then(|ids| Vec::<u32>::deserialize(ids).ok());
                let Some(ids) = ids else { return Err(refuse("post_processor", piece, "a token with its ids")) };
                (if sequences == 0 { &mut before } else { &mut behind }).extend(ids);
            }
            if sequences != 1 {
                return Err(refuse("post_processor.single", &format!("{sequences} sequences"), "one sequence"));
            }
            Ok((before, behind))
        }
        _ => Err(refuse("post_processor", part, accepted)),
    }
}
