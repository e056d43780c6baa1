//! Products through the public API, on every processor that this machine can be: within the bound of FORMATS.md section 6,
//! and those of integers to the bit.

#![expect(clippy::expect_used, reason = "a test stops where its set-up fails")]

#[path = "common/fewer.rs"]
mod fewer;

use std::sync::{Mutex, MutexGuard, PoisonError};

use octavo_core::format::{KQuant, catalogue};
use octavo_core::linear::{Bias, Matrix, multiply, multiply_integer, multiply_rounded};
use octavo_core::simd::Processor;
use octavo_core::{Format, Layout, Options, Packed, PackedMut, Sizes, Values, ValuesMut, codec};

/// Rows of inputs, rows of weights and columns: one row, odd ones, many; whole and short last groups.
const SHAPES: [(usize, usize, usize); 4] = [(1, 66, 577), (3, 17, 33), (6, 20, 129), (37, 65, 320)];
/// Of inputs that are rounded; the weights' formats take turns with them.
const INPUTS: [&str; 8] = ["int8:g32", "mxint8", "mxfp4", "bf16", "int8:channel", "nvfp4", "mxfp6e2m3", "mxfp8e4m3"];
/// Of weights and inputs of integer products.
const INTEGERS: [&str; 6] = ["int8", "int8:channel", "int8:tensor", "int4:channel", "int3", "int6:channel"];

/// The processor in use belongs to the process; tests take turns.
static PROCESSOR: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    PROCESSOR.lock().unwrap_or_else(PoisonError::into_inner)
}

fn noise(i: usize, seed: usize) -> f32 {
    let bits = ((i ^ (seed << 20)) as u32).wrapping_mul(0x9e37_79b9).rotate_left(11).wrapping_mul(0x85eb_ca6b);
    bits as i32 as f32 * 2.0f32.powi(-31)
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| noise(i, seed)).collect()
}

/// An encoded matrix, and the values that its codes stand for.
struct Weight {
    format: Format,
    parts: [Vec<u8>; 4],
    shape: (usize, usize),
    decoded: Vec<f32>,
    /// Magnitudes that bound the error: of the values, or with offsets of what they are the sum of.
    sizes: Vec<f32>,
}

impl Weight {
    fn new(text: &str, shape: (usize, usize)) -> Self {
        let format = Format::parse(text).expect("a format");
        let layout = Layout::new(&[shape.0, shape.1], -1, format).expect("a matrix");
        let sizes = Sizes::new(format, &layout).expect("small sizes");
        let mut parts = [sizes.codes, sizes.scales, sizes.zeros, sizes.levels].map(|bytes| vec![0; bytes]);
        let [codes, scales, zeros, levels] = &mut parts;
        let (values, to) = (numbers(shape.0 * shape.1, 1), PackedMut { codes, scales, zeros, levels });
        codec::encode(Values::F32(&values), layout, format, &Options::default(), to).expect("encode");
        Self::decoded(format, parts, shape)
    }

    /// Random blocks of a format that nothing is encoded in, whose float16 are finite and not large.
    fn carried(kind: KQuant, shape: (usize, usize)) -> Self {
        let format = Format::parse(&format!("q{}_k", kind.width())).expect("a format");
        let layout = Layout::new(&[shape.0, shape.1], -1, format).expect("a matrix");
        let sizes = Sizes::new(format, &layout).expect("small sizes");
        let bytes = |count: usize, seed| (0..count).map(|i| noise(i, seed).to_bits() as u8).collect::<Vec<_>>();
        let (codes, mut scales) = (bytes(sizes.codes, 3), bytes(sizes.scales, 4));
        let first = if matches!(kind, KQuant::Q4 | KQuant::Q5) {
            0
        } else {
            kind.scale_bytes() - 2 * (1 + usize::from(kind == KQuant::Q2))
        };
        for block in scales.chunks_mut(kind.scale_bytes()) {
            for half in 0..1 + usize::from(!kind.is_signed()) {
                block[first + 2 * half + 1] = block[first + 2 * half + 1] & 0x83 | 0x28;
            }
        }
        Self::decoded(format, [codes, scales, Vec::new(), Vec::new()], shape)
    }

