//! Reading a `tokenizer.json` of the `tokenizers` package whose model is WordPiece.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::Value;

use super::WordPiece;
use super::normalize::Normalizer;
use crate::error::{DataError, Error, FieldFault, Result};

/// Most bytes of a file: a vocabulary of a million pieces takes about 25 MB.
const MOST_BYTES: usize = 64 << 20;
/// Ids from this on are refused: no vocabulary is so large, and tables are sized by the largest id.
const MOST_IDS: u32 = 1 << 24;

/// What is read of a file. Padding and truncation are the caller's; a decoder is for the way back.
#[derive(Deserialize)]
struct Content {
    model: Model,
    normalizer: Rules,
    #[serde(default)]
    post_processor: Option<Around>,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Model {
    vocab: BTreeMap<String, u32>,
    #[serde(default = "unknown")]
    unk_token: String,
    #[serde(default = "prefix")]
    continuing_subword_prefix: String,
    #[serde(default = "longest")]
    max_input_chars_per_word: usize,
}

fn unknown() -> String {
    "[UNK]".to_owned()
}

fn prefix() -> String {
    "##".to_owned()
}

const fn longest() -> usize {
    100
}

#[derive(Deserialize)]
struct Rules {
    #[serde(default = "yes")]
    clean_text: bool,
    #[serde(default = "yes")]
    handle_chinese_chars: bool,
    strip_accents: Option<bool>,
    #[serde(default = "yes")]
    lowercase: bool,
}

const fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct Added {
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
}

/// The tokens around a text.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum Around {
    BertProcessing { sep: (String, u32), cls: (String, u32) },
    TemplateProcessing { single: Vec<Piece>, special_tokens: BTreeMap<String, Special> },
}

#[derive(Deserialize)]
enum Piece {
    SpecialToken { id: String },
    Sequence {},
}

#[derive(Deserialize)]
struct Special {
    ids: Vec<u32>,
}

fn refuse(field: &'static str, fault: FieldFault) -> Error {
    DataError::Field { field, fault }.into()
}

impl WordPiece {
    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Data`] naming the field for a file that is no JSON, is of another model than WordPiece, or has a rule
    /// that is not known here: ids would be wrong.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        if text.len() > MOST_BYTES {
            return Err(refuse("tokenizer", FieldFault::Bytes { bytes: text.len(), limit: MOST_BYTES }));
        }
        let all: Value = serde_json::from_slice(text).map_err(DataError::Json)?;
        demand("model", all.get("model"), &["WordPiece"])?;
        demand("normalizer", all.get("normalizer"), &["BertNormalizer"])?;
        demand("pre_tokenizer", all.get("pre_tokenizer"), &["BertPreTokenizer"])?;
        if let Some(around) = all.get("post_processor").filter(|value| !value.is_null()) {
            demand("post_processor", Some(around), &["BertProcessing", "TemplateProcessing"])?;
        }
        drop(all);
        let content: Content = serde_json::from_slice(text).map_err(DataError::Json)?;
        Self::build(content)
    }

    fn build(content: Content) -> Result<Self> {
        let Content { model, normalizer, post_processor, added_tokens } = content;
        let Some(&unknown) = model.vocab.get(&model.unk_token) else {
            return Err(refuse("model.vocab", FieldFault::NoUnknown { token: model.unk_token }));
        };
        let mut special: Vec<(Box<str>, u32)> = Vec::new();
        for token in added_tokens {
            let Added { id, content, single_word, lstrip, rstrip, normalized } = token;
            if single_word || lstrip || rstrip || normalized || content.is_empty() {
                return Err(refuse("added_tokens", FieldFault::TokenRules { token: content }));
            }
            special.push((content.into(), id));
        }
        let around = around(post_processor)?;
        let ids = model.vocab.values().chain(special.iter().map(|(_, id)| id)).chain(&around.0).chain(&around.1);
        let largest = ids.copied().max().unwrap_or(0);
        if largest >= MOST_IDS {
            return Err(refuse("model.vocab", FieldFault::Id { id: largest, limit: MOST_IDS }));
        }
        let Rules { clean_text: clean, handle_chinese_chars: chinese, strip_accents, lowercase } = normalizer;
        // Uncased models strip accents, cased ones keep them, unless they say otherwise.
        let normalizer = Normalizer { clean, chinese, strip_accents: strip_accents.unwrap_or(lowercase), lowercase };
        Ok(Self {
            vocabulary: model.vocab.into_iter().map(|(piece, id)| (piece.into(), id)).collect::<HashMap<_, _>>(),
            prefix: model.continuing_subword_prefix.into(),
            unknown,
            longest_word: model.max_input_chars_per_word,
            normalizer,
            special,
            around,
            size: largest as usize + 1,
        })
    }
}

/// Refuses a part of a file whose type is not one of `accepted`.
fn demand(field: &'static str, part: Option<&Value>, accepted: &'static [&'static str]) -> Result<()> {
    let name = part.and_then(|part| part.get("type"));
    // Old files name no type for the model; its fields are then held against those of WordPiece.
    let older =
        field == "model" && name.is_none() && part.is_some_and(|part| part.get("max_input_chars_per_word").is_some());
    match name.and_then(Value::as_str) {
        Some(name) if accepted.contains(&name) => Ok(()),
        _ if older => Ok(()),
        found => Err(refuse(field, FieldFault::Type { found: found.map(str::to_owned), accepted })),
    }
}

/// The ids before and behind a text.
fn around(post_processor: Option<Around>) -> Result<(Vec<u32>, Vec<u32>)> {
    let (single, special) = match post_processor {
        None => return Ok((Vec::new(), Vec::new())),
        Some(Around::BertProcessing { sep, cls }) => return Ok((vec![cls.1], vec![sep.1])),
        Some(Around::TemplateProcessing { single, special_tokens }) => (single, special_tokens),
    };
    let (mut before, mut behind, mut sequences) = (Vec::new(), Vec::new(), 0);
    for piece in single {
        match piece {
            Piece::Sequence {} => sequences += 1,
            Piece::SpecialToken { id } => {
                let Some(token) = special.get(&id) else {
                    return Err(refuse("post_processor", FieldFault::NoSpecial { token: id }));
                };
                (if sequences == 0 { &mut before } else { &mut behind }).extend_from_slice(&token.ids);
            }
        }
    }
    if sequences != 1 {
        return Err(refuse("post_processor", FieldFault::Sequences { count: sequences }));
    }
    Ok((before, behind))
}
