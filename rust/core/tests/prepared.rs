//! Products with prepared weights, and products that do not depend on the number of rows: the bits of products of
//! many rows, for every format, at every SIMD level.

#![expect(clippy::expect_used, reason = "a test stops where its set-up fails")]

#[path = "common/fewer.rs"]
mod fewer;

use octavo_core::linear::{Input, Matrix, Prepared, Problem, kernel, multiply, multiply_batch_invariant};
use octavo_core::{
    DType, Format, Layout, Level, Options, Packed, PackedMut, Sizes, Values, ValuesMut, codec, format::catalogue,
};

/// Rows of inputs: two tiles of AMX and one more row.
const ROWS: usize = 33;
/// On both sides of the sizes at which AMX takes over; odd ones; one row; several folds of 512 columns.
const SHAPES: [(usize, usize); 7] = [(31, 128), (1, 7), (64, 512), (33, 1001), (130, 257), (18, 1930), (96, 352)];
/// Of the weights. The extreme ones are refused by AMX, whole or in part.
const EXPONENTS: [i32; 3] = [0, -100, 90];

fn noise(i: usize, seed: usize) -> f32 {
    let bits = ((i ^ (seed << 20)) as u32).wrapping_mul(0x9e37_79b9).rotate_left(11).wrapping_mul(0x85eb_ca6b);
    bits as i32 as f32 * 2.0f32.powi(-31)
}

struct Weight {
    format: Format,
    parts: [Vec<u8>; 4],
    shape: (usize, usize),
}

impl Weight {
    /// Encoded noise; with `mixed`, some rows are 2^`exponent` as large as the others.
    fn new(format: Format, shape: (usize, usize), exponent: i32, mixed: bool) -> Self {
        let scale = |row: usize| if mixed && row % 40 < 35 { 1.0 } else { 2.0f32.powi(exponent) };
        let values: Vec<f32> = (0..shape.0 * shape.1).map(|i| noise(i, shape.1) * scale(i / shape.1)).collect();
        let layout = Layout::new(&[shape.0, shape.1], -1, format).expect("a matrix");
        let sizes = Sizes::new(format, &layout).expect("small sizes");
        let mut parts = [sizes.codes, sizes.scales, sizes.zeros, sizes.levels].map(|bytes| vec![0; bytes]);
        let [codes, scales, zeros, levels] = &mut parts;
        let out = PackedMut { codes, scales, zeros, levels };
        codec::encode(Values::F32(&values), layout, format, &Options::default(), out).expect("encode");
        Self { format, parts, shape }
    }

    fn matrix(&self) -> Matrix<'_> {
        let [codes, scales, zeros, levels] = &self.parts;
        let packed = Packed { codes, scales, zeros, levels };
        Matrix { format: self.format, packed, rows: self.shape.0, columns: self.shape.1 }
    }
}

/// Bits; any NaN is one.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

#[test]
fn batch_invariant_rows_have_the_bits_of_many_rows_with_and_without_prepared_weights() {
    let mut prepared_of = [0; 2];
    for level in Level::available() {
        Level::force(Some(level)).expect("a level of this machine");
        for (number, text) in catalogue().iter().enumerate() {
            let format = Format::parse(text).expect("a format of the catalogue");
            for (at, shape) in SHAPES.into_iter().enumerate() {
                // The scalar level decodes rows one number at a time: two shapes show the law there.
                if level == Level::Scalar && at > 1 || !fewer::takes(at, SHAPES.len(), number) {
                    continue;
                }
                let exponent = EXPONENTS[(number + at) % 3];
                let weight = Weight::new(format, shape, exponent, (number + at).is_multiple_of(2));
                let (w, (n, k)) = (weight.matrix(), shape);
                let mut x: Vec<f32> = (0..ROWS * k).map(|i| noise(i, 77)).collect();
                let bias: Vec<f32> = (0..n).map(|i| noise(i, 99)).collect();
                let bias = (at % 3 != 0).then_some(bias.as_slice());
                let prepared = Prepared::new(&w).expect("memory");
                if let Some(prepared) = &prepared {
                    assert_eq!(prepared.nbytes(), Prepared::bytes(&w).expect("a matrix"), "{text} {shape:?}");
                }
                prepared_of[usize::from(prepared.is_some())] += 1;
                let specials = [Some(f32::NAN), Some(1e30), Some(1e-40)].into_iter().enumerate();
                let specials = specials.filter(|(i, _)| fewer::takes(*i, 3, number + at)).map(|(_, special)| special);
                for special in [None].into_iter().chain(specials) {
                    if let Some(special) = special {
                        // A row all small or with one number of another size; the others stay as they are.
                        x[2 * k..3 * k].iter_mut().for_each(|x| *x *= special.min(1.0));
                        x[2 * k + k / 2] = special;
                    }
                    let mut many = vec![f32::NAN; ROWS * n];
                    let wide = bias.map(Values::F32);
                    // AMX multiplies limbs of int8 faster than any weights that are kept.
                    let problem = Problem::new(format, Input::Plain(DType::F32), ROWS, n, k);
                    if kernel(&problem).expect("a kernel") == "int8 limbs amx" {
                        multiply_batch_invariant(&x, ROWS, &w, None, bias, &mut many).expect("a product");
                    } else {
                        multiply(Values::F32(&x), ROWS, &w, wide, ValuesMut::F32(&mut many)).expect("a product");
                    }
                    let rows = if special.is_none() { &[1, 4, 5, 16, 17, 33][..] } else { &[3] };
                    let some = rows.iter().enumerate().filter(|(i, _)| fewer::takes(*i, rows.len(), number / 3 + at));
                    for (&m, prepared) in some.flat_map(|(_, m)| [(m, None), (m, prepared.as_ref())]) {
                        let mut out = vec![f32::NAN; m * n];
                        multiply_batch_invariant(&x[..m * k], m, &w, prepared, bias, &mut out).expect("a product");
                        let is = if prepared.is_some() { "prepared" } else { "packed" };
                        let what = format!("{text} {shape:?} 2^{exponent} {level:?}: {m} rows, {is}, {special:?}");
                        assert!(bits(&out) == bits(&many[..m * n]), "{what}");
                    }
                }
            }
        }
    }
    Level::force(None).expect("no level");
    assert!(prepared_of.iter().all(|&count| count > 10), "refused and prepared: {prepared_of:?}");
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let format = Format::parse("int8").expect("a format");
    let (weight, other) = (Weight::new(format, (4, 8), 0, false), Weight::new(format, (5, 8), 0, false));
    let prepared = Prepared::new(&weight.matrix()).expect("memory");
    let mut out = [0.0; 8];
    for prepared in [None, prepared.as_ref()] {
        let mut run =
            |w: &Weight, x: &[f32], bias| multiply_batch_invariant(x, 2, &w.matrix(), prepared, bias, &mut out);
        assert!(run(&weight, &[0.0; 16], None).is_ok());
        assert!(run(&weight, &[0.0; 15], None).is_err());
        assert!(run(&weight, &[0.0; 16], Some(&[0.0; 3])).is_err());
        assert!(run(&other, &[0.0; 16], None).is_err());
    }
    let codes = Matrix { rows: 5, ..weight.matrix() };
    assert!(Prepared::new(&codes).is_err());
}
