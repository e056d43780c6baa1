//! A Llama of candle's tensors whose linear layers and embedding are packed: loads a model folder and continues token ids.
//!
//! `cargo run --release -p octavo-engine --features candle --example candle_llama FOLDER COUNT ID [ID ...]` writes the ids of
//! the prompt and the `COUNT` most likely ones after it. FOLDER is a Llama of transformers, packed by `octavo pack` or plain.

use std::path::Path;

use candle_core::{D, Device, Error, Module, Result, Tensor};
use candle_nn::{RmsNorm, ops, rotary_emb};
use octavo_engine::candle::{PackedEmbedding, PackedLinear, PackedVarBuilder};
use serde::Deserialize;

/// What is read of the `config.json` of transformers.
#[derive(Clone, Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    max_position_embeddings: usize,
    head_dim: Option<usize>,
    rms_norm_eps: f64,
    rope_theta: Option<f32>,
    rope_parameters: Option<RopeParameters>,
    #[serde(default)]
    tie_word_embeddings: bool,
}

/// Where transformers 5 writes the base of rotary positions.
#[derive(Clone, Deserialize)]
struct RopeParameters {
    rope_theta: f32,
}

impl Config {
    fn head(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }
}

/// Cosines and sines of all positions, `[positions, head / 2]`.
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    fn new(config: &Config) -> Result<Self> {
        let (head, positions) = (config.head(), config.max_position_embeddings);
        let parameters = config.rope_parameters.as_ref().map(|parameters| parameters.rope_theta);
        let base = parameters.or(config.rope_theta).unwrap_or(10_000.0);
        let frequency = |i: usize| 1.0 / base.powf((2 * i) as f32 / head as f32);
        let frequencies = Tensor::from_iter((0..head / 2).map(frequency), &Device::Cpu)?.reshape((1, head / 2))?;
        let places = Tensor::from_iter((0..positions).map(|at| at as f32), &Device::Cpu)?.reshape((positions, 1))?;
        let angles = places.matmul(&frequencies)?;
        Ok(Self { cos: angles.cos()?, sin: angles.sin()? })
    }

    /// Turns `[heads, places, head]` whose first place is `start`.
    fn turn(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        let places = x.dim(1)?;
        let (cos, sin) = (self.cos.narrow(0, start, places)?, self.sin.narrow(0, start, places)?);
        rotary_emb::rope(&x.unsqueeze(0)?.contiguous()?, &cos, &sin)?.squeeze(0)
    }
}

/// Keys and values of the places so far, `[heads, places, head]` each.
type Cache = Option<(Tensor, Tensor)>;

struct Attention {
    query: PackedLinear,
    key: PackedLinear,
    value: PackedLinear,
    out: PackedLinear,
    heads: usize,
    kv_heads: usize,
    head: usize,
}

impl Attention {
    fn load(builder: &PackedVarBuilder, config: &Config) -> Result<Self> {
        let (width, head) = (config.hidden_size, config.head());
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        Ok(Self {
            query: builder.pp("q_proj").linear_no_bias(width, heads * head)?,
            key: builder.pp("k_proj").linear_no_bias(width, kv_heads * head)?,
            value: builder.pp("v_proj").linear_no_bias(width, kv_heads * head)?,
            out: builder.pp("o_proj").linear_no_bias(heads * head, width)?,
            heads,
            kv_heads,
            head,
        })
    }

    /// What `[places, width]` sees of itself and of what the cache holds.
    fn forward(&self, x: &Tensor, rotary: &Rotary, cache: &mut Cache) -> Result<Tensor> {
        let places = x.dim(0)?;
        let by_head = |x: Tensor, heads: usize| x.reshape((places, heads, self.head))?.transpose(0, 1)?.contiguous();
        let start = cache.as_ref().map_or(Ok(0), |(keys, _)| keys.dim(1))?;
        let query = rotary.turn(&by_head(self.query.forward(x)?, self.heads)?, start)?;
        let key = rotary.turn(&by_head(self.key.forward(x)?, self.kv_heads)?, start)?;
        let value = by_head(self.value.forward(x)?, self.kv_heads)?;
        let (keys, values) = match cache.take() {
            Some((keys, values)) => (Tensor::cat(&[keys, key], 1)?, Tensor::cat(&[values, value], 1)?),
            None => (key, value),
        };
        // Heads of queries that share a head of keys stand one after the other.
        let shared = (self.kv_heads, self.heads / self.kv_heads * places, self.head);
        let scores = (query.reshape(shared)?.matmul(&keys.t()?)? / (self.head as f64).sqrt())?;
        let seen = start + places;
        let scores = scores.reshape((self.heads, places, seen))?;
        let later = |at: usize| if at % seen > start + at / seen { f32::NEG_INFINITY } else { 0.0 };
        let mask = Tensor::from_iter((0..places * seen).map(later), &Device::Cpu)?.reshape((1, places, seen))?;
        let shares = ops::softmax_last_dim(&scores.broadcast_add(&mask)?)?;
        let mixed = shares.reshape((self.kv_heads, shared.1, seen))?.matmul(&values)?;
        let mixed = mixed.reshape((self.heads, places, self.head))?.transpose(0, 1)?.flatten_from(1)?;
        *cache = Some((keys, values));
        self.out.forward(&mixed)
    }
}

