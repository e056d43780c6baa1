//! Products with sparse codes through the public API: within the bound of FORMATS.md section 6, whatever the other rows.

#![expect(clippy::expect_used, reason = "a test stops where its set-up fails")]

use octavo_core::linear::{Input, Problem, SparseMatrix, Storage, kernel, multiply_sparse};
use octavo_core::sparse::{Shape, Sparse, code_bytes, compress, count, starts};
use octavo_core::{DType, Format, Layout, Level, Options, Packed, PackedMut, Sizes, Values, ValuesMut, codec};

/// An encoded matrix, and its codes without those that are 0.
struct Weight {
    format: Format,
    shape: Shape,
    values: Vec<f32>,
    scales: Vec<u8>,
    levels: Vec<u8>,
    codes: Vec<u8>,
    bitmap: Vec<u64>,
    starts: Vec<u64>,
}

fn noise(i: usize, seed: usize) -> f32 {
    let bits = ((i ^ seed << 20) as u32).wrapping_mul(0x9e37_79b9).rotate_left(11).wrapping_mul(0x85eb_ca6b);
    (bits as i32 as f32) * 2.0f32.powi(-31)
}

impl Weight {
    /// A share of `zeros` of 16 of the elements is 0, and every fourth row of groups.
    fn new(text: &str, shape: Shape, zeros: usize, scale: f32) -> Self {
        let format = Format::parse(text).expect("a format");
        let values: Vec<f32> = (0..shape.rows * shape.columns)
            .map(|i| {
                let empty = (i / shape.columns).is_multiple_of(4) && (i % shape.columns / 64).is_multiple_of(3);
                let pruned = (noise(i, 3).to_bits() >> 8) as usize % 16 < zeros;
                if empty || pruned { 0.0 } else { noise(i, 1) * scale }
            })
            .collect();
        let layout = Layout::new(&[shape.rows, shape.columns], -1, format).expect("a matrix");
        let sizes = Sizes::new(format, &layout).expect("small sizes");
        let (mut dense, mut scales) = (vec![0; sizes.codes], vec![0; sizes.scales]);
        let (mut none, mut levels) = (Vec::new(), vec![0; sizes.levels]);
        let out = PackedMut { codes: &mut dense, scales: &mut scales, zeros: &mut none, levels: &mut levels };
        codec::encode(Values::F32(&values), layout, format, &Options::default(), out).expect("encode");
        let mut decoded = vec![0.0; values.len()];
        let packed = Packed { codes: &dense, scales: &scales, zeros: &[], levels: &levels };
        codec::decode(packed, layout, format, ValuesMut::F32(&mut decoded)).expect("decode");
        let nonzero = count(&dense, format.width(), shape).expect("a matrix");
        let mut codes = vec![0; code_bytes(nonzero, format.width()).expect("few")];
        let mut bitmap = vec![0; shape.words().expect("few")];
        compress(&dense, format.width(), shape, nonzero, &mut codes, &mut bitmap).expect("a matrix");
        let starts = starts(&bitmap, shape, nonzero).expect("its bitmap");
        Self { format, shape, values: decoded, scales, levels, codes, bitmap, starts }
    }

    fn product(&self, x: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let m = x.len() / self.shape.columns;
        let mut out = vec![f32::NAN; m * self.shape.rows];
        let w = SparseMatrix {
            format: self.format,
            sparse: Sparse { codes: &self.codes, bitmap: &self.bitmap, starts: &self.starts },
            packed: Packed { scales: &self.scales, levels: &self.levels, ..Packed::default() },
            shape: self.shape,
        };
        multiply_sparse(Values::F32(x), m, &w, bias.map(Values::F32), ValuesMut::F32(&mut out)).expect("a product");
        out
    }

    /// Checks the bound of FORMATS.md section 6 for a row of inputs.
    fn assert_bound(&self, x: &[f32], found: &[f32]) {
        let k = self.shape.columns;
        for (n, &found) in found.iter().enumerate() {
            let row = &self.values[n * k..][..k];
            let exact: f64 = x.iter().zip(row).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            let t: f64 = x
                .chunks(256)
                .zip(row.chunks(256))
                .map(|(x, w)| {
                    let largest = x.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
                    largest * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
                })
                .sum();
            let k = k as f64;
            let bound = (2.0f64.powi(-20) + k * 2.0f64.powi(-28)) * t + k * 2.0f64.powi(-149);
            let bound = bound + exact.abs() * 2.0f64.powi(-24);
            assert!((f64::from(found) - exact).abs() <= bound, "{}: row {n}: {found}, exact {exact}", self.format);
        }
    }
}

