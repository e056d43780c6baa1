//! Laws of the fused route.

use std::borrow::Cow;
use std::collections::BTreeMap;

use octavo_engine::{Error, Result};

use super::expand::{Expand, Tile};
use super::lanes::*;
use super::model::Model;
use super::products::*;
use super::reference::{self, FloatLayers, QuantizedLayers};
use super::shape::Shape;
use super::source::*;
use crate::config::{Architecture, Config};
use crate::integer_weights::{IntegerLinear, IntegerLstm, Norm, integer_layers};
use crate::schema;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 + 0.5) / (1u32 << 24) as f32
    }
    fn below(&mut self, end: usize) -> usize {
        (self.unit() * end as f32) as usize % end
    }
    pub(super) fn normal(&mut self) -> f32 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f32::consts::TAU * self.unit()).cos()
    }
}

struct Floats32(BTreeMap<String, Vec<f32>>);

impl Values for Floats32 {
    fn values(&self, name: &str) -> Result<Cow<'_, [f32]>> {
        self.0.get(name).map(|values| values.as_slice().into()).ok_or_else(|| Error::Internal(name.to_owned()))
    }
}

fn random_floats(config: &Config, seed: u64) -> Floats32 {
    let mut random = Random(seed);
    let tensors = schema::tensors(config);
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
    let layers = integer_layers(config);
    for (name, (rows, columns)) in layers.linears {
        let codes = (0..rows * columns).map(|_| (random.normal() * 50.0).clamp(-127.0, 127.0) as i8).collect();
        let scales = (0..rows).map(|_| (1.6 / 50.0 / (columns as f32).sqrt()) * (0.5 + random.unit())).collect();
        let bias = (0..rows).map(|_| (random.normal() * 500.0) as i32);
        // A site is a layer or the layers that read one tensor: all of a kind are wide or none.
        let wide =
            ["key", "value", "self_attention.query", "contract", "bridge"].iter().any(|kind| name.ends_with(kind));
        let input_scale = 2.5 / if wide { 32767.0 } else { 127.0 };
        let bias = bias.map(|bias: i32| if wide { bias * 258 } else { bias }).collect();
        ints.linears.insert(name, IntegerLinear { rows, columns, codes, scales, bias, input_scale, wide });
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

#[test]
fn codes_are_the_same_at_every_level() {
    let mut random = Random(5);
    let mut values: Vec<f32> = (0..160).map(|i| random.normal() * [1.0, 100.0, 30_000.0, 1e30][i % 4]).collect();
    values.extend([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, -127.5, 0.0, -0.0, 32766.5, 32767.5, -32767.5]);
    values.extend([f32::INFINITY, f32::NEG_INFINITY, 1e-40]);
    for inverse in [1.0, 0.37] {
        for line in values.as_chunks().0 {
            let line = Line(*line);
            let want = line.0.map(|v| (v * inverse).round_ties_even().clamp(-32767.0, 32767.0) as i32 + 32768);
            let [high, low] = Scalar.to_words(line.0, [inverse; LANES]);
            assert_eq!(std::array::from_fn(|i| i32::from(high[i]) * 256 + i32::from(low[i])), want);
            let bytes = Scalar.to_bytes(line.0, [inverse; LANES]);
            if let Some(l) = Avx2::new() {
                assert_eq!(l.to_words(l.load(&line), l.splat(inverse)), [high, low]);
                assert_eq!(l.to_bytes(l.load(&line), l.splat(inverse)), bytes);
            }
            if let Some(l) = Avx512::new() {
                assert_eq!(l.to_words(l.load(&line), l.splat(inverse)), [high, low]);
                assert_eq!(l.to_bytes(l.load(&line), l.splat(inverse)), bytes);
            }
        }
    }
}

fn sources(random: &mut Random, config: &Config, count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|_| {
            let length = 1 + random.below(config.max_source);
            (0..length).map(|_| (3 + random.below(config.vocabulary - 3)) as u8).collect()
        })
        .collect()
}

fn default_config() -> Config {
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
        variants: Default::default(),
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
        (
            1,
            Config {
                vocabulary: 9,
                embedding: 5,
                encoder: 7,
                hidden: 12,
                heads: 3,
                layers: 1,
                feedforward: 7,
                max_source: 6,
                max_target: 5,
                ..default_config()
            },
        ),
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
        for rows in [1, 3, 32] {
            assert_eq!(run(Float(Scalar), &model, &source, rows), want, "scalar");
            if let Some(lanes) = Avx2::new() {
                assert_eq!(run(Float(lanes), &model, &source, rows), want, "avx2");
            }
            if let Some(lanes) = Avx512::new() {
                assert_eq!(run(Float(lanes), &model, &source, rows), want, "avx512");
            }
        }
        if let Some(a) = Limbs::new() {
            let model = Model::new(Shape::new(&config), &FloatSource { config: &config, weights: &weights }).unwrap();
            for rows in [1, 3, 16, 32] {
                assert_eq!(run(a, &model, &source, rows), want, "split");
            }
        }
    }
}