    fn decoded(format: Format, parts: [Vec<u8>; 4], shape: (usize, usize)) -> Self {
        let layout = Layout::new(&[shape.0, shape.1], -1, format).expect("a matrix");
        let mut weight = Self { format, parts, shape, decoded: Vec::new(), sizes: Vec::new() };
        let values = |packed: Packed<'_>| {
            let mut decoded = vec![0.0f32; shape.0 * shape.1];
            codec::decode(packed, layout, format, ValuesMut::F32(&mut decoded)).expect("decode");
            decoded
        };
        let decoded = values(weight.matrix().packed);
        let mut sizes: Vec<f32> = decoded.iter().map(|value| value.abs()).collect();
        if format.has_offsets() {
            // Codes of 0 stand for the offset.
            let codes = vec![0; weight.parts[0].len()];
            for (size, (offset, value)) in
                sizes.iter_mut().zip(values(Packed { codes: &codes, ..weight.matrix().packed }).iter().zip(&decoded))
            {
                *size = (value - offset).abs() + offset.abs();
            }
        }
        (weight.decoded, weight.sizes) = (decoded, sizes);
        weight
    }

    fn matrix(&self) -> Matrix<'_> {
        let [codes, scales, zeros, levels] = &self.parts;
        let packed = Packed { codes, scales, zeros, levels };
        Matrix { format: self.format, packed, rows: self.shape.0, columns: self.shape.1 }
    }

    /// Checks each output against the sum of products in float64.
    fn assert_bound(&self, x: &[f32], bias: &[f32], found: &[f32], what: &str) {
        let (n, k) = self.shape;
        let slack = 2.0f64.powi(-20) + k as f64 * 2.0f64.powi(-28);
        for (x, found) in x.chunks(k).zip(found.chunks(n)) {
            let weights = self.decoded.chunks(k).zip(self.sizes.chunks(k));
            for (((w, sizes), bias), &found) in weights.zip(bias).zip(found) {
                let mut exact = f64::from(*bias);
                let mut terms = exact.abs();
                for ((x, w), sizes) in x.chunks(256).zip(w.chunks(256)).zip(sizes.chunks(256)) {
                    exact += x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>();
                    let largest = x.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
                    terms += largest * sizes.iter().map(|&size| f64::from(size)).sum::<f64>();
                }
                let bound = slack * terms + k as f64 * 2.0f64.powi(-149) + exact.abs() * 2.0f64.powi(-24);
                let error = (f64::from(found) - exact).abs();
                assert!(error <= bound, "{what}: {found}, exact {exact}, bound {bound:e}");
            }
        }
    }
}

/// Calls `check` with every format of the catalogue and shapes, on every processor.
fn on_every_processor(check: impl Fn(&Weight, usize, &[f32], &[f32], &str)) {
    let _turn = turn();
    let mut checked = 0;
    for processor in Processor::available() {
        processor.limit();
        for (number, text) in catalogue().iter().enumerate() {
            for (at, (m, n, k)) in
                SHAPES.into_iter().enumerate().filter(|(at, _)| fewer::takes(*at, SHAPES.len(), number))
            {
                let (weight, x, bias) = (Weight::new(text, (n, k)), numbers(m * k, 7), numbers(n, 9));
                let what = format!("{text} {m}x{n}x{k} {}", processor.name());
                check(&weight, number + at, &x, &bias, &what);
                checked += 1;
            }
        }
    }
    Processor::Amx.limit();
    assert!(checked >= Processor::available().count() * catalogue().len(), "some of every format: {checked}");
}

#[test]
fn products_of_k_quants_are_within_the_bound() {
    let _turn = turn();
    for processor in Processor::available() {
        processor.limit();
        for kind in KQuant::ALL {
            for (m, n, k) in SHAPES.into_iter().chain([(1, 64, 1024), (4, 70, 512)]) {
                let (weight, x, bias) = (Weight::carried(kind, (n, k)), numbers(m * k, 7), numbers(n, 9));
                let mut out = vec![f32::NAN; m * n];
                let to = ValuesMut::F32(&mut out);
                multiply(Values::F32(&x), m, &weight.matrix(), Some(Values::F32(&bias)), to).expect("a product");
                weight.assert_bound(&x, &bias, &out, &format!("{kind:?} {m}x{n}x{k} {}", processor.name()));
            }
        }
    }
    Processor::Amx.limit();
}

