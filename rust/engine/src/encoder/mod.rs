//! [`Encoder`]: encoders of the family of BERT, from a model folder to one vector a text, without Python.
//!
//! The weights stay packed; every linear layer is a product of octavo-core, with its inputs rounded as the recipe asked.
//! Source: Devlin et al. 2019; mean pooling and vectors of length 1 as Reimers and Gurevych 2019.

mod config;

use std::path::Path;

use octavo_core::pool;
use octavo_core::text::wordpiece::WordPiece;

use crate::attention::{Attend, Visible};
use crate::error::{ModelFault, Result, in_file, refuse};
use crate::file;
use crate::layers::{Demand, Dense, Source, activate};
use crate::norm::Norm;
use crate::packed::Table;
use config::{Block, Config};

/// Name of the tokenizer's file in a model folder.
const TOKENIZER: &str = "tokenizer.json";
/// Most bytes of that file.
const TOKENIZER_BYTES: u64 = 64 << 20;
/// Tokens that are computed together: products are wide enough, and activations stay within some megabytes.
const BLOCK: usize = 2048;

/// A loaded encoder. Its methods may be called from several threads at once.
pub struct Encoder {
    config: Config,
    tokenizer: WordPiece,
    words: Table,
    positions: Table,
    types: Table,
    norm: Norm,
    layers: Vec<Layer>,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("config", &self.config).finish_non_exhaustive()
    }
}

/// One block: attention and a feed-forward network, each with a residual and a norm behind it.
struct Layer {
    heads: usize,
    query: Dense,
    key: Dense,
    value: Dense,
    attended: Dense,
    attention_norm: Norm,
    inner: Dense,
    outer: Dense,
    norm: Norm,
}

impl Encoder {
    /// Loads a model folder: `config.json` of transformers, `tokenizer.json` (WordPiece), and the weights, packed or
    /// plain, in `model.octavo.safetensors` or `model.safetensors`. Heads and feed-forward neurons may have been taken
    /// out of it by `octavo.prune.compact_model`.
    ///
    /// # Errors
    /// [`octavo_core::Error::Io`] where a file cannot be read; [`octavo_core::Error::Container`] naming the file, and in
    /// it the field, layer or tensor, for another architecture, and for everything that `octavo.save_model` and
    /// `octavo pack` would not write.
    pub fn load(folder: &Path) -> Result<Self> {
        let config = Config::load(folder)?;
        let path = folder.join(TOKENIZER);
        let text = file::read(&path, TOKENIZER_BYTES)?;
        let tokenizer = WordPiece::from_json(&text).map_err(|error| in_file(path.display(), error.into()))?;
        if tokenizer.size() > config.vocabulary {
            let (place, size, most) = (path.display(), tokenizer.size(), config.vocabulary);
            return Err(refuse(format!("{place}: ids up to {}; the vocabulary of config.json has {most}", size - 1)));
        }
        let (before, behind) = tokenizer.around();
        if before.len() + behind.len() > config.positions {
            let (place, positions) = (path.display(), config.positions);
            return Err(refuse(format!("{place}: more tokens around a text than the {positions} positions")));
        }
        let source = Source::open(folder, &["bert."])?;
        check_layers(&source, config.blocks.len())?;
        let (width, epsilon) = (config.hidden, config.epsilon);
        let layers = config.blocks.iter().enumerate();
        let layers =
            layers.map(|(number, &block)| Layer::load(&source, &config, number, block)).collect::<Result<_>>()?;
        Ok(Self {
            words: source.table("embeddings.word_embeddings", config.vocabulary, width)?,
            positions: source.table("embeddings.position_embeddings", config.positions, width)?,
            types: source.table("embeddings.token_type_embeddings", config.types, width)?,
            norm: source.norm("embeddings.LayerNorm", width, epsilon)?,
            layers,
            tokenizer,
            config,
        })
    }

    /// Numbers in one vector.
    pub const fn width(&self) -> usize {
        self.config.hidden
    }

    /// Most tokens of a text that the model can read.
    pub const fn positions(&self) -> usize {
        self.config.positions
    }

    /// The ids of a text with the tokens around it, at most `limit` and at most as many as the model has positions.
    pub fn ids(&self, text: &str, limit: usize) -> Vec<u32> {
        self.tokenizer.encode(text, limit.min(self.config.positions))
    }

