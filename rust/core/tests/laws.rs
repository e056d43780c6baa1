//! The laws of FORMATS.md section 2 through the public API: random bit patterns, formats, shapes, axes, SIMD levels and threads.

#![expect(clippy::expect_used, reason = "a test stops where its set-up fails")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use octavo_core::codec::{self, Gradients};
use octavo_core::format::catalogue;
use octavo_core::{DType, Error, Format, Layout, Level, Nonfinite, Options, Packed, PackedMut, ScaleRule, Sizes};
use octavo_core::{Values, ValuesMut, pack_rows, packed_bytes, pool, unpack_rows};
use proptest::prelude::*;

/// Formats beyond the catalogue: odd widths, blocks and biases.
const MORE: [&str; 16] = [
    "fixed17.3",
    "fixed32.16",
    "ufixed5:channel",
    "int3:channel",
    "int2:g3",
    "uint7:g5",
    "uint16",
    "e2m1b-3",
    "e8m10",
    "denorm9e3",
    "binary3",
    "binary4:channel",
    "bfp6/7",
    "bm13e2/9",
    "mxint5/7",
    "nvfp4/5",
];
const LEVELS: [Level; 3] = [Level::Scalar, Level::Avx2, Level::Avx512];
const RULES: [ScaleRule; 3] = [ScaleRule::Floor, ScaleRule::Ceil, ScaleRule::Mse];

/// SIMD level and thread count belong to the process; tests that set them take turns.
static SETTINGS: Mutex<()> = Mutex::new(());

fn settings() -> MutexGuard<'static, ()> {
    SETTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn formats() -> impl Strategy<Value = Format> {
    let texts: Vec<&str> = catalogue().iter().copied().chain(MORE).collect();
    proptest::sample::select(texts).prop_map(|text| Format::parse(text).expect("a format of the catalogue"))
}

/// Values as the codecs take them: bits of one dtype.
#[derive(Clone, Debug)]
enum Tensor {
    F32(Vec<f32>),
    Half(Vec<u16>, DType),
}

impl Tensor {
    fn of(bits: &[u32], dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32(bits.iter().map(|&b| f32::from_bits(b)).collect()),
            _ => Self::Half(bits.iter().map(|&b| (b >> 16) as u16).collect(), dtype),
        }
    }
    fn values(&self) -> Values<'_> {
        match self {
            Self::F32(x) => Values::F32(x),
            Self::Half(x, DType::F16) => Values::F16(x),
            Self::Half(x, _) => Values::BF16(x),
        }
    }
    fn values_mut(&mut self) -> ValuesMut<'_> {
        match self {
            Self::F32(x) => ValuesMut::F32(x),
            Self::Half(x, DType::F16) => ValuesMut::F16(x),
            Self::Half(x, _) => ValuesMut::BF16(x),
        }
    }
    fn zeros(&self) -> Self {
        match self {
            Self::F32(x) => Self::F32(vec![0.0; x.len()]),
            Self::Half(x, dtype) => Self::Half(vec![0; x.len()], *dtype),
        }
    }
    /// Bits; every NaN as one pattern, since payloads carry no meaning.
    fn meaning(&self) -> Vec<u32> {
        let one = |bits: u32, magnitude: u32, infinity: u32| if bits & magnitude > infinity { u32::MAX } else { bits };
        match self {
            Self::F32(x) => x.iter().map(|v| one(v.to_bits(), 0x7fff_ffff, 0x7f80_0000)).collect(),
            Self::Half(x, dtype) => {
                let infinity = if *dtype == DType::F16 { 0x7c00 } else { 0x7f80 };
                x.iter().map(|&v| one(v.into(), 0x7fff, infinity)).collect()
            }
        }
    }
}

