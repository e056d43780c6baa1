//! A format's text, a line break, four bytes of choices, and values: `quantize` equals `decode` of `encode`, every SIMD
//! level gives the same bits, and codes that no encoder wrote decode without harm.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_core::codec::{decode, encode, quantize};
use octavo_core::{
    DType, Error, Format, Layout, Level, Nonfinite, Options, Packed, PackedMut, ScaleRule, Sizes, Values, ValuesMut,
};

/// Values of one dtype, 16-bit floats as bits.
enum Buffer {
    Wide(Vec<f32>),
    Narrow(Vec<u16>, DType),
}

impl Buffer {
    fn read(bytes: &[u8], dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::Wide(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
            _ => Self::Narrow(bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect(), dtype),
        }
    }
    fn zeros(&self) -> Self {
        match self {
            Self::Wide(x) => Self::Wide(vec![0.0; x.len()]),
            Self::Narrow(x, dtype) => Self::Narrow(vec![0; x.len()], *dtype),
        }
    }
    fn len(&self) -> usize {
        match self {
            Self::Wide(x) => x.len(),
            Self::Narrow(x, _) => x.len(),
        }
    }
    fn truncate(&mut self, len: usize) {
        match self {
            Self::Wide(x) => x.truncate(len),
            Self::Narrow(x, _) => x.truncate(len),
        }
    }
    /// Replaces NaN by 0: `quantize` keeps NaN, `encode` with `saturate` stores 0.
    fn without_nan(mut self) -> Self {
        match &mut self {
            Self::Wide(x) => x.iter_mut().filter(|v| v.is_nan()).for_each(|v| *v = 0.0),
            Self::Narrow(x, DType::F16) => x.iter_mut().filter(|v| **v & 0x7fff > 0x7c00).for_each(|v| *v = 0),
            Self::Narrow(x, _) => x.iter_mut().filter(|v| **v & 0x7fff > 0x7f80).for_each(|v| *v = 0),
        }
        self
    }
    fn values(&self) -> Values<'_> {
        match self {
            Self::Wide(x) => Values::F32(x),
            Self::Narrow(x, DType::F16) => Values::F16(x),
            Self::Narrow(x, _) => Values::BF16(x),
        }
    }
    fn values_mut(&mut self) -> ValuesMut<'_> {
        match self {
            Self::Wide(x) => ValuesMut::F32(x),
            Self::Narrow(x, DType::F16) => ValuesMut::F16(x),
            Self::Narrow(x, _) => ValuesMut::BF16(x),
        }
    }
    /// Bits, with one zero and one NaN.
    fn bits(&self) -> Vec<u32> {
        let canonical = |bits: u32, nan: u32| match bits & (nan | (nan - 1)) {
            0 => 0,
            magnitude if magnitude > nan => nan + 1,
            _ => bits,
        };
        match self {
            Self::Wide(x) => x.iter().map(|v| canonical_f32(*v)).collect(),
            Self::Narrow(x, DType::F16) => x.iter().map(|v| canonical((*v).into(), 0x7c00)).collect(),
            Self::Narrow(x, _) => x.iter().map(|v| canonical((*v).into(), 0x7f80)).collect(),
        }
    }
}

fn canonical_f32(value: f32) -> u32 {
    if value == 0.0 {
        0
    } else if value.is_nan() {
        f32::NAN.to_bits()
    } else {
        value.to_bits()
    }
}

fn levels() -> impl Iterator<Item = Level> {
    [Level::Scalar, Level::Avx2, Level::Avx512].into_iter().filter(|level| *level <= Level::detect())
}

fuzz_target!(|data: &[u8]| {
    let Some((text, rest)) = data.iter().position(|byte| *byte == b'\n').map(|at| data.split_at(at)) else { return };
    let Some(Ok(format)) = std::str::from_utf8(text).ok().map(Format::parse) else { return };
    let [_, k, inner, rule, kind, rest @ ..] = rest else { return };
    let rule = [ScaleRule::Floor, ScaleRule::Ceil, ScaleRule::Mse][usize::from(rule % 3)];
    let dtype = [DType::F32, DType::F16, DType::BF16][usize::from(kind % 3)];
    let (k, inner) = (usize::from(*k), usize::from(inner % 4) + 1);
    let mut x = Buffer::read(rest, dtype).without_nan();
    let outer = if k == 0 { 1 } else { x.len() / (k * inner) };
    x.truncate(outer * k * inner);
    let layout = Layout::new(&[outer, k, inner], 1, format).expect("three dimensions, axis 1");
    let sizes = Sizes::new(format, &layout).expect("small");
    let options = Options { rule, nonfinite: Nonfinite::Saturate, given: None };
    let mut expected = None;
    for level in levels() {
        Level::force(Some(level)).expect("detected");
        let mut quantized = x.zeros();
        match quantize(x.values(), layout, format, &options, quantized.values_mut()) {
            Ok(()) => {}
            Err(Error::Format(_)) => return, // a rule that the format does not take
            Err(error) => panic!("'{format}': {error}"),
        }
        let mut parts = [sizes.codes, sizes.scales, sizes.zeros, sizes.levels].map(|bytes| vec![0u8; bytes]);
        let [codes, scales, zeros, levels] = &mut parts;
        let out = PackedMut { codes, scales, zeros, levels };
        encode(x.values(), layout, format, &options, out).expect("what is quantized is encoded");
        let mut decoded = x.zeros();
        let [codes, scales, zeros, levels] = &parts;
        decode(Packed { codes, scales, zeros, levels }, layout, format, decoded.values_mut())
            .expect("what is encoded is decoded");
        assert_eq!(decoded.bits(), quantized.bits(), "'{format}' {rule:?} {dtype:?} at {level:?}");

        // Parts that no encoder wrote, as a file may hold them.
        let mut foreign = rest.iter().copied().cycle();
        let mut some = |bytes: usize| (0..bytes).map(|_| foreign.next().unwrap_or(0xa5)).collect::<Vec<_>>();
        let strange = [sizes.codes, sizes.scales, sizes.zeros, sizes.levels].map(&mut some);
        let [codes, scales, zeros, levels] = &strange;
        let mut odd = x.zeros();
        decode(Packed { codes, scales, zeros, levels }, layout, format, odd.values_mut()).expect("any codes decode");

        let found = (parts, decoded.bits(), odd.bits());
        match &expected {
            None => expected = Some(found),
            Some(scalar) => assert_eq!(scalar, &found, "'{format}' {rule:?} {dtype:?}: scalar (left) and {level:?}"),
        }
    }
});
