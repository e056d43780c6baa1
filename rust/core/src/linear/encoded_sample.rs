//! Encoded matrices that tests of kernels multiply.

use crate::codec::rows::Rows;
use crate::codec::{self, Layout, Options, Packed, PackedMut, Sizes, Values};
use crate::format::Format;
use crate::simd::Level;

/// Numbers from -1 to 1 without a pattern.
pub(super) fn noise(i: usize) -> f32 {
    ((i as u32).wrapping_mul(0x9e37_79b9) >> 8) as f32 / 8_388_608.0 - 1.0
}

/// Rows of `k` values in a format.
pub(super) struct Sample {
    pub(super) codes: Vec<u8>,
    pub(super) scales: Vec<u8>,
    zeros: Vec<u8>,
    levels: Vec<u8>,
    pub(super) format: Format,
    n: usize,
    k: usize,
}

impl Sample {
    pub(super) fn new(values: &[f32], k: usize, format: Format) -> Self {
        let n = values.len() / k;
        let layout = Layout::new(&[n, k], -1, format).unwrap();
        let sizes = Sizes::new(format, &layout).unwrap();
        let (mut codes, mut scales) = (vec![0; sizes.codes], vec![0; sizes.scales]);
        let (mut zeros, mut levels) = (vec![0; sizes.zeros], vec![0; sizes.levels]);
        let to = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut zeros, levels: &mut levels };
        codec::encode(Values::F32(values), layout, format, &Options::default(), to).unwrap();
        Self { codes, scales, zeros, levels, format, n, k }
    }

    pub(super) fn rows(&self, level: Level) -> Rows<'_> {
        let Self { codes, scales, zeros, levels, .. } = self;
        Rows::new(Packed { codes, scales, zeros, levels }, self.n, self.k, self.format, level).unwrap()
    }
}

/// Rows of `k` codes of all kinds, the first of the lowest alone; `from` varies them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn codes(rows: usize, k: usize, from: usize) -> Vec<i8> {
    let mut all: Vec<i8> =
        (from..from + rows * k).map(|i| ((i as u32).wrapping_mul(0x9e37_79b9) >> 21) as i8).collect();
    all[..k].fill(-128);
    all
}