/// Bit patterns of every kind: any at all, values near one, subnormals, and NaN and infinities.
fn bits() -> impl Strategy<Value = u32> {
    prop_oneof![
        2 => any::<u32>(),
        4 => (-3.0f32..3.0).prop_map(f32::to_bits),
        1 => (0u32..0x0080_0000, any::<bool>()).prop_map(|(m, negative)| m | u32::from(negative) << 31),
        1 => proptest::sample::select(vec![0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7f7f_ffff, 0x3f80_0000]),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    format: Format,
    shape: Vec<usize>,
    axis: isize,
    x: Tensor,
    rule: ScaleRule,
    nonfinite: Nonfinite,
}

impl Case {
    fn layout(&self) -> Layout {
        Layout::new(&self.shape, self.axis, self.format).expect("an axis of the shape")
    }
    fn options(&self) -> Options<'static> {
        Options { rule: self.rule, nonfinite: self.nonfinite, given: None }
    }
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        proptest::collection::vec(0usize..130, 1..2),
        (1usize..6, 0usize..150).prop_map(|(a, b)| vec![a, b]),
        (1usize..4, 1usize..40, 1usize..6).prop_map(|(a, b, c)| vec![a, b, c]),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let dtypes = proptest::sample::select(vec![DType::F32, DType::F32, DType::F16, DType::BF16]);
    (formats(), shapes(), any::<prop::sample::Index>(), dtypes, 0usize..3, any::<bool>()).prop_flat_map(
        |(format, shape, axis, dtype, rule, nan)| {
            let count = shape.iter().product::<usize>();
            let axis = axis.index(shape.len()) as isize;
            let rule = if format.is_block() { RULES[rule] } else { ScaleRule::Floor };
            let nonfinite = if nan && format.has_nan() { Nonfinite::Nan } else { Nonfinite::Saturate };
            proptest::collection::vec(bits(), count).prop_map(move |bits| Case {
                format,
                shape: shape.clone(),
                axis,
                x: Tensor::of(&bits, dtype),
                rule,
                nonfinite,
            })
        },
    )
}

/// The parts of an encoded tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parts {
    codes: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<u8>,
    levels: Vec<u8>,
}

impl Parts {
    /// Buffers of the right size, full of something else.
    fn new(sizes: &Sizes) -> Self {
        let buffer = |bytes: usize| vec![0xa5; bytes];
        Self {
            codes: buffer(sizes.codes),
            scales: buffer(sizes.scales),
            zeros: buffer(sizes.zeros),
            levels: buffer(sizes.levels),
        }
    }
    fn read(&self) -> Packed<'_> {
        Packed { codes: &self.codes, scales: &self.scales, zeros: &self.zeros, levels: &self.levels }
    }
    fn write(&mut self) -> PackedMut<'_> {
        PackedMut { codes: &mut self.codes, scales: &mut self.scales, zeros: &mut self.zeros, levels: &mut self.levels }
    }
}

fn encode(case: &Case) -> Parts {
    let layout = case.layout();
    let mut parts = Parts::new(&Sizes::new(case.format, &layout).expect("small sizes"));
    codec::encode(case.x.values(), layout, case.format, &case.options(), parts.write()).expect("encode");
    parts
}

fn decode(case: &Case, parts: &Parts) -> Tensor {
    let mut out = case.x.zeros();
    codec::decode(parts.read(), case.layout(), case.format, out.values_mut()).expect("decode");
    out
}

fn quantize(case: &Case) -> Tensor {
    let mut out = case.x.zeros();
    let options = Options { nonfinite: Nonfinite::Saturate, ..case.options() };
    codec::quantize(case.x.values(), case.layout(), case.format, &options, out.values_mut()).expect("quantize");
    out
}

fn gradient(case: &Case) -> Tensor {
    let mut out = case.x.zeros();
    let grad = match &case.x {
        Tensor::F32(x) => Tensor::F32(vec![1.0; x.len()]),
        Tensor::Half(x, dtype) => Tensor::Half(vec![0x3c00; x.len()], *dtype),
    };
    let into = Gradients { x: out.values_mut(), scales: None };
    let options = Options { nonfinite: Nonfinite::Saturate, ..case.options() };
    codec::quantize_backward(grad.values(), case.x.values(), case.layout(), case.format, &options, into)
        .expect("gradient");
    out
}

