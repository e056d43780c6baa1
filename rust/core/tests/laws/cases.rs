//! Tensors, formats and shapes that the laws are tried on, and the calls that they are about.

use octavo_core::codec::{self, Gradients};
use octavo_core::format::catalogue;
use octavo_core::{DType, Format, Layout, Nonfinite, Options, Packed, PackedMut, ScaleRule, Sizes, Values, ValuesMut};
use proptest::prelude::*;

/// Formats beyond the catalogue: odd widths, blocks and biases.
pub(crate) const MORE: [&str; 20] = [
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
    "int2:g3,full",
    "int8:g33,full",
    "uint3:g7,offset",
    "uint8:g40,offset",
];
pub(crate) const RULES: [ScaleRule; 3] = [ScaleRule::Floor, ScaleRule::Ceil, ScaleRule::Mse];

pub(crate) fn formats() -> impl Strategy<Value = Format> {
    let texts: Vec<&str> = catalogue().iter().copied().chain(MORE).collect();
    proptest::sample::select(texts).prop_map(|text| Format::parse(text).expect("a format of the catalogue"))
}

/// Values as the codecs take them: bits of one dtype.
#[derive(Clone, Debug)]
pub(crate) enum Tensor {
    F32(Vec<f32>),
    Half(Vec<u16>, DType),
}

impl Tensor {
    pub(crate) fn of(bits: &[u32], dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32(bits.iter().map(|&b| f32::from_bits(b)).collect()),
            _ => Self::Half(bits.iter().map(|&b| (b >> 16) as u16).collect(), dtype),
        }
    }
    pub(crate) fn values(&self) -> Values<'_> {
        match self {
            Self::F32(x) => Values::F32(x),
            Self::Half(x, DType::F16) => Values::F16(x),
            Self::Half(x, _) => Values::BF16(x),
        }
    }
    pub(crate) fn values_mut(&mut self) -> ValuesMut<'_> {
        match self {
            Self::F32(x) => ValuesMut::F32(x),
            Self::Half(x, DType::F16) => ValuesMut::F16(x),
            Self::Half(x, _) => ValuesMut::BF16(x),
        }
    }
    pub(crate) fn zeros(&self) -> Self {
        match self {
            Self::F32(x) => Self::F32(vec![0.0; x.len()]),
            Self::Half(x, dtype) => Self::Half(vec![0; x.len()], *dtype),
        }
    }
    /// Bits; every NaN as one pattern, since payloads carry no meaning.
    pub(crate) fn meaning(&self) -> Vec<u32> {
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
pub(crate) fn bits() -> impl Strategy<Value = u32> {
    prop_oneof![
        2 => any::<u32>(),
        4 => (-3.0f32..3.0).prop_map(f32::to_bits),
        1 => (0u32..0x0080_0000, any::<bool>()).prop_map(|(m, negative)| m | u32::from(negative) << 31),
        1 => proptest::sample::select(vec![0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7f7f_ffff, 0x3f80_0000]),
    ]
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) format: Format,
    pub(crate) shape: Vec<usize>,
    pub(crate) axis: isize,
    pub(crate) x: Tensor,
    pub(crate) rule: ScaleRule,
    pub(crate) nonfinite: Nonfinite,
}

impl Case {
    pub(crate) fn layout(&self) -> Layout {
        Layout::new(&self.shape, self.axis, self.format).expect("an axis of the shape")
    }
    pub(crate) fn options(&self) -> Options<'static> {
        Options { rule: self.rule, nonfinite: self.nonfinite, given: None }
    }
}

pub(crate) fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        proptest::collection::vec(0usize..130, 1..2),
        (1usize..6, 0usize..150).prop_map(|(a, b)| vec![a, b]),
        (1usize..4, 1usize..40, 1usize..6).prop_map(|(a, b, c)| vec![a, b, c]),
    ]
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
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
pub(crate) struct Parts {
    pub(crate) codes: Vec<u8>,
    pub(crate) scales: Vec<u8>,
    pub(crate) zeros: Vec<u8>,
    pub(crate) levels: Vec<u8>,
}

impl Parts {
    /// Buffers of the right size, full of something else.
    pub(crate) fn new(sizes: &Sizes) -> Self {
        let buffer = |bytes: usize| vec![0xa5; bytes];
        Self {
            codes: buffer(sizes.codes),
            scales: buffer(sizes.scales),
            zeros: buffer(sizes.zeros),
            levels: buffer(sizes.levels),
        }
    }
    pub(crate) fn read(&self) -> Packed<'_> {
        Packed { codes: &self.codes, scales: &self.scales, zeros: &self.zeros, levels: &self.levels }
    }
    pub(crate) fn write(&mut self) -> PackedMut<'_> {
        PackedMut { codes: &mut self.codes, scales: &mut self.scales, zeros: &mut self.zeros, levels: &mut self.levels }
    }
}

pub(crate) fn encode(case: &Case) -> Parts {
    let layout = case.layout();
    let mut parts = Parts::new(&Sizes::new(case.format, &layout).expect("small sizes"));
    codec::encode(case.x.values(), layout, case.format, &case.options(), parts.write()).expect("encode");
    parts
}

pub(crate) fn decode(case: &Case, parts: &Parts) -> Tensor {
    let mut out = case.x.zeros();
    codec::decode(parts.read(), case.layout(), case.format, out.values_mut()).expect("decode");
    out
}

pub(crate) fn quantize(case: &Case) -> Tensor {
    let mut out = case.x.zeros();
    let options = Options { nonfinite: Nonfinite::Saturate, ..case.options() };
    codec::quantize(case.x.values(), case.layout(), case.format, &options, out.values_mut()).expect("quantize");
    out
}

pub(crate) fn gradient(case: &Case) -> Tensor {
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
pub(crate) fn results(case: &Case) -> (Parts, Vec<u32>, Vec<u32>, Vec<u32>) {
    let parts = encode(case);
    let decoded = decode(case, &parts).meaning();
    (parts, decoded, quantize(case).meaning(), gradient(case).meaning())
}
