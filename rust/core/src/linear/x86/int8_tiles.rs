//! Integer products in tiles, by AMX or VNNI: int8 codes, int32 accumulators over all columns.

use std::arch::x86_64::*;

use super::int8_scaling::Scaled;
use crate::codec::{set_len, zeroed};
use crate::error::Result;
use crate::linear::int8_lanes::MAX_DEPTH;
use crate::linear::integer::{IntegerProduct, PANEL};
use crate::linear::problem::Problem;
use crate::linear::ran;
use crate::pool;
use crate::simd::Line;
use crate::simd::tiles::{ACROSS, LINE, ROWS, Run, Session, Sums, Tiles};
use crate::simd::transpose::transpose;

/// Rows of inputs arranged as tiles per pass: enough that weights are rarely unpacked again, few enough to bound memory.
const CHUNK_ROWS: usize = 4096;
/// Rows of weights in one unit of work, at least and at most, and bytes of them: they stay in the L2 cache.
const UNIT_ROWS: [usize; 2] = [64, 256];
const UNIT_BYTES: usize = 1 << 20;

/// True for sums that fit int32.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    problem.depth <= MAX_DEPTH
}

/// Multiplies in tiles, a chunk of rows of inputs at a time.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &IntegerProduct<'_>) -> Result<()> {
    let (m, tiles) = (product.problem.rows, Tiles::of(product.problem.processor));
    ran::note(if tiles == Tiles::Amx { "int8 amx" } else { "int8 vnni" });
    (0..m).step_by(CHUNK_ROWS).try_for_each(|first| run_chunk(product, tiles, first, CHUNK_ROWS.min(m - first)))
}

/// The products of `m` rows of inputs from `first_row` on.
fn run_chunk(product: &IntegerProduct<'_>, tiles: Tiles, first_row: usize, m: usize) -> Result<()> {
    let (w, n, k) = (product.w, product.w.rows, product.w.columns);
    // SAFETY: the table asks for the instructions.
    let x = unsafe { Tiled::new(&product.x.codes[first_row * k..][..m * k], m, k)? };
    let mut padded = zeroed::<f32>(m + ROWS)?;
    padded[..m].copy_from_slice(&product.input_scales[first_row..][..m]);
    let finish = Scaled { input_scales: &padded, weight_scales: &product.weight_scales, added: product.added };
    // An even number of lines would bring the rows of a tile to a few sets of the L1 cache.
    let stride = (x.steps | usize::from(tiles == Tiles::Vectors)) * LINE;
    let out = product.out.after(first_row);
    // Threads wait for one another less where there are several units for each.
    let enough = (n / (3 * pool::num_threads())).min(UNIT_BYTES / stride.max(1));
    let unit_rows = enough.clamp(UNIT_ROWS[0], UNIT_ROWS[1]) / PANEL * PANEL;
    pool::try_for_each(n.div_ceil(unit_rows), m.saturating_mul(n).saturating_mul(k), |unit| {
        let (mut unpacked, mut values) = (Vec::new(), Vec::new());
        // SAFETY: the table asks for the instructions; every panel writes its own columns.
        unsafe {
            let session = Session::new(tiles);
            let (first, count) = (unit * unit_rows, unit_rows.min(n - unit * unit_rows));
            let packed = &w.packed.codes[first * product.row_bytes..][..count * product.row_bytes];
            let weights = if w.format.width() == 8 && stride == k && count.is_multiple_of(PANEL) {
                std::slice::from_raw_parts(packed.as_ptr().cast::<i8>(), packed.len())
            } else {
                set_len(&mut unpacked, count.next_multiple_of(PANEL) * stride)?;
                for (row, codes) in (first..first + count).zip(unpacked.chunks_mut(stride)) {
                    product.unpack(row, &mut codes[..k]);
                }
                &unpacked
            };
            let write = |row: usize, values: &mut [f32]| out.write(row, first, values);
            multiply(&session, (weights, stride), (first, count), &x, &finish, &mut values, write)
        }
    })
}

/// Rows of int8 inputs as tiles: by pass over the weights, then 64 columns, then sixteen rows.
struct Tiled {
    lines: Vec<Line<i8, LINE>>,
    /// Rows of inputs.
    rows: usize,
    /// Steps of 64 columns.
    steps: usize,
    /// Tiles of 16 rows in a pass.
    across: usize,
}

