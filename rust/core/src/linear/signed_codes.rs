//! Codes with a sign, as bytes: quantized inputs, and the scales of rows.

use crate::bitpack::{bytes_mut, unpack_signed};
use crate::codec::{self, Layout, Options, Packed, PackedMut, Sizes, Values, zeroed};
use crate::error::Result;
use crate::format::Format;
use crate::simd::Level;

/// Quantized inputs.
pub(super) struct Codes {
    pub(super) codes: Vec<i8>,
    pub(super) scales: Vec<u8>,
    k: usize,
}

impl Codes {
    pub(super) fn quantize(
        x: Values<'_>,
        m: usize,
        k: usize,
        format: Format,
        scales: Option<&[f32]>,
        level: Level,
    ) -> Result<Self> {
        let layout = Layout::new(&[m, k], -1, format)?;
        let sizes = Sizes::new(format, &layout)?;
        let mut codes = zeroed::<i8>(m * k)?;
        let mut stored = zeroed::<u8>(sizes.scales)?;
        let mut stored_scales = zeroed::<u8>(size_of_val(scales.unwrap_or_default()))?;
        for (to, scale) in stored_scales.as_chunks_mut::<4>().0.iter_mut().zip(scales.unwrap_or_default()) {
            *to = scale.to_le_bytes();
        }
        let given = scales.map(|_| Packed { scales: &stored_scales, ..Packed::default() });
        let options = Options { given, ..Options::default() };
        if format.width() == 8 {
            // Codes of eight bits are packed as they are.
            let parts =
                PackedMut { codes: bytes_mut(&mut codes), scales: &mut stored, zeros: &mut [], levels: &mut [] };
            codec::encode(x, layout, format, &options, parts)?;
            return Ok(Self { codes, scales: stored, k });
        }
        let mut packed = zeroed::<u8>(sizes.codes)?;
        let parts = PackedMut { codes: &mut packed, scales: &mut stored, zeros: &mut [], levels: &mut [] };
        codec::encode(x, layout, format, &options, parts)?;
        if k > 0 {
            for (packed, codes) in packed.chunks(sizes.row_bytes).zip(codes.chunks_mut(k)) {
                unpack_signed(level, packed, format.width(), codes);
            }
        }
        Ok(Self { codes, scales: stored, k })
    }

    pub(super) fn row(&self, row: usize) -> &[i8] {
        &self.codes[row * self.k..][..self.k]
    }
}

/// The float32 scale of a row: its own, or the only one there is.
fn scale_at(scales: &[u8], row: usize) -> f32 {
    let all = scales.as_chunks::<4>().0;
    let bytes = if all.len() == 1 { all.first() } else { all.get(row) };
    bytes.map_or(0.0, |bytes| f32::from_le_bytes(*bytes))
}

/// The scales of `count` rows.
pub(super) fn all_scales(scales: &[u8], count: usize) -> Result<Vec<f32>> {
    let mut all = zeroed::<f32>(count)?;
    for (row, scale) in all.iter_mut().enumerate() {
        *scale = scale_at(scales, row);
    }
    Ok(all)
}