#[test]
fn products_are_within_the_bound() {
    on_every_processor(|weight, _, x, bias, what| {
        let mut out = vec![f32::NAN; x.len() / weight.shape.1 * weight.shape.0];
        let (rows, to) = (x.len() / weight.shape.1, ValuesMut::F32(&mut out));
        multiply(Values::F32(x), rows, &weight.matrix(), Some(Values::F32(bias)), to).expect("a product");
        weight.assert_bound(x, bias, &out, what);
    });
}

#[test]
fn a_scale_that_is_not_finite_spoils_its_own_row_alone() {
    let _turn = turn();
    for processor in Processor::available() {
        processor.limit();
        for text in ["int8:g32", "int8:g16", "int5:g32", "int4:g32", "uint4:g32,offset", "uint5:g32,offset"] {
            for (at, (m, n, k)) in SHAPES.into_iter().enumerate() {
                let (clean, x, bias) = (Weight::new(text, (n, k)), numbers(m * k, 7), numbers(n, 9));
                let mut spoilt = Weight::new(text, (n, k));
                let bad = 7 * at % n;
                let halves = spoilt.parts[1].len() / 2 / n;
                for (of_row, half) in [(0, 0x7c00u16), (halves - 1, 0x7e00), (halves / 2, 0xfc00)] {
                    spoilt.parts[1] = clean.parts[1].clone();
                    let place = 2 * (bad * halves + of_row);
                    spoilt.parts[1][place..place + 2].copy_from_slice(&half.to_le_bytes());
                    let mut out = vec![f32::NAN; m * n];
                    let to = ValuesMut::F32(&mut out);
                    multiply(Values::F32(&x), m, &spoilt.matrix(), Some(Values::F32(&bias)), to).expect("a product");
                    let what = format!("{text} {m}x{n}x{k} {}, {half:x} at {of_row}", processor.name());
                    let mut instead = vec![0.0; m * n];
                    let to = ValuesMut::F32(&mut instead);
                    multiply(Values::F32(&x), m, &clean.matrix(), Some(Values::F32(&bias)), to).expect("a product");
                    for (out, instead) in out.chunks_mut(n).zip(instead.chunks(n)) {
                        assert!(!out[bad].is_finite(), "{what}: {}", out[bad]);
                        out[bad] = instead[bad];
                    }
                    clean.assert_bound(&x, &bias, &out, &what);
                }
            }
        }
    }
    Processor::Amx.limit();
}

#[test]
fn products_of_rounded_inputs_are_within_the_bound() {
    on_every_processor(|weight, number, x, bias, what| {
        let text = INPUTS[number % INPUTS.len()];
        let (input, k) = (Format::parse(text).expect("a format"), weight.shape.1);
        let (rows, options) = (x.len() / k, Options::default());
        let layout = Layout::new(&[rows, k], -1, input).expect("a matrix");
        let mut rounded = vec![0.0; x.len()];
        codec::quantize(Values::F32(x), layout, input, &options, ValuesMut::F32(&mut rounded)).expect("quantize");
        let mut out = vec![f32::NAN; rows * weight.shape.0];
        let (bias_, to) = (Some(Values::F32(bias)), ValuesMut::F32(&mut out));
        multiply_rounded(Values::F32(x), rows, input, &options, &weight.matrix(), bias_, to).expect("a product");
        weight.assert_bound(&rounded, bias, &out, &format!("{what}, inputs {text}"));
    });
}

#[test]
fn integer_products_have_the_same_bits_on_every_processor() {
    let _turn = turn();
    for text in INTEGERS {
        for input in INTEGERS.map(|text| Format::parse(text).expect("a format")) {
            for (m, n, k) in SHAPES {
                let (weight, x, bias) = (Weight::new(text, (n, k)), numbers(m * k, 7), numbers(n, 9));
                let product = |processor: Processor| {
                    processor.limit();
                    let mut out = vec![f32::NAN; m * n];
                    let (bias, to) = (Bias::Float(Values::F32(&bias)), ValuesMut::F32(&mut out));
                    multiply_integer(Values::F32(&x), m, input, None, &weight.matrix(), bias, to).expect("a product");
                    out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let wanted = product(Processor::Scalar);
                for processor in Processor::available() {
                    assert_eq!(product(processor), wanted, "{text}, inputs {input}, {m}x{n}x{k} {}", processor.name());
                }
            }
        }
    }
    Processor::Amx.limit();
}
