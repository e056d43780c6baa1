//! Laws of the fused route.

use std::collections::BTreeMap;

use super::expand::{Expand, Tile};
use super::lanes::*;
use super::model::Model;
use super::products::*;
use super::reference::{self, FloatLayers, QuantizedLayers};
use super::shape::Shape;
use super::source::*;
use crate::config::{Architecture, Config};
use crate::error::{Error, Result};
use crate::integer_weights::{IntegerLinear, IntegerLstm, Norm};

pub(super) struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 + 0.5) / (1u32 << 24) as f32
    }
    fn below(&mut self, end: usize) -> usize {
        (self.unit() * end as f32) as usize % end
    }
    fn normal(&mut self) -> f32 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f32::consts::TAU * self.unit()).cos()
    }
}

struct Floats32(BTreeMap<String, Vec<f32>>);

impl Values for Floats32 {
    fn values(&self, name: &str) -> Result<&[f32]> {
        self.0.get(name).map(Vec::as_slice).ok_or_else(|| Error::Internal(name.to_owned()))
    }
}

fn random_floats(config: &Config, seed: u64) -> Floats32 {
    let mut random = Random(seed);
    let tensors = crate::schema::tensors(config);
    Floats32(
        tensors
            .into_iter()
            .map(|(name, shape)| {
                let count: usize = shape.iter().product();
                let scale = if shape.len() == 2 { 1.6 / (shape[1] as f32).sqrt() } else { 0.3 };
                let gain = f32::from(u8::from(name.contains("norm.weight")));
                let values = (0..count).map(|_| gain + scale * random.normal()).collect();
                (name, values)
            })
            .collect(),
    )
}

#[derive(Default)]
struct Ints {
    linears: BTreeMap<String, IntegerLinear>,
    lstms: BTreeMap<String, IntegerLstm>,
    norms: BTreeMap<String, Norm>,
}

impl IntegerLayers for Ints {
    fn linear(&self, name: &str) -> Result<&IntegerLinear> {
        self.linears.get(name).ok_or_else(|| Error::Internal(name.to_owned()))
    }
    fn lstm(&self, name: &str) -> Result<&IntegerLstm> {
        self.lstms.get(name).ok_or_else(|| Error::Internal(name.to_owned()))
    }
    fn norm(&self, name: &str) -> Result<&Norm> {
        self.norms.get(name).ok_or_else(|| Error::Internal(name.to_owned()))
    }
}

fn random_ints(config: &Config, seed: u64) -> Ints {
    let mut random = Random(seed);
    let mut ints = Ints::default();
    let layers = crate::schema::integer_layers(config);
    for (name, (rows, columns)) in layers.linears {
        let codes = (0..rows * columns).map(|_| (random.normal() * 50.0).clamp(-127.0, 127.0) as i8).collect();
        let scales = (0..rows).map(|_| (1.6 / 50.0 / (columns as f32).sqrt()) * (0.5 + random.unit())).collect();
        let bias = (0..rows).map(|_| (random.normal() * 500.0) as i32).collect();
        ints.linears.insert(name, IntegerLinear { rows, columns, codes, scales, bias, input_scale: 2.5 / 127.0 });
    }
    for (name, units) in layers.lstms {
        let codes = (0..4 * units * units).map(|_| (random.normal() * 50.0).clamp(-127.0, 127.0) as i8).collect();
        let scales = (0..4 * units).map(|_| (1.6 / 50.0 / (units as f32).sqrt()) * (0.5 + random.unit())).collect();
        let table = (0..config.vocabulary * 4 * units).map(|_| (random.normal() * 8000.0) as i32).collect();
        ints.lstms.insert(name, IntegerLstm { units, codes, scales, table, state_scale: 1.0 / 127.0 });
    }
    for (name, width) in layers.norms {
        let weight = (0..width).map(|_| 1.0 + 0.3 * random.normal()).collect();
        let bias = (0..width).map(|_| 0.3 * random.normal()).collect();
        ints.norms.insert(name, Norm { weight, bias });
    }
    ints
}

