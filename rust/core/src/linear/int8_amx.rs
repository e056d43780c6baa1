//! Integer products on AMX: int8 codes, int32 accumulators over all columns.

use std::arch::x86_64::*;

use crate::codec::zeroed;
use crate::error::Result;
use crate::simd::amx::products::{ACROSS, Run, Sums};
use crate::simd::amx::{self, LINE, ROWS, Session};
use crate::simd::transpose::transpose;
use crate::simd::{Level, Line};

/// Columns whose sums fit int32: `2^16 * 128 * 128 < 2^31`.
const MOST_COLUMNS: usize = 1 << 16;
/// Number of weights below which configuring AMX tiles costs more than AMX saves.
const SMALL: usize = 1 << 14;

/// True where a product with `n` rows of `k` weights runs here.
pub(super) fn applies(n: usize, k: usize, level: Level) -> bool {
    k <= MOST_COLUMNS && n.saturating_mul(k) >= SMALL && amx::available(level)
}

/// Rows of int8 inputs as tiles: by pass over the weights, then 64 columns, then sixteen rows.
pub(super) struct Tiled {
    lines: Vec<Line<i8, LINE>>,
    /// Rows of inputs.
    rows: usize,
    /// Steps of 64 columns.
    pub(super) steps: usize,
    /// Tiles of 16 rows in a pass.
    across: usize,
}

impl Tiled {
    /// Arranges rows of `k` codes.
    pub(super) fn new(codes: &[i8], rows: usize, k: usize) -> Result<Self> {
        let steps = k.div_ceil(LINE);
        let across = match rows.div_ceil(ROWS) {
            tiles @ 0..=2 => tiles.max(1),
            _ => ACROSS,
        };
        let passes = rows.div_ceil(ROWS * across);
        let mut lines = zeroed::<Line<i8, LINE>>(passes * steps * across * ROWS)?;
        for (row, codes) in codes.chunks(k.max(1)).enumerate() {
            let (tile, column) = (row / ROWS, row % ROWS);
            let pass = &mut lines[tile / across * steps * across * ROWS..];
            let lines = pass.chunks_mut(across * ROWS).flat_map(|step| &mut step[tile % across * ROWS..][..ROWS]);
            for (line, quad) in lines.zip(codes.chunks(4)) {
                line.0[4 * column..][..quad.len()].copy_from_slice(quad);
            }
        }
        Ok(Self { lines, rows, steps, across })
    }
}

/// Turns exact sums into values.
pub(super) trait Finish {
    /// Values of a row of weights and sixteen rows of inputs from `first` on.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and DQ.
    unsafe fn values(&self, weight: usize, first: usize, sums: __m512i) -> __m512;
}

/// Computes the products of up to 16 rows of weights, of which `first` is the first, and calls `write` with each row of
/// inputs and its values.
///
/// `weights` are rows of int8, one for each 64 times `x.steps` bytes; the numbers of columns beyond the last do not
/// matter.
///
/// # Safety
/// The processor must have AVX-512 F and DQ.
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) unsafe fn multiply(
    session: &Session,
    weights: &[i8],
    (first, count): (usize, usize),
    x: &Tiled,
    finish: &impl Finish,
    mut write: impl FnMut(usize, &mut [f32]),
) {
    assert!(count <= ROWS && weights.len() >= ROWS * x.steps * LINE);
    let pass_lines = x.steps * x.across * ROWS;
    for pass in 0..x.rows.div_ceil(ROWS * x.across) {
        let mut sums = Sums::default();
        if x.steps > 0 {
            let inputs = x.lines[pass * pass_lines..][..pass_lines].as_ptr().cast();
            let stride = x.steps * LINE;
            let run = Run { weights: weights.as_ptr().cast(), stride, inputs, steps: x.steps };
            // SAFETY: there are 16 rows of weights, as asserted, and tiles of inputs for all steps, of which there are some.
            unsafe { session.multiply_across(x.across, run, &mut sums) };
        }
        for (tile, sums) in sums[..x.across].iter().enumerate() {
            let first_row = (pass * x.across + tile) * ROWS;
            if first_row >= x.rows {
                break;
            }
            let mut values = [_mm512_setzero_ps(); ROWS];
            for (r, (value, line)) in values.iter_mut().zip(sums).enumerate().take(count) {
                // SAFETY: as the caller promises; lines are aligned.
                *value = unsafe { finish.values(first + r, first_row, _mm512_load_si512(line.0.as_ptr().cast())) };
            }
            // SAFETY: as the caller promises.
            let values = unsafe { transpose(values) };
            for (row, values) in values.iter().enumerate().take(x.rows - first_row) {
                let mut line = Line([0.0f32; 16]);
                // SAFETY: a line holds sixteen values.
                unsafe { _mm512_store_ps(line.0.as_mut_ptr(), *values) };
                write(first_row + row, &mut line.0[..count]);
            }
        }
    }
}