#[test]
fn integer_tokens_are_those_of_the_reference() {
    for (seed, config) in [
        (
            1,
            Config {
                vocabulary: 9,
                embedding: 5,
                encoder: 7,
                hidden: 12,
                heads: 3,
                layers: 1,
                feedforward: 7,
                max_source: 6,
                max_target: 5,
                ..default_config()
            },
        ),
        (2, Config { layers: 3, encoder: 20, hidden: 40, heads: 5, feedforward: 33, ..default_config() }),
        (3, default_config()),
    ] {
        let weights = random_ints(&config, seed);
        let model = Model::new(Shape::new(&config), &IntegerSource(&weights)).unwrap();
        let source = sources(&mut Random(seed + 10), &config, 40);
        let want: Vec<Vec<u8>> =
            source.iter().map(|s| reference::expand(&config, &QuantizedLayers(&weights), s, None).unwrap().0).collect();
        let scalar = run(Integer(Scalar), &model, &source, 32);
        let same = scalar.iter().zip(&want).filter(|(a, b)| a == b).count();
        for rows in [1, 3, 32] {
            if let Some(lanes) = Avx2::new() {
                assert_eq!(run(Integer(lanes), &model, &source, rows), scalar, "avx2");
            }
            if let Some(lanes) = Vnni::new() {
                assert_eq!(run(Integer(lanes), &model, &source, rows), scalar, "vnni");
            }
            if let Some(lanes) = Amx::new() {
                assert_eq!(run(Integer(lanes), &model, &source, rows), scalar, "amx");
            }
        }
        assert!(same * 10 >= want.len() * 8);
    }
}

/// The tokens of a row in company are those of the row alone: rows take the places of others that have ended, tiles are
/// partly empty, sources are encoded in groups.
fn in_any_company<A, S>(a: A, config: &Config, from: &S)
where
    A: Arithmetic,
    S: Source<Code = <A::Weights as Weights>::Code, Number = NumberOf<A>>,
{
    let model = Model::<A::Weights>::new(Shape::new(config), from).unwrap();
    let source = sources(&mut Random(7), config, 60);
    let alone: Vec<Vec<u8>> =
        source.iter().flat_map(|source| run(a, &model, std::slice::from_ref(source), A::TOGETHER)).collect();
    let lengths: std::collections::BTreeSet<usize> = alone.iter().map(Vec::len).collect();
    assert!(lengths.len() > 2, "rows of {lengths:?} tokens only");
    assert_eq!(run(a, &model, &source, A::TOGETHER), alone);
    let mut backwards = source;
    backwards.reverse();
    assert!(run(a, &model, &backwards, 2 * A::TOGETHER).iter().eq(alone.iter().rev()));
}

#[test]
fn tokens_do_not_depend_on_other_rows() {
    let config = Config { vocabulary: 9, encoder: 20, hidden: 40, feedforward: 33, layers: 1, ..default_config() };
    let (floats, ints) = (random_floats(&config, 4), random_ints(&config, 4));
    let (floats, ints) = (FloatSource { config: &config, weights: &floats }, IntegerSource(&ints));
    in_any_company(Float(Scalar), &config, &floats);
    in_any_company(Integer(Scalar), &config, &ints);
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(l) = Avx512::new() {
            in_any_company(Float(l), &config, &floats);
        }
        if let Some(a) = Limbs::new() {
            in_any_company(a, &config, &floats);
        }
        if let Some(p) = Amx::new() {
            in_any_company(Half(p), &config, &floats);
        }
        if let Some(p) = Bf16::new() {
            in_any_company(Half(p), &config, &floats);
        }
        if let Some(p) = Vnni::new() {
            in_any_company(Integer(p), &config, &ints);
        }
        if let Some(p) = Amx::new() {
            in_any_company(Integer(p), &config, &ints);
        }
    }
}