fn sources(random: &mut Random, config: &Config, count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|_| {
            let length = 1 + random.below(config.max_source);
            (0..length).map(|_| (3 + random.below(config.vocabulary - 3)) as u8).collect()
        })
        .collect()
}

pub(super) fn default_config() -> Config {
    Config {
        architecture: Architecture::Hybrid,
        vocabulary: 31,
        embedding: 64,
        encoder: 64,
        hidden: 128,
        heads: 4,
        layers: 2,
        feedforward: 512,
        max_source: 32,
        max_target: 32,
    }
}

fn run<A: Arithmetic>(a: A, model: &Model<A::Weights>, source: &[Vec<u8>], rows: usize) -> Vec<Vec<u8>> {
    let mut tile = Tile::<A>::new(model, rows);
    let source: Vec<&[u8]> = source.iter().map(Vec::as_slice).collect();
    let mut out = vec![Vec::new(); source.len()];
    a.run(Expand { arithmetic: a, model, source: &source, out: &mut out, tile: &mut tile });
    out
}

#[test]
fn float_tokens_are_those_of_the_reference() {
    for (seed, config) in [
        (1, Config { vocabulary: 9, embedding: 5, encoder: 7, hidden: 12, heads: 3, layers: 1, feedforward: 7, max_source: 6, max_target: 5, ..default_config() }),
        (2, Config { layers: 3, encoder: 20, hidden: 40, heads: 5, feedforward: 33, ..default_config() }),
        (3, default_config()),
    ] {
        let weights = random_floats(&config, seed);
        let model = Model::new(Shape::new(&config), &FloatSource { config: &config, weights: &weights }).unwrap();
        let source = sources(&mut Random(seed + 10), &config, 40);
        let want: Vec<Vec<u8>> = source
            .iter()
            .map(|s| reference::expand(&config, &FloatLayers(&config, &weights), s, None).unwrap().0)
            .collect();
        println!("{:?}", want.iter().map(Vec::len).collect::<Vec<_>>());
        let split = Model::new(Shape::new(&config), &FloatSource { config: &config, weights: &weights }).unwrap();
        for rows in [1, 3, 32] {
            assert_eq!(run(Split(Amx::new().unwrap()), &split, &source, rows), want, "split");
            assert_eq!(run(Float(Scalar), &model, &source, rows), want, "scalar");
            assert_eq!(run(Float(Avx2::new().unwrap()), &model, &source, rows), want, "avx2");
            assert_eq!(run(Float(Avx512::new().unwrap()), &model, &source, rows), want, "avx512");
        }
    }
}

#[test]
fn integer_tokens_are_those_of_the_reference() {
    for (seed, config) in [
        (1, Config { vocabulary: 9, embedding: 5, encoder: 7, hidden: 12, heads: 3, layers: 1, feedforward: 7, max_source: 6, max_target: 5, ..default_config() }),
        (2, Config { layers: 3, encoder: 20, hidden: 40, heads: 5, feedforward: 33, ..default_config() }),
        (3, default_config()),
    ] {
        let weights = random_ints(&config, seed);
        let model = Model::new(Shape::new(&config), &IntegerSource(&weights)).unwrap();
        let source = sources(&mut Random(seed + 10), &config, 40);
        let want: Vec<Vec<u8>> =
            source.iter().map(|s| reference::expand(&config, &QuantizedLayers(&weights), s, None).unwrap().0).collect();
        println!("{:?}", want.iter().map(Vec::len).collect::<Vec<_>>());
        let scalar = run(Integer(Scalar), &model, &source, 32);
        let same = scalar.iter().zip(&want).filter(|(a, b)| a == b).count();
        println!("same {same} of {}", want.len());
        for rows in [1, 3, 32] {
            assert_eq!(run(Integer(Avx2::new().unwrap()), &model, &source, rows), scalar, "avx2");
            assert_eq!(run(Integer(Vnni::new().unwrap()), &model, &source, rows), scalar, "vnni");
            assert_eq!(run(Integer(Amx::new().unwrap()), &model, &source, rows), scalar, "amx");
        }
        assert!(same * 10 >= want.len() * 8);
    }
}

fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1e-9
}

fn timed<A: Arithmetic>(name: &str, a: A, model: &Model<A::Weights>, source: &[Vec<u8>], rows: usize, tile_rows: usize) {
    let mut tile = Tile::<A>::new(model, rows);
    let all: Vec<&[u8]> = source.iter().map(Vec::as_slice).collect();
    let mut best = f64::INFINITY;
    let mut tokens = 0;
    for _ in 0..7 {
        let start = cpu();
        tokens = 0;
        for part in all.chunks(tile_rows) {
            let mut out = vec![Vec::new(); part.len()];
            a.run(Expand { arithmetic: a, model, source: part, out: &mut out, tile: &mut tile });
            tokens += out.iter().map(|o| o.len() + 1).sum::<usize>();
        }
        best = best.min(cpu() - start);
    }
    println!(
        "{name} rows {rows}: {:.0} samples/s, {:.1} us a sample, target length {:.2}",
        source.len() as f64 / best,
        best / source.len() as f64 * 1e6,
        tokens as f64 / source.len() as f64
    );
}

#[test]
#[ignore]
fn speed() {
    let config = Config { max_target: std::env::var("MT").map_or(16, |f| f.parse().unwrap()), feedforward: std::env::var("FF").map_or(512, |f| f.parse().unwrap()), ..default_config() };
    let which = std::env::var("WHICH").unwrap_or_default();
    let rows: Vec<usize> = std::env::var("ROWS").map_or(vec![32], |r| r.split(',').map(|r| r.parse().unwrap()).collect());
    let count = std::env::var("COUNT").map_or(1024, |f| f.parse().unwrap());
    let tile: usize = std::env::var("TILE").map_or(256, |f| f.parse().unwrap());
    let mut random = Random(7);
    let mut source: Vec<Vec<u8>> = (0..count)
        .map(|_| {
            let length = 4 + random.below(22);
            (0..length).map(|_| (3 + random.below(28)) as u8).collect()
        })
        .collect();
    source.sort_by_key(Vec::len);
    let floats = {
        let mut weights = random_floats(&config, 5);
        let shift: f32 = std::env::var("SHIFT").map_or(-100.0, |f| f.parse().unwrap());
        weights.0.get_mut("output.bias").unwrap()[2] += shift;
        weights
    };
    let ints = {
        let mut weights = random_ints(&config, 5);
        let shift: i32 = std::env::var("ISHIFT").map_or(-300000, |f| f.parse().unwrap());
        weights.linears.get_mut("output").unwrap().bias[2] += shift;
        weights
    };
    let float = Model::new(Shape::new(&config), &FloatSource { config: &config, weights: &floats }).unwrap();
    let split: Model<SplitWeights> = Model::new(Shape::new(&config), &FloatSource { config: &config, weights: &floats }).unwrap();
    let int = Model::new(Shape::new(&config), &IntegerSource(&ints)).unwrap();
    for rows in rows {
        if which.contains("f5") { timed("float avx512", Float(Avx512::new().unwrap()), &float, &source, rows, tile) };
        if which.contains("fa") { timed("float amx", Split(Amx::new().unwrap()), &split, &source, rows, tile) };
        if which.contains("f2") { timed("float avx2", Float(Avx2::new().unwrap()), &float, &source, rows, tile) };
        if which.contains("f0") { timed("float scalar", Float(Scalar), &float, &source, rows, tile) };
        if which.contains("i5") { timed("int8 vnni", Integer(Vnni::new().unwrap()), &int, &source, rows, tile) };
        if which.contains("ia") { timed("int8 amx", Integer(Amx::new().unwrap()), &int, &source, rows, tile) };
        if which.contains("i2") { timed("int8 avx2", Integer(Avx2::new().unwrap()), &int, &source, rows, tile) };
        if which.contains("i0") { timed("int8 scalar", Integer(Scalar), &int, &source, rows, tile) };
    }
}
