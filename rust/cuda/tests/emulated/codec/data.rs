//! What the tests of codecs feed: values of every kind, tensors as bytes, and the parts of encoded ones.

use octavo_core::{DType, Packed, PackedMut, Sizes, Values, ValuesMut};

pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// The bits of a float32: values near 1, of any size, small integers and halves, subnormals, and what is not finite.
    pub(crate) fn bits(&mut self, finite: bool) -> u32 {
        let any = self.next();
        match self.next() % 16 {
            0..7 => ((any as i32) as f32 / (1u32 << 30) as f32).to_bits(),
            7..10 => ((any % 512) as f32 / 4.0 - 64.0).to_bits(),
            10 => any & 0x807f_ffff,
            11 => (any & 0x80ff_ffff) | 0x7f00_0000 & if finite { 0x7e00_0000 } else { u32::MAX },
            12 => [0, 0x8000_0000, 0x3f80_0000, 0x7f7f_ffff, 0xff7f_ffff, 1][any as usize % 6],
            13 if !finite => [0x7f80_0000, 0xff80_0000, 0x7fc0_0000][any as usize % 3],
            _ if finite => any & 0xbfff_ffff,
            _ => any,
        }
    }
}

/// Values as bytes of a dtype.
pub(crate) fn values(numbers: &mut Numbers, count: usize, dtype: DType, finite: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Whole stretches of one size, so that blocks are not all ruled by one huge element.
    let mut size = 0;
    for i in 0..count {
        if i % 29 == 0 {
            size = if numbers.next().is_multiple_of(4) { numbers.next() % 200 } else { 0 };
        }
        let mut bits = numbers.bits(finite);
        let exponent = bits >> 23 & 255;
        if size > 0 && (1..255).contains(&exponent) {
            bits = (bits & 0x807f_ffff) | (size + exponent % 8) << 23;
        }
        let v = f32::from_bits(bits);
        match dtype {
            DType::F32 => bytes.extend(v.to_le_bytes()),
            DType::F16 if finite => bytes.extend(half::f16::from_f32(v.clamp(-60_000.0, 60_000.0)).to_le_bytes()),
            // Any bits at all where they are wanted, so that they are not all subnormal or infinite.
            DType::F16 if numbers.next().is_multiple_of(2) => bytes.extend(((bits >> 16) as u16).to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f32(v).to_le_bytes()),
            DType::BF16 => bytes.extend(((bits >> 16) as u16).to_le_bytes()),
        }
    }
    bytes
}

/// Aligned words, and the view of a dtype on them.
pub(crate) struct Tensor {
    words: Vec<u32>,
    bytes: usize,
    dtype: DType,
}

impl Tensor {
    pub(crate) fn of(bytes: &[u8], dtype: DType) -> Self {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4), 0);
        let words = padded.as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
        Self { words, bytes: bytes.len(), dtype }
    }
    pub(crate) fn zeros(count: usize, dtype: DType) -> Self {
        Self::of(&vec![0; count * dtype.bytes()], dtype)
    }
    pub(crate) fn halves(&self) -> &[u16] {
        // SAFETY: words are two halves each, and the length counts those of the tensor.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes / 2) }
    }
    pub(crate) fn values(&self) -> Values<'_> {
        match self.dtype {
            DType::F32 => {
                // SAFETY: float32 has the size and alignment of its bits.
                Values::F32(unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len()) })
            }
            DType::F16 => Values::F16(self.halves()),
            DType::BF16 => Values::BF16(self.halves()),
        }
    }
    pub(crate) fn values_mut(&mut self) -> ValuesMut<'_> {
        let (at, halves) = (self.words.as_mut_ptr(), self.bytes / 2);
        // SAFETY: as above.
        unsafe {
            match self.dtype {
                DType::F32 => ValuesMut::F32(std::slice::from_raw_parts_mut(at.cast(), self.words.len())),
                DType::F16 => ValuesMut::F16(std::slice::from_raw_parts_mut(at.cast(), halves)),
                DType::BF16 => ValuesMut::BF16(std::slice::from_raw_parts_mut(at.cast(), halves)),
            }
        }
    }
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).take(self.bytes).collect()
    }
}

/// Bits of values, signs of zeros included; every NaN as one pattern.
pub(crate) fn meaning(bytes: &[u8], dtype: DType) -> Vec<u32> {
    let one = |bits: u32, infinity: u32, sign: u32| if bits & !sign > infinity { u32::MAX } else { bits };
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|b| one(u32::from_le_bytes(*b), 0x7f80_0000, 1 << 31)).collect(),
        _ => {
            let infinity = if dtype == DType::F16 { 0x7c00 } else { 0x7f80 };
            bytes.as_chunks().0.iter().map(|b| one(u16::from_le_bytes(*b).into(), infinity, 1 << 15)).collect()
        }
    }
}

/// Codes, scales, zeros and levels on the host.
#[derive(Clone)]
pub(crate) struct Encoded(pub(crate) [Vec<u8>; 4]);

impl Encoded {
    pub(crate) fn new(sizes: &Sizes, fill: u8) -> Self {
        Self([sizes.codes, sizes.scales, sizes.zeros, sizes.levels].map(|bytes| vec![fill; bytes]))
    }
    pub(crate) fn read(&self) -> Packed<'_> {
        let [codes, scales, zeros, levels] = &self.0;
        Packed { codes, scales, zeros, levels }
    }
    pub(crate) fn write(&mut self) -> PackedMut<'_> {
        let [codes, scales, zeros, levels] = &mut self.0;
        PackedMut { codes, scales, zeros, levels }
    }
}