    /// One vector of length 1 for each text, `[texts, width]`: the mean over the tokens of the last layer.
    ///
    /// Texts of more than `limit` tokens, or than the model has positions, are cut at their end. A text's vector depends
    /// on the other texts in its last bits alone: products of more rows are summed in another order. That of a text
    /// without tokens is NaN.
    ///
    /// # Errors
    /// [`octavo_core::Error::Setting`] where threads cannot be started; [`octavo_core::Error::NonFinite`] where an
    /// integer layer meets an infinite activation.
    pub fn embed(&self, texts: &[&str], limit: usize) -> Result<Vec<f32>> {
        let bytes = texts.iter().map(|text| text.len()).sum();
        let rows = pool::map(texts.len(), bytes, |at| self.ids(texts[at], limit))?;
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&at| rows[at].len());
        let width = self.width();
        let mut out = vec![0.0; rows.len() * width];
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = rest.iter().take_while(|&&at| {
                tokens += rows[at].len();
                tokens <= BLOCK
            });
            let (block, behind) = rest.split_at(fits.count().max(1));
            let block_rows: Vec<&[u32]> = block.iter().map(|&at| rows[at].as_slice()).collect();
            for (&at, vector) in block.iter().zip(self.vectors(&block_rows)?.chunks_exact(width)) {
                out[at * width..][..width].copy_from_slice(vector);
            }
            rest = behind;
        }
        Ok(out)
    }

    /// The vectors of rows of ids.
    fn vectors(&self, rows: &[&[u32]]) -> Result<Vec<f32>> {
        let width = self.width();
        let ids: Vec<i64> = rows.concat().into_iter().map(i64::from).collect();
        let places: Vec<i64> = rows.iter().flat_map(|row| (0..).take(row.len())).collect();
        let mut hidden = vec![0.0; ids.len() * width];
        self.words.add(&ids, &mut hidden)?;
        self.types.add(&vec![0; ids.len()], &mut hidden)?;
        self.positions.add(&places, &mut hidden)?;
        hidden = self.norm.apply(&hidden);
        let lengths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
        for layer in &self.layers {
            hidden = layer.apply(hidden, &lengths, &self.config)?;
        }
        let mut out = Vec::with_capacity(rows.len() * width);
        let mut rest = hidden.as_slice();
        for length in lengths {
            let (row, behind) = rest.split_at(length * width);
            rest = behind;
            out.extend(unit_mean(row, width));
        }
        Ok(out)
    }
}

impl Layer {
    fn load(source: &Source, config: &Config, number: usize, block: Block) -> Result<Self> {
        let Block { heads, inner } = block;
        let (width, seen, epsilon) = (config.hidden, heads * config.head, config.epsilon);
        let path = |name: &str| format!("encoder.layer.{number}.{name}");
        let projection = |name: &str| source.dense(&path(name), Demand::of(width, seen, true));
        Ok(Self {
            heads,
            query: projection("attention.self.query")?,
            key: projection("attention.self.key")?,
            value: projection("attention.self.value")?,
            attended: source.dense(&path("attention.output.dense"), Demand::of(seen, width, true))?,
            attention_norm: source.norm(&path("attention.output.LayerNorm"), width, epsilon)?,
            inner: source.dense(&path("intermediate.dense"), Demand::of(width, inner, true))?,
            outer: source.dense(&path("output.dense"), Demand::of(inner, width, true))?,
            norm: source.norm(&path("output.LayerNorm"), width, epsilon)?,
        })
    }

    fn apply(&self, x: Vec<f32>, lengths: &[usize], config: &Config) -> Result<Vec<f32>> {
        let (queries, keys, values) = (self.query.apply(&x)?, self.key.apply(&x)?, self.value.apply(&x)?);
        let seen = attend(&queries, &keys, &values, lengths, self.heads, config.head)?;
        let hidden = self.attention_norm.apply(&sum(self.attended.apply(&seen)?, &x));
        let mut inner = self.inner.apply(&hidden)?;
        activate(&mut inner, config.activation)?;
        Ok(self.norm.apply(&sum(self.outer.apply(&inner)?, &hidden)))
    }
}

/// Refuses layers that the configuration does not count, and layers that round and that the encoder does not have: they
/// would be passed over in silence.
fn check_layers(source: &Source, layers: usize) -> Result<()> {
    for (path, name) in source.names() {
        let number = name.strip_prefix("encoder.layer.").and_then(|rest| rest.split('.').next());
        let number = number.and_then(|number| number.parse().ok());
        if number.is_some_and(|number: usize| number >= layers) {
            let field = "num_hidden_layers";
            return Err(source.refuse(path, ModelFault::LayerLeftOver { field, layers }));
        }
    }
    source.check_classes(|name| match name.strip_prefix("encoder.layer.").and_then(|rest| rest.split_once('.')) {
        Some((number, part)) => {
            let parts = [
                "attention.self.query",
                "attention.self.key",
                "attention.self.value",
                "attention.output.dense",
                "intermediate.dense",
                "output.dense",
            ];
            number.parse().is_ok_and(|number: usize| number < layers) && parts.contains(&part)
        }
        // The pooler is not run.
        None => name.starts_with("embeddings.") || name == "pooler.dense",
    })
}

/// Attention within each text, several texts at once.
fn attend(
    queries: &[f32],
    keys: &[f32],
    values: &[f32],
    lengths: &[usize],
    heads: usize,
    head: usize,
) -> Result<Vec<f32>> {
    let width = heads * head;
    let mut first = 0;
    let places: Vec<_> = lengths
        .iter()
        .map(|length| {
            let start = first;
            first += length * width;
            start..first
        })
        .collect();
    let found = pool::map_on(0, places.len(), |at| {
        let place = || places[at].clone();
        let visible = vec![(0, lengths[at]); lengths[at]];
        let (keys, values) = (&keys[place()], &values[place()]);
        Attend { heads, keys, values, visible: Visible::Runs(&visible) }.apply(&queries[place()], width)
    })?;
    Ok(found.concat())
}

fn sum(mut a: Vec<f32>, b: &[f32]) -> Vec<f32> {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    a
}

/// The mean of rows of `width` numbers, divided by its length.
fn unit_mean(rows: &[f32], width: usize) -> Vec<f32> {
    let mut mean = vec![0.0f32; width];
    for row in rows.chunks_exact(width) {
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x);
    }
    let count = (rows.len() / width) as f32;
    mean.iter_mut().for_each(|x| *x /= count);
    // As torch.nn.functional.normalize: a vector of zeros stays one.
    let length = mean.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    mean.iter_mut().for_each(|x| *x /= length);
    mean
}