/// Everything the codecs give for one case.
fn results(case: &Case) -> (Parts, Vec<u32>, Vec<u32>, Vec<u32>) {
    let parts = encode(case);
    let decoded = decode(case, &parts).meaning();
    (parts, decoded, quantize(case).meaning(), gradient(case).meaning())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn quantize_equals_decode_of_encode(case in cases()) {
        let case = Case { nonfinite: Nonfinite::Saturate, ..case };
        let decoded = decode(&case, &encode(&case)).meaning();
        let wanted: Vec<u32> = case.x.meaning().iter().zip(decoded).map(|(&x, q)| if x == u32::MAX { x } else { q }).collect();
        prop_assert_eq!(quantize(&case).meaning(), wanted.clone());
        let mut in_place = case.x.clone();
        codec::quantize_in_place(in_place.values_mut(), case.layout(), case.format, &case.options()).expect("in place");
        prop_assert_eq!(in_place.meaning(), wanted);
    }

    #[test]
    fn results_do_not_depend_on_simd_level(case in cases()) {
        let _turn = settings();
        Level::force(Some(Level::Scalar)).expect("scalar is always there");
        let wanted = results(&case);
        for level in LEVELS.into_iter().filter(|&level| level <= Level::detect()) {
            Level::force(Some(level)).expect("a level of this machine");
            let got = results(&case);
            Level::force(None).expect("the highest level");
            prop_assert_eq!(&got, &wanted, "{:?}", level);
        }
    }

    #[test]
    fn encoding_at_given_scales_keeps_them(case in cases()) {
        let case = Case { nonfinite: Nonfinite::Saturate, ..case };
        let parts = encode(&case);
        if case.format.scale_type().is_some() {
            let options = Options { given: Some(parts.read()), ..Options::default() };
            let options = Options { nonfinite: Nonfinite::Saturate, ..options };
            let mut again = Parts::new(&Sizes::new(case.format, &case.layout()).expect("small sizes"));
            codec::encode(case.x.values(), case.layout(), case.format, &options, again.write()).expect("encode");
            prop_assert_eq!(again, parts);
        }
    }

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

    #[test]
    fn packing_is_undone_by_unpacking(width in 1u32..=32, rows in 0usize..5, k in 0usize..80, seed in any::<u32>()) {
        let mask = u32::MAX >> (32 - width);
        let codes: Vec<u32> = (0..(rows * k) as u32).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b9) & mask).collect();
        let row = packed_bytes(k, width).expect("small");
        let mut packed = vec![0xff; rows * row];
        pack_rows(&codes, rows, k, width, &mut packed).expect("pack");
        let mut back = vec![u32::MAX; rows * k];
        unpack_rows(&packed, rows, k, width, &mut back).expect("unpack");
        prop_assert_eq!(&back, &codes);
        for (i, &code) in codes.iter().enumerate() {
            let start = (i / k.max(1)) * row * 8 + (i % k.max(1)) * width as usize;
            let bit = |at: usize| u32::from(packed[at / 8] >> (at % 8) & 1);
            prop_assert_eq!((0..width).fold(0, |sum, j| sum | bit(start + j as usize) << j), code);
        }
        prop_assert!(pack_rows(&codes, rows + 1, k + 1, width, &mut packed).is_err());
        prop_assert!(unpack_rows(&packed, rows, k, 33, &mut back).is_err());
        prop_assert!(unpack_rows(&packed, usize::MAX, k.max(2), width, &mut back).is_err());
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-z0-9:/.,\\-]{0,14}") {
        if let Ok(format) = Format::parse(&text) {
            prop_assert_eq!(Format::parse(&format.to_string()).ok(), Some(format));
        }
    }
}

#[test]
fn results_do_not_depend_on_thread_count() {
    let _turn = settings();
    let texts = catalogue().iter().copied().chain(MORE);
    for (i, text) in texts.enumerate() {
        let format = Format::parse(text).expect("a format of the catalogue");
        let shape = if i % 2 == 0 { vec![3, 20_011] } else { vec![45_001] };
        let count = shape.iter().product::<usize>() as u32;
        let bits: Vec<u32> = (0..count).map(|j| 0x3f80_0000 ^ j.wrapping_mul(0x9e37_79b9) & 0xbfff_ffff).collect();
        let dtype = if i % 3 == 0 { DType::BF16 } else { DType::F32 };
        let axis = if i % 4 == 2 { 0 } else { -1 };
        let (x, rule) = (Tensor::of(&bits, dtype), if format.is_block() { RULES[i % 3] } else { ScaleRule::Floor });
        let case = Case { format, shape, axis, x, rule, nonfinite: Nonfinite::Saturate };
        pool::set_num_threads(1).expect("one thread");
        let wanted = results(&case);
        for threads in 2..=4 {
            pool::set_num_threads(threads).expect("a few threads");
            assert_eq!(results(&case), wanted, "{text}, {threads} threads");
        }
        pool::set_num_threads(0).expect("the default");
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
