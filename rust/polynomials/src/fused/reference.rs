//! The reference of the hybrid model, which tests compare the kernels with: one row at a time, in float64, nothing folded.

use std::borrow::Cow;

use octavo_engine::Result;

use crate::config::Config;

use super::source::{IntegerLayers, Values};

const START: usize = 1;
const END: usize = 2;

/// The layers of a model by their PyTorch names.
pub(super) trait Layers {
    /// A linear layer.
    fn linear(&self, name: &str, x: &[f64]) -> Result<Vec<f64>>;
    /// The gates i, f, g, o of an LSTM before their functions.
    fn gates(&self, name: &str, token: usize, hidden: &[f64]) -> Result<Vec<f64>>;
    /// Gain and bias of a layer norm.
    fn norm(&self, name: &str) -> Result<(Vec<f32>, Vec<f32>)>;
    /// An element of a key or a value as it is kept.
    fn kept(&self, x: f64) -> f64 {
        x
    }
}

/// A float model.
pub(super) struct FloatLayers<'a, V>(pub(super) &'a Config, pub(super) &'a V);

fn product(weight: &[f32], bias: &[f32], x: &[f64]) -> Vec<f64> {
    let rows = weight.chunks(x.len()).zip(bias);
    rows.map(|(row, &bias)| f64::from(bias) + row.iter().zip(x).map(|(&w, &x)| f64::from(w) * x).sum::<f64>()).collect()
}

impl<V: Values> Layers for FloatLayers<'_, V> {
    fn linear(&self, name: &str, x: &[f64]) -> Result<Vec<f64>> {
        Ok(product(&self.1.values(&format!("{name}.weight"))?, &self.1.values(&format!("{name}.bias"))?, x))
    }

    fn gates(&self, name: &str, token: usize, hidden: &[f64]) -> Result<Vec<f64>> {
        let embedding = if name == "decoder" { "target_embedding.weight" } else { "source_embedding.weight" };
        let width = self.0.embedding;
        let x: Vec<f64> = self.1.values(embedding)?[token * width..][..width].iter().map(|&x| f64::from(x)).collect();
        let part = |part: &str| self.1.values(&format!("{name}.{part}_l0"));
        let from_token = product(&part("weight_ih")?, &part("bias_ih")?, &x);
        let from_state = product(&part("weight_hh")?, &part("bias_hh")?, hidden);
        Ok(from_token.iter().zip(from_state).map(|(a, b)| a + b).collect())
    }

    fn norm(&self, name: &str) -> Result<(Vec<f32>, Vec<f32>)> {
        let part = |part: &str| self.1.values(&format!("{name}.{part}")).map(Cow::into_owned);
        Ok((part("weight")?, part("bias")?))
    }
}

/// An integer model. The arithmetic is that of `python/octavo/lab/polynomials/static`.
pub(super) struct QuantizedLayers<'a, I>(pub(super) &'a I);

fn codes(x: &[f64], scale: f32, largest: f32) -> Vec<i32> {
    let inverse = 1.0 / scale;
    x.iter().map(|&x| (x as f32 * inverse).round_ties_even().clamp(-largest, largest) as i32).collect()
}

/// The int32 sums of a matrix of int8 and codes, and their values.
fn sums(weight: &[i8], added: &[i32], x: &[i32], step: f32, scales: &[f32]) -> Vec<f64> {
    let rows = weight.chunks(x.len()).zip(added).zip(scales);
    rows.map(|((row, added), scale)| {
        let sum: i32 = added + row.iter().zip(x).map(|(&w, &x)| i32::from(w) * x).sum::<i32>();
        f64::from(sum as f32 * (step * scale))
    })
    .collect()
}

impl<I: IntegerLayers> Layers for QuantizedLayers<'_, I> {
    fn linear(&self, name: &str, x: &[f64]) -> Result<Vec<f64>> {
        let layer = self.0.linear(name)?;
        let x = codes(x, layer.input_scale, if layer.wide { 32767.0 } else { 127.0 });
        Ok(sums(&layer.codes, &layer.bias, &x, layer.input_scale, &layer.scales))
    }

    fn gates(&self, name: &str, token: usize, hidden: &[f64]) -> Result<Vec<f64>> {
        let layer = self.0.lstm(name)?;
        let rows = layer.scales.len();
        let x = codes(hidden, layer.state_scale, 127.0);
        Ok(sums(&layer.codes, &layer.table[token * rows..][..rows], &x, layer.state_scale, &layer.scales))
    }

    fn norm(&self, name: &str) -> Result<(Vec<f32>, Vec<f32>)> {
        let norm = self.0.norm(name)?;
        Ok((norm.weight.clone(), norm.bias.clone()))
    }

    fn kept(&self, x: f64) -> f64 {
        half::f16::from_f64(x).to_f64()
    }
}

