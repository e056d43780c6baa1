//! Products in tiles by AMX, where there is some, and by the dot products of AVX-512: one after the other, both within the
//! bound of FORMATS.md section 6, and integer products alike.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::expect_used, reason = "a test stops where its set-up fails")]

use std::sync::Mutex;

use octavo_core::format;
use octavo_core::linear::{
    Bias, Input, Matrix, Problem, kernel, multiply, multiply_integer, multiply_rounded,
    multiply_rounded_rows_independently,
};
use octavo_core::simd::Processor;
use octavo_core::{DType, Format, Layout, Options, Packed, PackedMut, Sizes, Values, ValuesMut, codec, pool};

/// Of weights: numbers of one byte and of more, with zero points, of code books, in groups of all lengths and of a row.
const FORMATS: &str =
    "mxint8 int4:g32 int8:channel nvfp4 int8:g192 uint4:g64 nf4 mxfp8e5m2 int12 uint3:g32 uint8:g32 mxfp4";

fn noise(i: usize, seed: usize) -> f32 {
    let bits = ((i ^ (seed << 20)) as u32).wrapping_mul(0x9e37_79b9).rotate_left(11).wrapping_mul(0x85eb_ca6b);
    bits as i32 as f32 * 2.0f32.powi(-31)
}

fn format(text: &str) -> Format {
    Format::parse(text).expect("a format")
}

fn encoded(values: &[f32], n: usize, k: usize, format: Format) -> [Vec<u8>; 4] {
    let layout = Layout::new(&[n, k], -1, format).expect("a matrix");
    let sizes = Sizes::new(format, &layout).expect("small sizes");
    let mut parts = [sizes.codes, sizes.scales, sizes.zeros, sizes.levels].map(|bytes| vec![0; bytes]);
    let [codes, scales, zeros, levels] = &mut parts;
    let out = PackedMut { codes, scales, zeros, levels };
    codec::encode(Values::F32(values), layout, format, &Options::default(), out).expect("encode");
    parts
}

fn decoded(values: &[f32], n: usize, k: usize, format: Format) -> Vec<f32> {
    let mut values = values.to_vec();
    let layout = Layout::new(&[n, k], -1, format).expect("a matrix");
    codec::quantize_in_place(ValuesMut::F32(&mut values), layout, format, &Options::default()).expect("quantize");
    values
}

/// Fails where an output is further from the exact product than the bound allows.
fn hold(out: &[f32], x: &[f32], w: &[f32], k: usize, what: &str) {
    let n = w.len() / k;
    for (i, got) in out.iter().enumerate() {
        let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
        let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        let size: f64 = (x.chunks(256).zip(w.chunks(256)))
            .map(|(x, w)| {
                let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                f64::from(most) * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
            })
            .sum();
        let bound = (2.0f64.powi(-20) + k as f64 * 2.0f64.powi(-28)) * size + exact.abs() * 2.0f64.powi(-24);
        assert!((f64::from(*got) - exact).abs() <= bound, "{what}: {got} for {exact}, {i}");
    }
}

/// Held while a test chooses what multiplies tiles, which is the same for all threads.
static TILES: Mutex<()> = Mutex::new(());

