//! Inputs rounded to a format, a part of their rows at a time: their codes, or their values.

use std::ops::Range;

use crate::codec::rows::Rows;
use crate::codec::{self, Layout, Nonfinite, Options, Packed, PackedMut, Sizes, zeroed};
use crate::error::Result;
use crate::format::Granularity;
use crate::linear::fallback::Fallback;
use crate::linear::output::{Biased, Inputs};
use crate::linear::rounded::{CodesProduct, RoundedInputs};
use crate::pool;

/// The parts of encoded inputs.
struct Parts {
    codes: Vec<u8>,
    scales: Vec<u8>,
    levels: Vec<u8>,
}

impl Parts {
    fn packed(&self) -> Packed<'_> {
        Packed { codes: &self.codes, scales: &self.scales, zeros: &[], levels: &self.levels }
    }
}

/// Rows of inputs that are multiplied together.
pub(super) struct EncodedChunk<'a> {
    /// How many there are.
    pub(super) m: usize,
    /// Their codes.
    pub(super) codes: &'a Rows<'a>,
    pub(super) out: &'a Biased<'a>,
    pub(super) fallback: &'a Fallback<'a>,
    /// The inputs before they were encoded.
    wide: &'a Inputs<'a>,
}

impl EncodedChunk<'_> {
    /// Whether a row of inputs has infinities or NaNs: codes do not hold them.
    pub(super) fn overflows(&self, row: usize) -> bool {
        !self.wide.row(row).iter().fold(true, |all, v| all & v.is_finite())
    }
}

impl CodesProduct<'_> {
    /// Encodes `chunk_rows` rows of inputs at a time, and has each chunk multiplied.
    ///
    /// # Errors
    /// Where memory is short, and those of `multiply`.
    pub(super) fn in_chunks(
        &self,
        chunk_rows: usize,
        mut multiply: impl FnMut(&EncodedChunk<'_>) -> Result<()>,
    ) -> Result<()> {
        let RoundedInputs { rows: all, depth: k, format, level, .. } = self.x;
        for first in (0..all).step_by(chunk_rows) {
            let m = chunk_rows.min(all - first);
            let options = Options { given: self.x.given_scales(first, m), ..*self.x.options };
            let x = RoundedInputs {
                values: self.x.values.range(first * k..(first + m) * k),
                rows: m,
                options: &options,
                ..self.x
            };
            let out = self.out.after(first);
            let parts = x.encode()?;
            let codes = Rows::new(parts.packed(), m, k, format, level)?;
            let wide = Inputs::new(x.values, m, k, 1, level)?;
            let fallback = Fallback::rounded(&self.rows, &x, &out);
            multiply(&EncodedChunk { m, codes: &codes, out: &out, fallback: &fallback, wide: &wide })?;
        }
        Ok(())
    }
}

impl RoundedInputs<'_> {
    /// Writes some rows in float32, rounded, on this thread.
    ///
    /// # Errors
    /// As for [`codec::quantize`].
    pub(super) fn round_rows(&self, rows: Range<usize>, to: &mut [f32]) -> Result<()> {
        let options = Options { given: self.given_scales(rows.start, rows.len()), ..*self.options };
        let values = self.values.range(rows.start * self.depth..rows.end * self.depth);
        let rows = RoundedInputs { values, rows: rows.len(), options: &options, ..*self };
        pool::alone(|| rows.round(to))
    }

    /// The given scales of some rows, if there are some: those of all, or of parts of a row.
    fn given_scales(&self, first: usize, m: usize) -> Option<Packed<'_>> {
        let mut scales = self.options.given?;
        if self.format.granularity() != Granularity::Tensor {
            for part in [&mut scales.scales, &mut scales.zeros] {
                let row_bytes = part.len() / self.rows.max(1);
                *part = &part[first * row_bytes..(first + m) * row_bytes];
            }
        }
        Some(scales)
    }

    fn encode(&self) -> Result<Parts> {
        let layout = Layout::new(&[self.rows, self.depth], -1, self.format)?;
        let sizes = Sizes::new(self.format, &layout)?;
        let (codes, scales, levels) = (zeroed(sizes.codes)?, zeroed(sizes.scales)?, zeroed(sizes.levels)?);
        let mut parts = Parts { codes, scales, levels };
        let Parts { codes, scales, levels } = &mut parts;
        let options = Options { nonfinite: Nonfinite::Saturate, ..*self.options };
        codec::encode(self.values, layout, self.format, &options, PackedMut { codes, scales, zeros: &mut [], levels })?;
        Ok(parts)
    }
}
