//! Inputs as tiles of bfloat16 limbs.

use std::arch::x86_64::*;
use std::ops::Range;

use super::weights::{self, Pieces, Weights};
use super::{STEP, UNIT, inside, upper, upper_halves};
use crate::codec::{DType, zeroed};
use crate::error::Result;
use crate::linear::output::Inputs;
use crate::pool;
use crate::simd::tiles::{LINE, ROWS};
use crate::simd::transpose::transpose;
use crate::simd::{Floats, Line};

/// Largest magnitudes of a chunk of inputs, as the bits of float32, which neither overflow nor vanish when multiplied with
/// those of decoded weights: even the third limb of a product is a normal number.
pub(super) const MODERATE: Range<u32> = (127 - 60) << 23..(127 + 60) << 23;

/// Limbs that an input of a dtype has.
pub(super) const fn input_limbs(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 3,
        DType::F16 => 2,
        DType::BF16 => 1,
    }
}

/// Inputs as tiles: by pass over the weights, then 32 columns, then limb, then sixteen rows.
pub(super) struct Tiled {
    pub(super) lines: Vec<Line<u32, 16>>,
    pub(super) limbs: usize,
    /// Tiles of 16 rows of inputs in a pass: 1 or 2.
    pub(super) across: usize,
    /// Lines of 32 columns in a pass.
    pub(super) step: usize,
    /// Lines of a pass.
    pub(super) pass: usize,
    /// By sixteen rows, a bit for each whose magnitudes are not extreme. The others are zeros here.
    moderate: Vec<u16>,
    /// What the numbers of each row count; nothing where they count themselves.
    pub(super) factors: Vec<f32>,
    /// By pass, then group and tile, what numbers of a group count besides, if that is not all the same.
    pub(super) scales: Vec<Floats>,
    /// Columns of a group.
    pub(super) group: Option<usize>,
    /// Groups of a row.
    groups: usize,
}

impl Tiled {
    /// Arranges `m` rows, those of extreme magnitudes as zeros.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW.
    pub(super) unsafe fn new(x: &Inputs<'_>, m: usize, k: usize, dtype: DType) -> Result<Self> {
        let moderate = pool::map(m.div_ceil(ROWS), size_of_val(x.values()), |tile| {
            let rows = x.values()[tile * ROWS * x.stride..].chunks(x.stride).take(ROWS);
            // SAFETY: as the caller promises.
            rows.enumerate().fold(0, |bits, (i, row)| bits | u16::from(unsafe { inside(row, &MODERATE) }) << i)
        })?;
        let limbs = input_limbs(dtype);
        let across = if m <= ROWS { 1 } else { 2 };
        let (steps, passes) = (k.div_ceil(STEP), m.div_ceil(ROWS * across));
        let step = limbs * across * ROWS;
        let lines = zeroed(passes * steps * step)?;
        let (factors, scales, pass) = (Vec::new(), Vec::new(), steps * step);
        let mut tiled = Self { lines, limbs, across, step, pass, moderate, factors, scales, group: None, groups: 0 };
        let moderate = &tiled.moderate;
        for (pass, lines) in tiled.lines.chunks_mut(tiled.pass.max(1)).enumerate() {
            pool::for_each_chunk(lines, step, |i, lines| {
                for tile in 0..across {
                    let tile_of_all = pass * across + tile;
                    let first = tile_of_all * ROWS;
                    let Some(&moderate_rows) = moderate.get(tile_of_all) else { continue };
                    for limb in 0..limbs {
                        let to = &mut lines[(limb * across + tile) * ROWS..][..ROWS];
                        // SAFETY: as the caller promises.
                        unsafe { arrange(x, first..m.min(first + ROWS), moderate_rows, i * STEP, limb, to) };
                    }
                }
            })?;
        }
        Ok(tiled)
    }