struct FeedForward {
    gate: PackedLinear,
    up: PackedLinear,
    down: PackedLinear,
}

impl FeedForward {
    fn load(builder: &PackedVarBuilder, config: &Config) -> Result<Self> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            gate: builder.pp("gate_proj").linear_no_bias(width, inner)?,
            up: builder.pp("up_proj").linear_no_bias(width, inner)?,
            down: builder.pp("down_proj").linear_no_bias(inner, width)?,
        })
    }
}

impl Module for FeedForward {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&(self.gate.forward(x)?.silu()? * self.up.forward(x)?)?)
    }
}

struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    feed_norm: RmsNorm,
    feed: FeedForward,
}

/// A Llama, and the keys and values of the tokens that it has read.
pub(crate) struct Llama {
    embedding: PackedEmbedding,
    rotary: Rotary,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: PackedLinear,
    caches: Vec<Cache>,
}

impl Llama {
    /// Loads a model folder.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let text = std::fs::read(folder.join("config.json"))?;
        let config: Config = serde_json::from_slice(&text).map_err(Error::wrap)?;
        let root = PackedVarBuilder::open(folder)?;
        let model = root.pp("model");
        let norm = |builder: PackedVarBuilder| {
            Ok::<_, Error>(RmsNorm::new(builder.get(config.hidden_size, "weight")?, config.rms_norm_eps))
        };
        let block = |number: usize| {
            let builder = model.pp("layers").pp(number);
            Ok::<_, Error>(Block {
                attention_norm: norm(builder.pp("input_layernorm"))?,
                attention: Attention::load(&builder.pp("self_attn"), &config)?,
                feed_norm: norm(builder.pp("post_attention_layernorm"))?,
                feed: FeedForward::load(&builder.pp("mlp"), &config)?,
            })
        };
        let embedding = model.pp("embed_tokens").embedding(config.vocab_size, config.hidden_size)?;
        let head = match config.tie_word_embeddings && !root.contains("lm_head.weight") {
            true => embedding.as_linear(),
            false => root.pp("lm_head").linear_no_bias(config.hidden_size, config.vocab_size)?,
        };
        let llama = Self {
            embedding,
            rotary: Rotary::new(&config)?,
            blocks: (0..config.num_hidden_layers).map(block).collect::<Result<_>>()?,
            norm: norm(model.pp("norm"))?,
            head,
            caches: vec![None; config.num_hidden_layers],
        };
        root.check_all_taken()?;
        Ok(llama)
    }

    /// Reads more ids: the scores of the token after each, `[ids, vocabulary]`.
    pub(crate) fn forward(&mut self, ids: &[u32]) -> Result<Tensor> {
        let mut x = self.embedding.forward(&Tensor::new(ids, &Device::Cpu)?)?;
        for (block, cache) in self.blocks.iter().zip(&mut self.caches) {
            x = (&x + block.attention.forward(&block.attention_norm.forward(&x)?, &self.rotary, cache)?)?;
            x = (&x + block.feed.forward(&block.feed_norm.forward(&x)?)?)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

#[expect(clippy::print_stdout, reason = "ids are the output of this example")]
fn main() -> Result<()> {
    let usage = || Error::msg("usage: candle_llama FOLDER COUNT ID [ID ...]");
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or_else(usage)?;
    let numbers: Vec<u32> = arguments.map(|text| text.parse().map_err(|_| usage())).collect::<Result<_>>()?;
    let [count, prompt @ ..] = numbers.as_slice() else { return Err(usage()) };
    let mut llama = Llama::load(Path::new(&folder))?;
    let mut ids = prompt.to_vec();
    let mut read = 0;
    for _ in 0..*count {
        let scores = llama.forward(&ids[read..])?;
        read = ids.len();
        ids.push(scores.get(scores.dim(0)? - 1)?.argmax(D::Minus1)?.to_scalar()?);
    }
    println!("{ids:?}");
    Ok(())
}
