//! `y = x W^T + bias` in float32, for weights of any format.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::f32_fma::{self, ROWS, SLAB};
#[cfg(target_arch = "x86_64")]
use super::output::OutputLanes;
use super::output::{Inputs, Outputs, widened};
use super::{Matrix, check_sizes};
#[cfg(target_arch = "x86_64")]
use super::{bf16_limbs, f32_tiles, route};
use crate::codec::rows::{Rows, Unpacked};
use crate::codec::{DType, Values, ValuesMut, zeroed};
use crate::error::{Result, ShapeError};
use crate::float_state::FloatState;
use crate::pool;
use crate::simd::{LANES, Level};

/// Rows of weights in one unit of work.
pub(super) const PANEL: usize = 16;
/// Most rows of inputs per pass over the weights: a multiple of the rows that any kernel takes at a time.
const MOST_ROWS: usize = 4096;
/// The same, at least, however many columns there are.
const LEAST_ROWS: usize = 64;
/// Bytes of inputs, widened and arranged for a kernel, that are held in one go, about.
const HELD_BYTES: usize = 256 << 20;
/// Bytes that a column of a row of inputs takes there, at most: float32, and four limbs of 8 bits as planes and as tiles.
const BYTES_PER_INPUT: usize = 12;
/// Rows of inputs from which on one kernel multiplies, whatever their number.
pub(super) const MANY: usize = 5;

/// The kernels that may multiply.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// The fastest for so many rows.
    Rows(usize),
    /// The same of those whose results prepared weights give, too.
    Alike(usize),
}

/// Multiplies `m` rows of inputs with the transposed weights and adds the bias, if there is one.
///
/// `x` holds `[m, columns]` and `out` `[m, rows]` values. Weights are the decoded ones, sums are float32, and the result is
/// rounded once to the dtype of `out`. A row's result depends on that row and its dtype, the weights, the number of rows and
/// the SIMD level alone: neither on the other rows, nor on the number of threads, nor on alignment. Small products have one
/// order of summation at every SIMD level. Large ones ([`super::kernel`] tells) have others on AVX-512: in fixed point, for
/// one row and of some formats for up to four, and in tiles (of bfloat16, and with AMX of int8), for more than four: within
/// the bound of FORMATS.md section 6, with other last bits.
///
/// # Errors
/// [`crate::Error::Shape`] where a length does not fit, [`crate::Error::OutOfMemory`] where memory is short.
pub fn multiply(x: Values<'_>, m: usize, w: &Matrix<'_>, bias: Option<Values<'_>>, out: ValuesMut<'_>) -> Result<()> {
    multiply_as(x, x.src().dtype, m, w, bias, out, By::Rows(m))
}

/// As [`multiply`] of each row by itself: a row's result depends on that row, the weights and the SIMD level alone, however
/// many rows there are. Weights are read once for several rows.
///
/// # Errors
/// As for [`multiply`].
pub fn multiply_singly(x: &[f32], m: usize, w: &Matrix<'_>, bias: Option<&[f32]>, out: &mut [f32]) -> Result<()> {
    multiply_as(Values::F32(x), DType::F32, m, w, bias.map(Values::F32), ValuesMut::F32(out), By::Rows(1))
}

/// [`multiply`] by some kernel, of inputs whose numbers are all of the dtype `held`: kernels take as many limbs as that
/// needs.
///
/// # Errors
/// As for [`multiply`].
pub(super) fn multiply_as(
    x: Values<'_>,
    held: DType,
    m: usize,
    w: &Matrix<'_>,
    bias: Option<Values<'_>>,
    mut out: ValuesMut<'_>,
    by: By,
) -> Result<()> {
    let _state = FloatState::standard();
    let level = Level::current();
    let (n, k) = (w.rows, w.columns);
    check_sizes(m, w, x.len(), out.len())?;
    let rows = Rows::new(w.packed, n, k, w.format, level)?;
    let bias = match bias {
        Some(bias) if bias.len() != n => {
            return Err(ShapeError::Bias { got: bias.len(), rows: n }.into());
        }
        Some(bias) => widened(bias, level)?,
        None => Vec::new(),
    };
    let out = Outputs::new(&mut out, n, level);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (by, held);
    #[cfg(target_arch = "x86_64")]
    let way = match by {
        By::Rows(many) => route::way(w.format, held, many, n, k, level),
        By::Alike(many) => route::way_alike(w.format, held, many, n, k, level),
    };
    #[cfg(target_arch = "x86_64")]
    if let Some(way) = &way
        && route::multiply_pieces(
            way,
            &rows,
            (&bf16_limbs::Given::new(x, k, k, held), m, held),
            w,
            &Biased::new(out, &bias),
        )?
    {
        return Ok(());
    }
    let each = rows_at_a_time(k);
    #[cfg(target_arch = "x86_64")]
    let each = way.as_ref().map_or(each, |way| way.rows_at_a_time(each));
    for first in (0..m).step_by(each) {
        let count = each.min(m - first);
        let mut x = Inputs::new(x.range(first * k..(first + count) * k), count, k, LANES, level)?;
        x.dtype = held;
        let out = Biased { out: out.after(first), bias: &bias };
        #[cfg(target_arch = "x86_64")]
        if let Some(way) = way.as_ref().filter(|way| way.takes(count)) {
            route::multiply(way, &rows, &x, count, w, &out)?;
            continue;
        }
        #[cfg(target_arch = "x86_64")]
        if level != Level::Scalar && count >= f32_tiles::LEAST_ROWS && k > 0 {
            // SAFETY: the level is one of this processor.
            unsafe { f32_tiles::multiply(&rows, &x, count, n, &out)? };
            continue;
        }
        pool::try_for_each(n.div_ceil(PANEL), count.saturating_mul(n).saturating_mul(k), |panel| {
            let first = panel * PANEL;
            let panel = Panel { rows: &rows, x: x.values(), stride: x.stride, first, count: PANEL.min(n - first) };
            // SAFETY: every panel writes its own columns.
            panel.run(count, |row, values| unsafe { out.write(row, first, values) })
        })?;
    }
    Ok(())
}