#[test]
fn both_kinds_of_tiles_hold_the_bound() {
    let _held = TILES.lock();
    for vectors in [false, true] {
        tiles_of(vectors).limit();
        let small = FORMATS
            .split(' ')
            .enumerate()
            .map(|(at, text)| (text, at, ([5, 33, 17][at % 3], [70, 64, 33][at % 3], [512, 576, 1088][at % 3])));
        // Weights enough for limbs of int8.
        let large = ["int8:channel", "uint4:g64", "nvfp4"].map(|text| (text, 12, (17, 1040, 1024)));
        for (text, at, (m, n, k)) in small.chain(large) {
            let format_of = format(text);
            let values: Vec<f32> = (0..n * k).map(|i| noise(i, at)).collect();
            let parts = encoded(&values, n, k, format_of);
            let [codes, scales, zeros, levels] = &parts;
            let packed = Packed { codes, scales, zeros, levels };
            let w = Matrix { format: format_of, packed, rows: n, columns: k };
            let wide = decoded(&values, n, k, format_of);
            // Numbers of bfloat16, in rows of several sizes.
            let halves: Vec<u16> =
                (0..m * k).map(|i| ((noise(i, 99) * 2.0f32.powi((i / k) as i32 - 5)).to_bits() >> 16) as u16).collect();
            let x: Vec<f32> = halves.iter().map(|half| f32::from_bits(u32::from(*half) << 16)).collect();
            let mut out = vec![f32::NAN; m * n];
            multiply_rounded(
                Values::F32(&x),
                m,
                format("bf16"),
                &Options::default(),
                &w,
                None,
                ValuesMut::F32(&mut out),
            )
            .expect("a product");
            hold(&out, &x, &wide, k, &format!("{text} by bf16, {vectors}"));
            for input in ["int8:g32", "int8:g64", "int8:channel", "int4:g32", "mxint8", "nvfp4"] {
                multiply_rounded(
                    Values::F32(&x),
                    m,
                    format(input),
                    &Options::default(),
                    &w,
                    None,
                    ValuesMut::F32(&mut out),
                )
                .expect("a product");
                hold(&out, &decoded(&x, m, k, format(input)), &wide, k, &format!("{text} by {input}, {vectors}"));
            }
            // Inputs of all bits of float32, an outlier among them; and one row that no kernel in fixed point takes.
            let mut wild: Vec<f32> = (0..m * k).map(|i| noise(i, 41) * 2.0f32.powi((i / k) as i32 % 7 - 3)).collect();
            wild[k + 3] *= 1e4;
            let exact = |x: &[f32]| {
                let mut out = vec![f32::NAN; m * n];
                multiply(Values::F32(x), m, &w, None, ValuesMut::F32(&mut out)).expect("a product");
                out
            };
            let before = exact(&wild);
            hold(&before, &wild, &wide, k, &format!("{text} by float32, {vectors}"));
            for special in [f32::NAN, f32::INFINITY, 1e30, 1e-40] {
                wild[2 * k..3 * k].fill(special);
                wild[4 * k..5 * k].fill(special);
                let after = exact(&wild);
                if special.is_finite() {
                    hold(&after, &wild, &wide, k, &format!("{text} by float32 of {special}, {vectors}"));
                } else {
                    assert!(after[2 * n..3 * n].iter().all(|v| !v.is_finite()), "{text} by {special}");
                }
                for row in (0..m).filter(|row| ![2, 4].contains(row)) {
                    assert!(before[row * n..][..n] == after[row * n..][..n], "{text} by float32, {special}, row {row}");
                }
            }
            // One row that no kernel in bfloat16 takes leaves the bits of the others.
            let mut other = vec![f32::NAN; m * n];
            for input in ["bf16", "int8:g32", "int8:channel"] {
                let product = |x: &[f32], out: &mut [f32]| {
                    let (input, options) = (format(input), Options::default());
                    multiply_rounded(Values::F32(x), m, input, &options, &w, None, ValuesMut::F32(out))
                        .expect("a product");
                };
                product(&x, &mut out);
                for special in [f32::INFINITY, 1e30, 1e-40] {
                    let mut x = x.clone();
                    x[2 * k..3 * k].fill(special);
                    product(&x, &mut other);
                    for row in (0..m).filter(|row| *row != 2) {
                        assert!(
                            out[row * n..][..n] == other[row * n..][..n],
                            "{text} by {input}, {special}, row {row}"
                        );
                    }
                }
            }
            let mut narrow = vec![0u16; m * n];
            multiply(Values::BF16(&halves), m, &w, None, ValuesMut::BF16(&mut narrow)).expect("a product");
            assert!(narrow.iter().all(|half| half & 0x7f80 != 0x7f80), "{text}: not finite");
        }
    }
    Processor::Amx.limit();
    if Processor::detect() < Processor::Avx512Bf16 {
        return;
    }
    let name = |text, input| kernel(&Problem::new(format(text), input, 64, 4096, 4096)).expect("a kernel");
    let plain = |text, dtype| name(text, Input::Plain(dtype));
    Processor::Avx512Bf16.limit();
    assert_eq!(plain("mxfp4", DType::BF16), "bfloat16 limbs avx512");
    assert_eq!(plain("mxfp4", DType::F32), "fma tiles avx512");
    Processor::Amx.limit();
    if Processor::detect() == Processor::Amx {
        for (text, wanted) in [("mxfp4", "bfloat16 limbs amx"), ("int8:channel", "int8 limbs amx")] {
            assert_eq!([DType::F32, DType::BF16].map(|dtype| plain(text, dtype)), [wanted, "bfloat16 limbs amx"]);
        }
        let rounded = |text, input| name(text, Input::Rounded(format(input)));
        assert_eq!(rounded("uint4:g32", "int8:g32"), "int8 groups amx");
        assert_eq!(rounded("uint4:g32", "mxint8"), "bfloat16 limbs amx");
    }
}

