//! [`Config`]: the sizes of an encoder, from the `config.json` of transformers.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::path::Path;

use serde::Deserialize;

use crate::error::{ModelFault, Result, in_file, refuse};
use crate::file::{self, CONFIG};
use crate::layers::Activation;
use crate::sizes::{Sizes, whole};

/// Most bytes of the file.
const MOST_BYTES: u64 = 1 << 20;

/// The fields that [`super::Encoder`] reads of a `BertConfig`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    /// Numbers of a head.
    pub(super) head: usize,
    /// One for each layer.
    pub(super) blocks: Vec<Block>,
    pub(super) positions: usize,
    pub(super) types: usize,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
}

/// What differs between the layers of an encoder of which heads and feed-forward neurons were taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) heads: usize,
    pub(super) inner: usize,
}

/// The content of the file; transformers writes many more fields, which change nothing here.
#[derive(Deserialize)]
struct Content {
    model_type: Option<String>,
    vocab_size: Option<u64>,
    hidden_size: Option<u64>,
    num_hidden_layers: Option<u64>,
    num_attention_heads: Option<u64>,
    intermediate_size: Option<u64>,
    max_position_embeddings: Option<u64>,
    type_vocab_size: Option<u64>,
    layer_norm_eps: Option<f32>,
    hidden_act: Option<String>,
    position_embedding_type: Option<String>,
    is_decoder: Option<bool>,
    add_cross_attention: Option<bool>,
    octavo_sizes: Option<Sizes>,
}

impl Config {
    /// Reads `config.json` of a folder.
    ///
    /// # Errors
    /// [`octavo_core::Error::Io`] where it cannot be read; [`octavo_core::Error::Container`] naming it and the field.
    pub(super) fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let bytes = file::read(&path, MOST_BYTES)?;
        Self::parse(&bytes).map_err(|error| in_file(path.display(), error))
    }

    fn parse(text: &[u8]) -> Result<Self> {
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(refuse("not a JSON object"));
        }
        let content: Content = serde_json::from_slice(text).map_err(|error| refuse(error.to_string()))?;
        let accepted = |name: &str, given: Option<&str>, accepted: &[&str]| match given {
            Some(given) if accepted.contains(&given) => Ok(()),
            given => {
                let given = given.map_or_else(|| "missing".to_owned(), |given| format!("'{}'", file::shown(given)));
                Err(refuse(format!("{name} is {given}; the native encoder runs {}", accepted.join(", "))))
            }
        };
        accepted("model_type", content.model_type.as_deref(), &["bert"])?;
        let positions = content.position_embedding_type.as_deref().unwrap_or("absolute");
        accepted("position_embedding_type", Some(positions), &["absolute"])?;
        if content.is_decoder == Some(true) || content.add_cross_attention == Some(true) {
            return Err(refuse("is_decoder or add_cross_attention is true; the native encoder runs encoders alone"));
        }
        let activation = match content.hidden_act.as_deref().unwrap_or("gelu") {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            other => {
                let (found, accepted) = (file::shown(other), "the native encoder runs gelu, gelu_new, relu");
                return Err(refuse(ModelFault::Name { field: "hidden_act", found, accepted }));
            }
        };
        let size = |name: &'static str, value: Option<u64>, default: u64, most: usize| {
            whole(name, value.unwrap_or(default), 1, most)
        };
        // Defaults are those of transformers' BertConfig, which leaves them out of some files.
        let hidden = size("hidden_size", content.hidden_size, 768, 1 << 16)?;
        let layers = size("num_hidden_layers", content.num_hidden_layers, 12, 1 << 10)?;
        let heads = size("num_attention_heads", content.num_attention_heads, 12, 1 << 10)?;
        let inner = size("intermediate_size", content.intermediate_size, 3072, 1 << 18)?;
        let Some(head) = hidden.checked_div(heads).filter(|_| hidden.is_multiple_of(heads)) else {
            let (value, whole) = (heads, hidden);
            let (field, other) = ("num_attention_heads", "hidden_size");
            return Err(refuse(ModelFault::Divisor { field, value, other, whole }));
        };
        let sizes = content.octavo_sizes.unwrap_or_default();
        Ok(Self {
            vocabulary: size("vocab_size", content.vocab_size, 30522, 1 << 24)?,
            hidden,
            head,
            blocks: sizes.blocks(layers, Block { heads, inner })?,
            positions: size("max_position_embeddings", content.max_position_embeddings, 512, 1 << 20)?,
            types: size("type_vocab_size", content.type_vocab_size, 2, 1 << 10)?,
            epsilon: epsilon(content.layer_norm_eps.unwrap_or(1e-12))?,
            activation,
        })
    }
}

impl Sizes {
    /// The heads and neurons of `layers` layers, where `most` is a layer of which nothing was taken out. Shapes are those of the
    /// tensors in the file, which loading checks.
    fn blocks(&self, layers: usize, most: Block) -> Result<Vec<Block>> {
        let mut blocks = vec![most; layers];
        // Names of one layer, or nothing for the pooler, which is not run.
        let place = |name: &str| {
            let name = name.strip_prefix("bert.").unwrap_or(name);
            let (number, part) = name.strip_prefix("encoder.layer.")?.split_once('.')?;
            Some((number.parse::<usize>().ok().filter(|&number| number < layers)?, part.to_owned()))
        };
        let not_run = |name: &str| name.starts_with("pooler.") || name.starts_with("bert.pooler.");
        let other = |name: &str| refuse(format!("octavo_sizes: {} is no layer of this encoder", file::shown(name)));
        for (name, shape) in &self.weights {
            if not_run(name) {
                continue;
            }
            let (number, part) = place(name).ok_or_else(|| other(name))?;
            let block = blocks.get_mut(number).ok_or_else(|| other(name))?;
            match part.as_str() {
                "intermediate.dense.weight" => {
                    let rows = shape.first().copied().unwrap_or(0);
                    block.inner = whole("octavo_sizes: neurons", rows, 1, most.inner)?;
                }
                part if part.starts_with("attention.")
                    || part.ends_with(".dense.weight")
                    || part.ends_with(".bias") => {}
                _ => return Err(other(name)),
            }
        }
        for (name, numbers) in &self.numbers {
            if not_run(name) {
                continue;
            }
            let (number, part) = place(name).ok_or_else(|| other(name))?;
            let block = blocks.get_mut(number).ok_or_else(|| other(name))?;
            if let Some(&heads) = numbers.get("num_attention_heads").filter(|_| part == "attention.self") {
                block.heads = whole("octavo_sizes: num_attention_heads", heads, 1, most.heads)?;
            }
        }
        Ok(blocks)
    }
}

fn epsilon(value: f32) -> Result<f32> {
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(refuse(format!("layer_norm_eps is {value}; accepted is a number from 0 to 1")))
    }
}