/// Rows of `k` inputs that are multiplied in one go: many enough that weights are seldom read again, few enough that work
/// buffers stay small beside inputs and outputs. No row's result depends on it.
pub(super) const fn rows_at_a_time(k: usize) -> usize {
    let fit = HELD_BYTES / k.saturating_mul(BYTES_PER_INPUT).saturating_add(1) / LEAST_ROWS * LEAST_ROWS;
    if fit < LEAST_ROWS {
        LEAST_ROWS
    } else if fit > MOST_ROWS {
        MOST_ROWS
    } else {
        fit
    }
}

/// Outputs to which a bias is added, if there is one.
pub(super) struct Biased<'a> {
    out: Outputs,
    bias: &'a [f32],
}

impl<'a> Biased<'a> {
    /// Outputs with `bias` for each column, which may be empty.
    pub(super) const fn new(out: Outputs, bias: &'a [f32]) -> Self {
        Self { out, bias }
    }

    /// As [`Outputs::write`], biases added to the values first.
    ///
    /// # Safety
    /// As for [`Outputs::write`].
    pub(super) unsafe fn write(&self, row: usize, column: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias.get(column..column + values.len()) {
            values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
        // SAFETY: as the caller promises.
        unsafe { self.out.write(row, column, values) };
    }
}

#[cfg(target_arch = "x86_64")]
impl Biased<'_> {
    /// 32 columns of the rows from `row` on: of the columns from `column` on those with a bit in `lanes`.
    ///
    /// # Safety
    /// The processor must have AVX-512 F; the outputs must have the row and the columns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn lanes(&self, row: usize, column: usize, lanes: u32) -> BiasedLanes {
        let bias = self.bias.get(column..).filter(|bias| !bias.is_empty());
        // SAFETY: a bias has a value for each column; masks keep inside it.
        let bias = bias.map(|bias| unsafe {
            let high = _mm512_maskz_loadu_ps((lanes >> LANES) as u16, bias.as_ptr().wrapping_add(LANES));
            [_mm512_maskz_loadu_ps(lanes as u16, bias.as_ptr()), high]
        });
        BiasedLanes { out: self.out.lanes(row, column, lanes), bias }
    }
}

/// Thirty-two columns of outputs.
#[cfg(target_arch = "x86_64")]
pub(super) struct BiasedLanes {
    pub(super) out: OutputLanes,
    bias: Option<[__m512; 2]>,
}

#[cfg(target_arch = "x86_64")]
impl BiasedLanes {
    /// As [`Biased::write`], to the next row but so many.
    ///
    /// # Safety
    /// As there; the processor must have AVX-512 F and BW, and outputs be of 16 bits where `HALF` says so.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    pub(super) unsafe fn write<const HALF: bool, const FULL: bool>(&self, row: usize, mut values: [__m512; 2]) {
        if let Some([low, high]) = self.bias {
            values = [_mm512_add_ps(values[0], low), _mm512_add_ps(values[1], high)];
        }
        // SAFETY: as the caller promises.
        unsafe { self.out.write::<HALF, FULL>(row, values) };
    }
}

/// Some rows of weights, at most [`PANEL`], and rows of inputs.
pub(super) struct Panel<'a> {
    pub(super) rows: &'a Rows<'a>,
    /// Inputs, `stride` values from one row to the next.
    pub(super) x: &'a [f32],
    pub(super) stride: usize,
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Panel<'_> {
    /// Calls `write` with the products of each of `m` rows of inputs.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn run(&self, m: usize, mut write: impl FnMut(usize, &mut [f32])) -> Result<()> {
        let k = self.rows.k;
        let stride = k.next_multiple_of(LANES);
        // Inputs that stay in the L2 cache meet all rows of weights in turn; few of them leave the weights in the L1 cache.
        let together = if m > SLAB { PANEL } else { ROWS };
        let mut products = zeroed::<[f32; PANEL]>(m)?;
        let mut some = [[0.0; ROWS]; SLAB];
        let mut unpacked = Unpacked::default();
        let mut w = zeroed::<f32>(together * stride)?;
        for first in (0..self.count).step_by(together) {
            let count = together.min(self.count - first);
            for (r, w) in w.chunks_mut(stride.max(1)).enumerate().take(count) {
                self.rows.decode(self.first + first + r, 0..k, w, &mut unpacked);
            }
            for (slab, products) in products.chunks_mut(SLAB).enumerate() {
                let (x, some) = (&self.x[slab * SLAB * self.stride..], &mut some[..products.len()]);
                for four in (0..count).step_by(ROWS) {
                    f32_fma::multiply(self.rows.level(), &w[four * stride..], stride, x, self.stride, stride, some);
                    let columns = first + four..first + count.min(four + ROWS);
                    for (products, some) in products.iter_mut().zip(&*some) {
                        products[columns.clone()].copy_from_slice(&some[..columns.len()]);
                    }
                }
            }
        }
        for (row, products) in products.iter_mut().enumerate() {
            write(row, &mut products[..self.count]);
        }
        Ok(())
    }
}
