//! Products through the public API: a row's bits depend on that row, the weights and the number of rows alone.

#![expect(clippy::expect_used, reason = "a test stops where its set-up fails")]

#[path = "common/fewer.rs"]
mod fewer;

use octavo_core::linear::{
    Bias, Matrix, multiply, multiply_integer, multiply_rounded_rows_independently, multiply_rows_independently,
};
use octavo_core::{Format, Layout, Options, Packed, PackedMut, Sizes, Values, ValuesMut, codec, format::catalogue};
use proptest::prelude::*;

const ROWS: usize = 48;
const COLUMNS: usize = 544;

/// An encoded matrix.
struct Weight {
    format: Format,
    codes: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<u8>,
    levels: Vec<u8>,
}

impl Weight {
    fn new(format: Format, seed: u32, exponent: i32) -> Self {
        let values: Vec<f32> = (0..(ROWS * COLUMNS) as u32)
            .map(|i| {
                let bits = (i ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(11).wrapping_mul(0x85eb_ca6b);
                (bits as i32 as f32 * 2.0f32.powi(-31)) * 2.0f32.powi(exponent)
            })
            .collect();
        let layout = Layout::new(&[ROWS, COLUMNS], -1, format).expect("a matrix");
        let sizes = Sizes::new(format, &layout).expect("small sizes");
        let mut to = Self {
            format,
            codes: vec![0; sizes.codes],
            scales: vec![0; sizes.scales],
            zeros: vec![0; sizes.zeros],
            levels: vec![0; sizes.levels],
        };
        let out =
            PackedMut { codes: &mut to.codes, scales: &mut to.scales, zeros: &mut to.zeros, levels: &mut to.levels };
        codec::encode(Values::F32(&values), layout, format, &Options::default(), out).expect("encode");
        to
    }
    fn matrix(&self) -> Matrix<'_> {
        let packed = Packed { codes: &self.codes, scales: &self.scales, zeros: &self.zeros, levels: &self.levels };
        Matrix { format: self.format, packed, rows: ROWS, columns: COLUMNS }
    }
    fn product(&self, x: &[f32]) -> Vec<u32> {
        let m = x.len() / COLUMNS;
        let mut out = vec![0.0f32; m * ROWS];
        multiply(Values::F32(x), m, &self.matrix(), None, ValuesMut::F32(&mut out)).expect("a product");
        out.into_iter().map(f32::to_bits).collect()
    }
    fn product_of_independent_rows(&self, x: &[f32], input: Option<Format>) -> Vec<u32> {
        let m = x.len() / COLUMNS;
        let (mut out, w, options) = (vec![0.0f32; m * ROWS], self.matrix(), Options::default());
        match input {
            None => multiply_rows_independently(x, m, &w, None, &mut out),
            Some(input) => multiply_rounded_rows_independently(x, m, input, &options, &w, None, &mut out),
        }
        .expect("a product");
        out.into_iter().map(f32::to_bits).collect()
    }
    fn integer_product(&self, x: &[f32]) -> Vec<u32> {
        let m = x.len() / COLUMNS;
        let mut out = vec![0.0f32; m * ROWS];
        let input = Format::parse("int8:channel").expect("a format");
        multiply_integer(Values::F32(x), m, input, None, &self.matrix(), Bias::None, ValuesMut::F32(&mut out))
            .expect("a product of finite inputs");
        out.into_iter().map(f32::to_bits).collect()
    }
}

/// A row of one magnitude, with a value of any kind somewhere.
fn row(finite: bool) -> impl Strategy<Value = Vec<f32>> {
    let special = prop_oneof![
        2 => Just(None),
        2 => any::<u32>().prop_map(|bits| Some(f32::from_bits(bits))),
        1 => proptest::sample::select(vec![f32::NAN, f32::INFINITY, 1e30, 1e-40, 3e38]).prop_map(Some),
    ];
    (any::<u32>(), prop_oneof![3 => Just(0i32), 2 => -149i32..127], special, 0..COLUMNS).prop_map(
        move |(seed, exponent, special, at)| {
            let mut row: Vec<f32> = (0..COLUMNS as u32)
                .map(|i| {
                    let bits = (i ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(7).wrapping_mul(0xc2b2_ae35);
                    (f64::from(bits as i32) * 2.0f64.powi(exponent - 31)) as f32
                })
                .collect();
            if let Some(value) = special.filter(|value| value.is_finite() || !finite) {
                row[at] = value;
            }
            row
        },
    )
}

fn cases(finite: bool) -> impl Strategy<Value = (Vec<Vec<f32>>, usize)> {
    let counts = proptest::sample::select(vec![2usize, 3, 4, 5, 16, 17, 33]);
    counts.prop_flat_map(move |count| (proptest::collection::vec(row(finite), count), 0..count))
}

fn bits_of_row(all: &[u32], row: usize) -> &[u32] {
    &all[row * ROWS..][..ROWS]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: fewer::fewer(400) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_row_of_a_product_is_what_it_is_among_copies_of_itself(
        text in proptest::sample::select(catalogue().to_vec()),
        seed in any::<u32>(),
        exponent in prop_oneof![3 => Just(0i32), 1 => -120i32..100],
        (x, at) in cases(false),
    ) {
        let weight = Weight::new(Format::parse(text).expect("a format of the catalogue"), seed, exponent);
        let together = weight.product(&x.concat());
        let alone = weight.product(&x[at].repeat(x.len()));
        prop_assert_eq!(bits_of_row(&together, at), bits_of_row(&alone, 0));
        prop_assert_eq!(bits_of_row(&alone, 0), bits_of_row(&alone, x.len() - 1));
    }

    #[test]
    fn a_row_of_an_integer_product_is_what_it_is_among_copies_of_itself(
        text in proptest::sample::select(vec!["int8", "int8:channel", "int4:channel", "int3"]),
        seed in any::<u32>(),
        (x, at) in cases(true),
    ) {
        let weight = Weight::new(Format::parse(text).expect("a format"), seed, 0);
        let together = weight.integer_product(&x.concat());
        let alone = weight.integer_product(&x[at].repeat(x.len()));
        prop_assert_eq!(bits_of_row(&together, at), bits_of_row(&alone, 0));
    }

    #[test]
    fn a_row_of_independent_rows_is_what_it_is_alone(
        text in proptest::sample::select(catalogue().to_vec()),
        input in proptest::sample::select(vec![None, Some("int8:g32"), Some("mxint8"), Some("mxfp6e2m3")]),
        seed in any::<u32>(),
        (x, at) in cases(true),
    ) {
        let weight = Weight::new(Format::parse(text).expect("a format of the catalogue"), seed, 0);
        let input = input.map(|input| Format::parse(input).expect("a format"));
        let together = weight.product_of_independent_rows(&x.concat(), input);
        let alone = weight.product_of_independent_rows(&x[at], input);
        prop_assert_eq!(bits_of_row(&together, at), bits_of_row(&alone, 0));
    }
}