    /// Arranges the codes of rows that were encoded, and their scales; not those of extreme scales, and of rows that `skip`
    /// tells.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(super) unsafe fn encoded(x: &Weights<'_>, skip: impl Fn(usize) -> bool) -> Result<Self> {
        let &Weights { n: m, k, limbs, chunk_columns, .. } = x;
        let (steps, across) = (k.div_ceil(STEP), if m <= ROWS { 1 } else { 2 });
        let (passes, groups, step) = (m.div_ceil(ROWS * across), x.pieces().groups(k), limbs * across * ROWS);
        let group = if let Pieces::Scaled { group, .. } = x.pieces() { Some(group) } else { None };
        let mut tiled = Self {
            lines: zeroed(passes * steps * step)?,
            limbs,
            across,
            step,
            pass: steps * step,
            moderate: zeroed(m.div_ceil(ROWS))?,
            factors: zeroed(m)?,
            scales: zeroed(passes * groups * across)?,
            group,
            groups,
        };
        let (mut scratch, mut tiles) = (weights::Scratch::default(), zeroed(x.lines())?);
        // By 32 columns and limb, sixteen rows as they lie.
        let mut rows = zeroed::<Line<u8, LINE>>(steps * limbs * ROWS)?;
        for (at, moderate) in tiled.moderate.iter_mut().enumerate() {
            let (pass, tile) = (at / across, at % across);
            rows.fill(Line::default());
            for (r, row) in (at * ROWS..m.min((at + 1) * ROWS)).enumerate() {
                // SAFETY: as the caller promises.
                let factors = if skip(row) { None } else { unsafe { x.begin(row, 1, &mut scratch)? } };
                let Some([factor, ..]) = factors else { continue };
                let mut fits = true;
                for start in (0..k).step_by(chunk_columns) {
                    let columns = start..k.min(start + chunk_columns);
                    let many = columns.len().div_ceil(STEP) * limbs;
                    // SAFETY: as the caller promises; the row is that of `begin`.
                    fits &= unsafe { x.put(row, 1, columns, &mut scratch, &mut tiles) };
                    let to = rows[start / STEP * limbs * ROWS..].chunks_mut(ROWS);
                    to.zip(tiles.chunks(ROWS).take(many)).for_each(|(to, from)| to[r] = from[0]);
                }
                if !fits {
                    rows.iter_mut().skip(r).step_by(ROWS).for_each(|line| *line = Line::default());
                    continue;
                }
                *moderate |= 1 << r;
                tiled.factors[row] = factor;
                let scales = tiled.scales[pass * groups * across..].iter_mut().skip(tile).step_by(across).take(groups);
                scales.zip(scratch.groups.scales.chunks(UNIT)).for_each(|(to, from)| to.0[r] = from[0]);
            }
            for (i, rows) in rows.chunks(ROWS).enumerate() {
                let to = pass * tiled.pass + i / limbs * step + (i % limbs * across + tile) * ROWS;
                // SAFETY: lines are aligned and hold sixteen pairs of columns.
                unsafe {
                    let lines = std::array::from_fn(|r| _mm512_load_ps(rows[r].0.as_ptr().cast()));
                    for (to, line) in tiled.lines[to..to + ROWS].iter_mut().zip(&transpose(lines)) {
                        _mm512_store_ps(to.0.as_mut_ptr().cast(), *line);
                    }
                }
            }
        }
        Ok(tiled)
    }

    /// What numbers of a pass count in a group, by tile.
    pub(super) fn scales(&self, pass: usize, group: usize) -> Option<&[Floats]> {
        let all = self.scales.get((pass * self.groups + group) * self.across..)?;
        all.get(..self.across)
    }

    /// True where a row of inputs is here.
    pub(super) fn has(&self, row: usize) -> bool {
        self.moderate.get(row / ROWS).is_some_and(|bits| bits >> (row % ROWS) & 1 == 1)
    }
}

/// One limb of 32 columns, from `column` on, of up to sixteen rows, turned: a line holds two columns of all rows, zeros
/// for rows without a bit in `kept`.
///
/// # Safety
/// The processor must have AVX-512 F and BW; `x` must be of whole vectors of sixteen, and `column` inside its rows.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn arrange(
    x: &Inputs<'_>,
    rows: Range<usize>,
    moderate_rows: u16,
    column: usize,
    limb: usize,
    to: &mut [Line<u32, 16>],
) {
    let mut lines = [_mm512_setzero_ps(); ROWS];
    for (i, (line, row)) in lines.iter_mut().zip(rows).enumerate() {
        if moderate_rows >> i & 1 == 0 {
            continue;
        }
        let row = &x.values()[row * x.stride..][..x.stride];
        // SAFETY: rows are whole vectors of sixteen; the second half of the last line may be missing.
        unsafe {
            let at = row.as_ptr().add(column);
            let low = _mm512_loadu_ps(at);
            let high = if column + 16 < x.stride { _mm512_loadu_ps(at.add(16)) } else { _mm512_setzero_ps() };
            *line = _mm512_castsi512_ps(pack(low, high, limb));
        }
    }
    // SAFETY: as the caller promises; lines are aligned.
    unsafe {
        for (to, line) in to.iter_mut().zip(&transpose(lines)) {
            _mm512_store_si512(to.0.as_mut_ptr().cast(), _mm512_castps_si512(*line));
        }
    }
}

/// A limb of 32 values as bfloat16.
///
/// # Safety
/// The processor must have AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack(mut low: __m512, mut high: __m512, limb: usize) -> __m512i {
    for _ in 0..limb {
        low = _mm512_sub_ps(low, upper(low));
        high = _mm512_sub_ps(high, upper(high));
    }
    upper_halves(low, high)
}