/// Logits of each step of one row: greedy, or along `forced` tokens.
pub(super) fn expand(
    config: &Config,
    layers: &impl Layers,
    source: &[u8],
    forced: Option<&[u8]>,
) -> Result<(Vec<u8>, Vec<Vec<f64>>)> {
    let source: Vec<usize> = source.iter().copied().map(usize::from).collect();
    let zeros = vec![0.0; config.encoder];
    let ahead = states(layers, "encoder.forwards", source.iter(), &zeros)?;
    let mut back = states(layers, "encoder.backwards", source.iter().rev(), &zeros)?;
    back.reverse();
    let memory: Vec<Vec<f64>> = ahead
        .iter()
        .zip(&back)
        .map(|(ahead, back)| norm(layers, "memory_norm", &[&ahead[..], back].concat()))
        .collect::<Result<_>>()?;
    let ends = [&ahead[ahead.len() - 1][..], &back[0]].concat();
    let bridge = layers.linear("bridge", &ends)?;
    let (hidden, cell) = bridge.split_at(config.hidden);
    let mut hidden: Vec<f64> = hidden.iter().map(|h| h.tanh()).collect();
    let mut cell = cell.to_vec();
    let mut own: Vec<Vec<f64>> = Vec::new();
    let (mut tokens, mut logits) = (Vec::new(), Vec::new());
    let mut token = START;
    for position in 0..config.max_target {
        (hidden, cell) = lstm(layers, "decoder", token, &hidden, &cell)?;
        own.push(norm(layers, "self_norm", &hidden)?);
        let mut x = attention(config, layers, "self_attention", &own[position], &own, &hidden)?;
        for block in 0..config.layers {
            let name = format!("blocks.{block}");
            let normed = norm(layers, &format!("{name}.cross_norm"), &x)?;
            x = attention(config, layers, &format!("{name}.cross_attention"), &normed, &memory, &x)?;
            let normed = norm(layers, &format!("{name}.feedforward_norm"), &x)?;
            let inner = layers.linear(&format!("{name}.feedforward.expand"), &normed)?;
            let inner: Vec<f64> = inner.iter().map(|v| v.max(0.0)).collect();
            x = sum(&x, &layers.linear(&format!("{name}.feedforward.contract"), &inner)?);
        }
        let found = layers.linear("output", &norm(layers, "output_norm", &x)?)?;
        let best = (END..config.vocabulary).fold(END, |best, at| if found[at] > found[best] { at } else { best });
        logits.push(found);
        token = match forced {
            Some(tokens) if position == tokens.len() => break,
            Some(tokens) => usize::from(tokens[position]),
            None => best,
        };
        if token == END {
            break;
        }
        tokens.push(token as u8);
    }
    Ok((tokens, logits))
}

fn states<'a>(
    layers: &impl Layers,
    name: &str,
    tokens: impl Iterator<Item = &'a usize>,
    zeros: &[f64],
) -> Result<Vec<Vec<f64>>> {
    let (mut hidden, mut cell) = (zeros.to_vec(), zeros.to_vec());
    tokens
        .map(|&token| {
            (hidden, cell) = lstm(layers, name, token, &hidden, &cell)?;
            Ok(hidden.clone())
        })
        .collect()
}

fn lstm(layers: &impl Layers, name: &str, token: usize, hidden: &[f64], cell: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
    let gates = layers.gates(name, token, hidden)?;
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let units = cell.len();
    let cell: Vec<f64> = (0..units)
        .map(|u| sigmoid(gates[units + u]) * cell[u] + sigmoid(gates[u]) * gates[2 * units + u].tanh())
        .collect();
    let hidden = (0..units).map(|u| sigmoid(gates[3 * units + u]) * cell[u].tanh()).collect();
    Ok((hidden, cell))
}

fn norm(layers: &impl Layers, name: &str, x: &[f64]) -> Result<Vec<f64>> {
    let (gain, bias) = layers.norm(name)?;
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scaled = x.iter().zip(gain).zip(bias);
    Ok(scaled
        .map(|((x, gain), bias)| (x - mean) / (variance + 1e-5).sqrt() * f64::from(gain) + f64::from(bias))
        .collect())
}

/// `x` plus what attention from `normed` to `memory` gives.
fn attention(
    config: &Config,
    layers: &impl Layers,
    name: &str,
    normed: &[f64],
    memory: &[Vec<f64>],
    x: &[f64],
) -> Result<Vec<f64>> {
    let head = config.hidden / config.heads;
    let query = layers.linear(&format!("{name}.query"), normed)?;
    let kept = |projected: Vec<f64>| -> Vec<f64> { projected.into_iter().map(|x| layers.kept(x)).collect() };
    let project = |part: &str| memory.iter().map(|m| Ok(kept(layers.linear(&format!("{name}.{part}"), m)?))).collect();
    let (keys, values): (Result<Vec<_>>, Result<Vec<_>>) = (project("key"), project("value"));
    let (keys, values) = (keys?, values?);
    let mut mixed = Vec::new();
    for first in (0..config.hidden).step_by(head) {
        let part = first..first + head;
        let dot = |key: &Vec<f64>| query[part.clone()].iter().zip(&key[part.clone()]).map(|(q, k)| q * k).sum::<f64>();
        let scores: Vec<f64> = keys.iter().map(|key| dot(key) / (head as f64).sqrt()).collect();
        let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
        let total: f64 = weights.iter().sum();
        mixed.extend(part.map(|at| weights.iter().zip(&values).map(|(w, v)| w / total * v[at]).sum::<f64>()));
    }
    Ok(sum(x, &layers.linear(&format!("{name}.output"), &mixed)?))
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
