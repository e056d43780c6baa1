//! What the codecs refuse: values that are not finite, lengths, dtypes, options and shapes that do not fit.

use octavo_core::codec;
use octavo_core::{DType, Error, Format, Layout, Nonfinite, Options, Packed, ScaleRule, Sizes, Values, ValuesMut};
use proptest::prelude::*;

use crate::cases::{Case, Parts, Tensor, cases, encode};
use crate::fewer::fewer;

proptest! {
    #![proptest_config(ProptestConfig { cases: fewer(600) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_first_position_that_is_not_finite_is_named(case in cases()) {
        let case = Case { nonfinite: Nonfinite::Error, ..case };
        let first = match &case.x {
            Tensor::F32(x) => x.iter().position(|v| !v.is_finite()),
            Tensor::Half(x, dtype) => {
                let infinity = if *dtype == DType::F16 { 0x7c00 } else { 0x7f80 };
                x.iter().position(|v| v & infinity == infinity)
            }
        };
        let mut parts = Parts::new(&Sizes::new(case.format, &case.layout()).expect("small sizes"));
        let done = codec::encode(case.x.values(), case.layout(), case.format, &case.options(), parts.write());
        match (first, done) {
            (None, Ok(())) => {}
            (Some(wanted), Err(Error::NonFinite { position, value, .. })) => {
                prop_assert_eq!(position, wanted);
                prop_assert!(!value.is_finite());
            }
            (first, done) => prop_assert!(false, "first at {:?}, got {:?}", first, done),
        }
    }

    #[test]
    fn wrong_lengths_are_errors(case in cases(), by in prop_oneof![Just(-1isize), Just(1), Just(7)]) {
        let (layout, format) = (case.layout(), case.format);
        let good = encode(&case);
        let changed = |buffer: &Vec<u8>| {
            let mut buffer = buffer.clone();
            buffer.resize(buffer.len().saturating_add_signed(by), 0);
            buffer
        };
        let mut wrong = Vec::new();
        for part in 0..4 {
            let mut parts = good.clone();
            let buffer = match part {
                0 => &mut parts.codes,
                1 => &mut parts.scales,
                2 => &mut parts.zeros,
                _ => &mut parts.levels,
            };
            *buffer = changed(buffer);
            if parts != good {
                wrong.push(parts);
            }
        }
        for mut parts in wrong {
            let mut out = case.x.zeros();
            let refused = codec::decode(parts.read(), layout, format, out.values_mut());
            prop_assert!(matches!(refused, Err(Error::Shape(_))), "{:?}", refused);
            let refused = codec::encode(case.x.values(), layout, format, &case.options(), parts.write());
            prop_assert!(matches!(refused, Err(Error::Shape(_))), "{:?}", refused);
            if format.scale_type().is_some() && parts.codes == good.codes {
                let options = Options { given: Some(parts.read()), ..case.options() };
                let refused = codec::quantize(case.x.values(), layout, format, &options, out.values_mut());
                prop_assert!(refused.is_err());
            }
        }
        let longer = Layout { outer: layout.outer + 1, ..layout };
        let mut out = case.x.zeros();
        if longer.len() != layout.len() {
            prop_assert!(codec::quantize(case.x.values(), longer, format, &case.options(), out.values_mut()).is_err());
            prop_assert!(codec::quantize_in_place(out.values_mut(), longer, format, &case.options()).is_err());
            prop_assert!(codec::decode(good.read(), longer, format, out.values_mut()).is_err());
        }
    }
}

#[test]
fn values_of_another_dtype_are_an_error() {
    let format = Format::parse("mxint8").expect("a format");
    let layout = Layout::new(&[2, 3], -1, format).expect("a layout");
    let (x, mut out) = ([1.0f32; 6], [0u16; 6]);
    let refused = codec::quantize(Values::F32(&x), layout, format, &Options::default(), ValuesMut::F16(&mut out));
    assert!(matches!(refused, Err(Error::Shape(_))));
}

#[test]
fn options_that_do_not_fit_the_format_are_errors() {
    let format = Format::parse("int8").expect("a format");
    let layout = Layout::new(&[6], -1, format).expect("a layout");
    let (x, mut out) = ([1.0f32; 6], [0.0f32; 6]);
    let mut refused = |options: &Options<'_>| {
        codec::quantize(Values::F32(&x), layout, format, options, ValuesMut::F32(&mut out)).is_err()
    };
    assert!(refused(&Options { rule: ScaleRule::Mse, ..Options::default() }));
    for scale in [f32::NAN, f32::INFINITY, -1.0] {
        let scales = scale.to_le_bytes();
        assert!(refused(&Options {
            given: Some(Packed { scales: &scales, ..Packed::default() }),
            ..Options::default()
        }));
    }
    assert!(!refused(&Options::default()));
}

#[test]
fn shapes_that_overflow_are_errors() {
    let format = Format::parse("mxint8").expect("a format");
    for shape in [vec![usize::MAX, 2], vec![1 << 40, 1 << 40], vec![1 << 62]] {
        assert!(matches!(Layout::new(&shape, -1, format), Err(Error::Shape(_))), "{shape:?}");
    }
    for axis in [-3, 2, isize::MAX, isize::MIN] {
        assert!(matches!(Layout::new(&[2, 3], axis, format), Err(Error::Shape(_))), "{axis}");
    }
    assert!(Layout::new(&[], -1, format).is_err());
}

#[test]
fn nothing_is_encoded_in_k_quants() {
    for (text, instead) in
        [("q2_k", "uint2:g32,offset"), ("q3_k", "int3:g32,full"), ("q4_k", "uint4:g32,offset"), ("q6_k", "int6:g32")]
    {
        let format = Format::parse(text).expect("a format");
        let layout = Layout::new(&[2, 300], -1, format).expect("a shape");
        let mut parts = Parts::new(&Sizes::new(format, &layout).expect("small sizes"));
        let x = Tensor::F32(vec![1.0; 600]);
        let told = codec::encode(x.values(), layout, format, &Options::default(), parts.write()).expect_err("refused");
        assert!(told.to_string().contains(&format!("Use '{instead}' instead")), "{told}");
        assert!(Format::parse(instead).is_ok());
        let mut out = x.zeros();
        assert!(codec::quantize(x.values(), layout, format, &Options::default(), out.values_mut()).is_err());
        assert!(Format::parse(&format!("{text}/32")).is_err() && Format::parse(&format!("{text}/256")).is_ok());
    }
}