impl Tiled {
    /// Arranges rows of `k` codes.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW.
    unsafe fn new(codes: &[i8], rows: usize, k: usize) -> Result<Self> {
        let across = match rows.div_ceil(ROWS) {
            tiles @ 0..=2 => tiles.max(1),
            _ => ACROSS,
        };
        let steps = k.div_ceil(LINE);
        let passes = rows.div_ceil(ROWS * across);
        let mut lines = zeroed::<Line<i8, LINE>>(passes * steps * across * ROWS)?;
        pool::for_each_chunk(&mut lines, across * ROWS, |at, lines| {
            let (pass, step) = (at / steps, at % steps);
            for (tile, lines) in lines.chunks_mut(ROWS).enumerate() {
                let rows = codes.chunks(k).skip((pass * across + tile) * ROWS).take(ROWS);
                // SAFETY: as the caller promises.
                unsafe { arrange(rows.map(|row| &row[step * LINE..k.min((step + 1) * LINE)]), lines) };
            }
        })?;
        Ok(Self { lines, rows, steps, across })
    }

    /// The lines of a pass.
    fn pass(&self, pass: usize) -> &[Line<i8, LINE>] {
        let lines = self.steps * self.across * ROWS;
        &self.lines[pass * lines..][..lines]
    }
}

/// Up to 64 columns of up to sixteen rows, turned: a line holds four columns of all rows.
///
/// # Safety
/// The processor must have AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn arrange<'a>(codes: impl Iterator<Item = &'a [i8]>, lines: &mut [Line<i8, LINE>]) {
    let mut rows = [_mm512_setzero_ps(); ROWS];
    for (row, codes) in rows.iter_mut().zip(codes) {
        // SAFETY: the mask keeps inside the codes, of which there are 1 to 64.
        let codes = unsafe { _mm512_maskz_loadu_epi8(u64::MAX >> (LINE - codes.len()), codes.as_ptr()) };
        *row = _mm512_castsi512_ps(codes);
    }
    // SAFETY: as the caller promises; lines are aligned.
    unsafe {
        for (line, turned) in lines.iter_mut().zip(&transpose(rows)) {
            _mm512_store_si512(line.0.as_mut_ptr().cast(), _mm512_castps_si512(*turned));
        }
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

/// Computes the products of `count` rows of weights, of which `first` is the first, and calls `write` with each row of
/// inputs and their values. `values` is memory that this uses.
///
/// `weights` are rows of int8, a multiple of sixteen, `stride` bytes apart, each of 64 times `x.steps` bytes; the numbers of
/// columns beyond the last do not matter.
///
/// # Safety
/// The processor must have AVX-512 F and DQ.
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn multiply(
    session: &Session,
    (weights, stride): (&[i8], usize),
    (first, count): (usize, usize),
    x: &Tiled,
    finish: &impl Finish,
    values: &mut Vec<f32>,
    mut write: impl FnMut(usize, &mut [f32]),
) -> Result<()> {
    let (rows, width) = (count.next_multiple_of(ROWS), x.steps * LINE);
    assert!(count == 0 || stride >= width && weights.len() >= (rows - 1) * stride + width);
    set_len(values, x.across * ROWS * rows)?;
    // The inputs of a pass stay in the L2 cache while panels of weights take turns.
    for pass in 0..x.rows.div_ceil(ROWS * x.across) {
        let first_row = pass * x.across * ROWS;
        for panel in (0..count).step_by(ROWS) {
            let mut sums = Sums::default();
            if x.steps > 0 {
                let inputs = x.pass(pass).as_ptr().cast();
                let weights = weights[panel * stride..].as_ptr().cast();
                let run = Run { weights, stride, inputs, steps: x.steps };
                // SAFETY: there are 16 rows of weights, as asserted, and tiles of inputs for all steps, of which there are some.
                unsafe { session.multiply_across(x.across, run, &mut sums) };
            }
            for (tile, sums) in sums[..x.across].iter().enumerate() {
                let tile_row = first_row + tile * ROWS;
                if tile_row >= x.rows {
                    break;
                }
                let mut turned = [_mm512_setzero_ps(); ROWS];
                for (r, (value, line)) in turned.iter_mut().zip(sums).enumerate().take(count - panel) {
                    // SAFETY: as the caller promises; lines are aligned.
                    unsafe {
                        let sums = _mm512_load_si512(line.0.as_ptr().cast());
                        *value = finish.values(first + panel + r, tile_row, sums);
                    }
                }
                // SAFETY: as the caller promises; there is room for sixteen values of each row.
                unsafe {
                    for (i, turned) in transpose(turned).iter().enumerate() {
                        let to = &mut values[(tile * ROWS + i) * rows + panel..][..ROWS];
                        _mm512_storeu_ps(to.as_mut_ptr(), *turned);
                    }
                }
            }
        }
        for (values, row) in values.chunks_mut(rows.max(1)).zip(first_row..x.rows) {
            write(row, &mut values[..count]);
        }
    }
    Ok(())
}