/// The processor whose tiles are those of vectors, or of AMX.
const fn tiles_of(vectors: bool) -> Processor {
    if vectors { Processor::Avx512Bf16 } else { Processor::Amx }
}

#[test]
fn given_scales_are_those_of_their_rows() {
    let (m, n, k) = (37, 64, 1024);
    let (values, x): (Vec<f32>, Vec<f32>) =
        ((0..n * k).map(|i| noise(i, 3)).collect(), (0..m * k).map(|i| noise(i, 4)).collect());
    let [codes, scales, zeros, levels] = &encoded(&values, n, k, format("int4:g32"));
    let w = Matrix { format: format("int4:g32"), packed: Packed { codes, scales, zeros, levels }, rows: n, columns: k };
    for input in ["int8:channel", "int8:g32", "mxint8", "int8:tensor"] {
        let [codes, scales, zeros, levels] = &encoded(&x, m, k, format(input));
        let each = if input == "int8:tensor" { 0 } else { scales.len() / m };
        let product = |rows: std::ops::Range<usize>| {
            let scales = if each == 0 { scales } else { &scales[rows.start * each..rows.end * each] };
            let options = Options { given: Some(Packed { codes, scales, zeros, levels }), ..Options::default() };
            let mut out = vec![f32::NAN; rows.len() * n];
            let some = &x[rows.start * k..rows.end * k];
            multiply_rounded_rows_independently(some, rows.len(), format(input), &options, &w, None, &mut out)
                .expect("a product");
            out
        };
        let all = product(0..m);
        assert!((0..m).all(|row| all[row * n..][..n] == product(row..row + 1)), "{input}");
    }
}

/// Nothing is written, and nothing fails, where there are no rows of inputs.
#[test]
fn products_of_no_rows_are_empty() {
    let (n, k) = (64, 1024);
    for text in format::catalogue() {
        let [codes, scales, zeros, levels] = &encoded(&vec![0.5; n * k], n, k, format(text));
        let w = Matrix { format: format(text), packed: Packed { codes, scales, zeros, levels }, rows: n, columns: k };
        for x in [Values::F32(&[]), Values::F16(&[]), Values::BF16(&[])] {
            multiply(x, 0, &w, None, ValuesMut::F32(&mut [])).expect("a product");
            for input in ["bf16", "int8:g32", "mxint8", "int8:channel"] {
                let options = Options::default();
                let out = ValuesMut::F32(&mut []);
                multiply_rounded(x, 0, format(input), &options, &w, None, out).expect("a product");
            }
        }
    }
}