const FORMATS: [&str; 16] = [
    "int8:g32",
    "mxint8",
    "int8:channel",
    "int8:tensor",
    "int8:g128",
    "int4:g32",
    "mxfp4",
    "mxfp6e2m3",
    "mxfp6e3m2",
    "int6:g16",
    "nvfp4",
    "mxfp8e4m3",
    "bfp8/16",
    "int5:g64",
    "ternary:channel",
    "mxint7",
];

fn has_kernel(weight: &Weight, rows: usize) -> bool {
    assert!(Level::detect() < Level::Avx512 || rows > 4 || weight.shape.rows * weight.shape.columns >= 4096);
    let problem = Problem::new(weight.format, Input::Plain(DType::F32), rows, weight.shape.rows, weight.shape.columns);
    kernel(&Problem { storage: Storage::Sparse, ..problem }).is_ok()
}

#[test]
fn products_are_within_the_bound_for_all_formats_and_shares_of_zeros() {
    for text in FORMATS {
        for (rows, columns, zeros) in [(64, 256, 8), (37, 1001, 12), (16, 4096, 15), (50, 544, 0), (5, 1030, 16)] {
            let weight = Weight::new(text, Shape { rows, columns }, zeros, 0.3);
            for m in 1..=4 {
                let x: Vec<f32> = (0..m * columns).map(|i| noise(i, 7 + m) * 3.0).collect();
                if !has_kernel(&weight, m) {
                    continue;
                }
                let found = weight.product(&x, None);
                for (x, found) in x.chunks(columns).zip(found.chunks(rows)) {
                    weight.assert_bound(x, found);
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_other_rows() {
    for text in FORMATS {
        let weight = Weight::new(text, Shape { rows: 40, columns: 516 }, 9, 1.0);
        if !has_kernel(&weight, 1) {
            continue;
        }
        let k = 516;
        let row: Vec<f32> = (0..k).map(|i| noise(i, 2)).collect();
        let alone: Vec<u32> = weight.product(&row, None).into_iter().map(f32::to_bits).collect();
        let outlier: Vec<f32> = (0..k).map(|i| if i == 9 { 1e4 } else { noise(i, 5) }).collect();
        let wild: Vec<f32> = (0..k).map(|i| [f32::NAN, f32::INFINITY, 1e38, 1e-38][i % 4]).collect();
        for others in [vec![&outlier], vec![&wild, &outlier], vec![&row, &outlier, &wild]] {
            let x: Vec<f32> = others.into_iter().chain([&row]).flatten().copied().collect();
            let found = weight.product(&x, None);
            let last: Vec<u32> = found[found.len() - 40..].iter().map(|v| v.to_bits()).collect();
            assert_eq!(last, alone, "{text}");
        }
    }
}

#[test]
fn extreme_magnitudes_stay_within_the_bound() {
    for text in ["int8:g32", "mxint8", "nvfp4", "int8:channel", "mxfp6e3m2"] {
        for (weights, inputs) in [(1e-30, 1.0), (1.0, 1e-30), (1e-25, 1e-20), (1e20, 1e15), (1e-38, 1.0), (1.0, 1e30)] {
            let weight = Weight::new(text, Shape { rows: 33, columns: 520 }, 8, weights);
            let x: Vec<f32> = (0..520).map(|i| noise(i, 4) * inputs).collect();
            if has_kernel(&weight, 1) {
                weight.assert_bound(&x, &weight.product(&x, None));
            }
        }
    }
}

#[test]
fn the_bias_is_added() {
    let weight = Weight::new("int8:g32", Shape { rows: 20, columns: 512 }, 8, 1.0);
    if !has_kernel(&weight, 1) {
        return;
    }
    let (x, bias): (Vec<f32>, Vec<f32>) =
        ((0..512).map(|i| noise(i, 1)).collect(), (0..20).map(|i| i as f32 - 7.0).collect());
    let without = weight.product(&x, None);
    for ((with, without), bias) in weight.product(&x, Some(&bias)).iter().zip(without).zip(bias) {
        assert_eq!(with.to_bits(), (without + bias).to_bits());
    }
}