/// Many rows of inputs are multiplied as they lie, few are arranged: sums are exact, so all bits are the same.
#[test]
fn integer_products_are_alike() {
    for (m, n, k) in [(70, 83, 517), (300, 83, 517), (150, 67, 2100), (133, 32, 1024)] {
        let x: Vec<f32> = (0..m * k).map(|i| noise(i, 5)).collect();
        let floats: Vec<f32> = (0..n).map(|i| noise(i, 7)).collect();
        let integers: Vec<i32> = (0..n).map(|i| (noise(i, 8) * 2.0f32.powi(31)) as i32).collect();
        for text in ["int8:channel", "int4:channel", "int3"] {
            let values: Vec<f32> = (0..n * k).map(|i| noise(i, 6)).collect();
            let parts = encoded(&values, n, k, format(text));
            let [codes, scales, zeros, levels] = &parts;
            let packed = Packed { codes, scales, zeros, levels };
            let w = Matrix { format: format(text), packed, rows: n, columns: k };
            let product = |m: usize, bias: Bias<'_>| {
                let mut out = vec![f32::NAN; m * n];
                let (x, input) = (Values::F32(&x[..m * k]), format("int8:channel"));
                multiply_integer(x, m, input, None, &w, bias, ValuesMut::F32(&mut out)).expect("a product");
                out
            };
            let all = product(m, Bias::None);
            hold(&all, &decoded(&x, m, k, format("int8:channel")), &decoded(&values, n, k, format(text)), k, text);
            for bias in [Bias::None, Bias::Float(Values::F32(&floats)), Bias::Integer(&integers)] {
                let all = product(m, bias);
                for m in [1, 16, 17, 40] {
                    assert_eq!(product(m, bias), all[..m * n], "{text}, {m} rows, {n} x {k}, {bias:?}");
                }
            }
            // Outputs of 16 bits are those of float32, rounded once.
            let mut half = vec![0u16; m * n];
            let out = ValuesMut::BF16(&mut half);
            multiply_integer(Values::F32(&x), m, format("int8:channel"), None, &w, Bias::None, out).expect("a product");
            let rounded = |v: &f32| (v.to_bits() + 0x7fff + (v.to_bits() >> 16 & 1)) >> 16;
            assert!(half.iter().zip(&all).all(|(half, v)| u32::from(*half) == rounded(v)), "{text}, {n} x {k}");
        }
    }
}

/// Units of work have as many rows of weights as there are, and inputs of many rows take turns: no output knows of it.
#[test]
fn outputs_do_not_depend_on_other_rows_of_weights() {
    let _held = TILES.lock();
    let few = ["mxint8", "int4:g32", "int8:channel", "uint4:g128", "nf4", "mxfp4"].map(|text| (text, (300, 470, 600)));
    // Decoded weights of so many columns take turns, for some rows of inputs and again for the others; AMX makes limbs of
    // inputs once for all, but for each part of the weights again.
    let long = ["mxint8", "int4:g32"].map(|text| (text, (1_040, 736, 6_000)));
    let cases = few.into_iter().chain(long);
    for (vectors, (text, (m, n, k))) in
        [false, true].iter().flat_map(|vectors| cases.clone().map(|case| (*vectors, case)))
    {
        let part = 64;
        let x: Vec<f32> = (0..m * k).map(|i| noise(i, 5)).collect();
        let halves: Vec<u16> = x.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        tiles_of(vectors).limit();
        let mut values: Vec<f32> = (0..n * k).map(|i| noise(i, 6)).collect();
        values[131 * k - 40..131 * k].fill(1e35); // too large for the fast kernels
        let format_of = format(text);
        let product = |rows: std::ops::Range<usize>, kind: usize| {
            let n = rows.len();
            let [codes, scales, zeros, levels] = &encoded(&values[rows.start * k..rows.end * k], n, k, format_of);
            let w = Matrix { format: format_of, packed: Packed { codes, scales, zeros, levels }, rows: n, columns: k };
            let mut out = vec![f32::NAN; m * n];
            let to = ValuesMut::F32(&mut out);
            match kind {
                0 => multiply(Values::F32(&x), m, &w, None, to),
                1 => multiply(Values::BF16(&halves), m, &w, None, to),
                2 => {
                    let input = format("int8:g32");
                    multiply_rounded(Values::F32(&x), m, input, &Options::default(), &w, None, to)
                }
                _ => multiply_integer(Values::F32(&x), m, format_of, None, &w, Bias::None, to),
            }
            .expect("a product");
            out
        };
        for kind in if text == "int8:channel" { 0..4 } else { 0..3 } {
            // On one thread units are as large as they get.
            let threads = pool::num_threads();
            pool::set_num_threads(1).expect("a thread");
            let all = product(0..n, kind);
            pool::set_num_threads(threads).expect("threads");
            assert!(product(0..n, kind).iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()), "{text}: threads");
            // The last part has the rest: fewer weights would be multiplied in another way.
            for first in (0..=n - part).step_by(part) {
                let rows = first..if n - first < 2 * part { n } else { first + part };
                let some = product(rows.clone(), kind);
                for (row, some) in some.chunks(rows.len()).enumerate() {
                    let same = all[row * n..][rows.clone()].iter().zip(some).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{text}, {vectors}, kind {kind}: row {row} by {rows:?}");
                }
            }
        }
    }
    Processor::Amx.limit();
}
