//! Products for many rows of inputs on AMX: weights and inputs as sums of bfloat16 limbs.
//!
//! A float32 is the sum of three bfloat16 limbs: its upper eight significant bits, the next eight, the last eight. Decoded
//! weights have one limb where code and scale have up to eight significant bits together, two up to sixteen, otherwise
//! three. Inputs of dtype bfloat16 have one limb, float16 two, float32 three. Products of limbs below the 24th bit are left
//! out. Accumulators are float32, columns are added in order, and subnormal numbers count as zero.

use std::arch::x86_64::*;
use std::ops::Range;

use super::bf16_codes_vbmi::{Codes, Groups, Place, Table};
use super::int8_limbs_vnni::is_moderate;
use super::output::Inputs;
use crate::codec::grid::{Grid, Integers};
use crate::codec::rows::{Rows, Unpacked};
use crate::codec::{DType, zeroed};
use crate::error::Result;
use crate::format::{Format, Granularity, ScaleType};
use crate::pool;
use crate::simd::Line;
use crate::simd::amx::products::{Factors, FloatSums, Step};
use crate::simd::amx::{LINE, ROWS, Session};
use crate::simd::transpose::transpose;

/// Rows of weights that are multiplied at a time: two panels.
const PAIR: usize = 2 * ROWS;
/// Rows of weights in one unit of work: they share tiles of inputs in the L1 cache.
pub(super) const UNIT: usize = PAIR;
/// Columns of a tile.
pub(super) const STEP: usize = 32;
/// Columns decoded at a time by the codec, about.
const COLUMNS: usize = 512;
/// Columns unpacked at a time: all limbs of 32 rows of inputs stay in the L1 cache.
const FEW_COLUMNS: usize = 64;
/// Columns after which accumulators are added to a total and restart, to bound the rounding error of long rows.
const FOLD: usize = 512;
/// Limbs of a float32.
pub(super) const MOST: usize = 3;
/// Bytes of a tile.
pub(super) const TILE: usize = ROWS * LINE;
/// Columns of a row whose absmax is checked together.
const CHUNK: usize = 256;
/// Largest magnitudes of a chunk of inputs, as the bits of float32, which neither overflow nor vanish when multiplied with
/// those of decoded weights: even the third limb of a product is a normal number.
const INPUTS: Range<u32> = (127 - 60) << 23..(127 + 60) << 23;
/// The same of decoded weights.
const WEIGHTS: Range<u32> = (127 - 36) << 23..(127 + 60) << 23;

/// Limbs that an input of a dtype has.
const fn input_limbs(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 3,
        DType::F16 => 2,
        DType::BF16 => 1,
    }
}

/// The dtype that has as many limbs as the numbers of a format.
pub(super) fn held_by(format: Format) -> DType {
    let row = matches!(format.granularity(), Granularity::Channel | Granularity::Tensor);
    match weight_limbs(format) {
        _ if row && format.scale_type() != Some(ScaleType::I8) || format.has_levels() => DType::F32,
        1 => DType::BF16,
        2 => DType::F16,
        _ => DType::F32,
    }
}

/// Limbs that decoded weights of a format have, a factor of the row left out.
fn weight_limbs(format: Format) -> usize {
    let width = format.width() as usize;
    let number = match Grid::of(format) {
        Grid::Integer { layout: Integers::Offset, .. } => width,
        Grid::Integer { lo: 0, .. } => width,
        Grid::Integer { .. } => width - 1,
        Grid::Float(float) => float.mantissa as usize + 1,
        Grid::Levels(1) => 1,
        Grid::Book(_) | Grid::Levels(_) => 24,
    };
    let scale = match (format.granularity(), format.scale_type()) {
        (Granularity::Block(_), Some(ScaleType::F16)) => 11,
        (Granularity::Block(_), Some(ScaleType::E4M3)) => 4,
        (Granularity::Block(_), Some(ScaleType::F32)) => 24,
        _ => 0,
    };
    (number + scale).div_ceil(8).min(MOST)
}

/// Inputs as tiles: by pass over the weights, then 32 columns, then limb, then sixteen rows.
struct Tiled {
    lines: Vec<Line<u32, 16>>,
    limbs: usize,
    /// Tiles of 16 rows of inputs in a pass: 1 or 2.
    across: usize,
    /// Lines of 32 columns in a pass.
    step: usize,
    /// Lines of a pass.
    pass: usize,
    /// By sixteen rows, a bit for each whose magnitudes are not extreme. The others are zeros here.
    moderate: Vec<u16>,
}

impl Tiled {
    /// Arranges `m` rows, those of extreme magnitudes as zeros.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW.
    unsafe fn new(x: &Inputs<'_>, m: usize, k: usize, dtype: DType) -> Result<Self> {
        let moderate = pool::map(m.div_ceil(ROWS), size_of_val(x.values()), |tile| {
            let rows = x.values()[tile * ROWS * x.stride..].chunks(x.stride).take(ROWS);
            // SAFETY: as the caller promises.
            rows.enumerate().fold(0, |bits, (i, row)| bits | u16::from(unsafe { inside(row, &INPUTS) }) << i)
        })?;
        let limbs = input_limbs(dtype);
        let across = if m <= ROWS { 1 } else { 2 };
        let (steps, passes) = (k.div_ceil(STEP), m.div_ceil(ROWS * across));
        let step = limbs * across * ROWS;
        let lines = zeroed(passes * steps * step)?;
        let mut tiled = Self { lines, limbs, across, step, pass: steps * step, moderate };
        let moderate = &tiled.moderate;
        for (pass, lines) in tiled.lines.chunks_mut(tiled.pass.max(1)).enumerate() {
            pool::for_each_chunk(lines, step, |i, lines| {
                for tile in 0..across {
                    let tile_of_all = pass * across + tile;
                    let first = tile_of_all * ROWS;
                    let Some(&kept) = moderate.get(tile_of_all) else { continue };
                    for limb in 0..limbs {
                        let to = &mut lines[(limb * across + tile) * ROWS..][..ROWS];
                        // SAFETY: as the caller promises.
                        unsafe { arrange(x, first..m.min(first + ROWS), kept, i * STEP, limb, to) };
                    }
                }
            })?;
        }
        Ok(tiled)
    }

    /// True where a row of inputs is here.
    fn has(&self, row: usize) -> bool {
        self.moderate.get(row / ROWS).is_some_and(|bits| bits >> (row % ROWS) & 1 == 1)
    }
}

/// True where the largest magnitude of each [`CHUNK`] is zero or inside the bounds.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn inside(row: &[f32], bounds: &Range<u32>) -> bool {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    for chunk in row.chunks(CHUNK) {
        let (vectors, rest) = chunk.as_chunks::<16>();
        let mut most = _mm512_setzero_si512();
        for v in vectors {
            // SAFETY: every vector is read whole.
            let bits = unsafe { _mm512_loadu_si512(v.as_ptr().cast()) };
            most = _mm512_max_epu32(most, _mm512_and_si512(bits, magnitude));
        }
        let most = rest.iter().fold(_mm512_reduce_max_epu32(most), |most, v| most.max(v.to_bits() & 0x7fff_ffff));
        if most != 0 && !bounds.contains(&most) {
            return false;
        }
    }
    true
}

/// One limb of 32 columns, from `column` on, of up to sixteen rows, turned: a line holds two columns of all rows, zeros
/// for rows without a bit in `kept`.
///
/// # Safety
/// The processor must have AVX-512 F and BW; `x` must be of whole vectors of sixteen, and `column` inside its rows.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn arrange(x: &Inputs<'_>, rows: Range<usize>, kept: u16, column: usize, limb: usize, to: &mut [Line<u32, 16>]) {
    let mut lines = [_mm512_setzero_ps(); ROWS];
    for (i, (line, row)) in lines.iter_mut().zip(rows).enumerate() {
        if kept >> i & 1 == 0 {
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
        for (to, line) in to.iter_mut().zip(transpose(lines)) {
            _mm512_store_si512(to.0.as_mut_ptr().cast(), _mm512_castps_si512(line));
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

/// The upper halves of 32 values.
///
/// # Safety
/// The processor must have AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn upper_halves(low: __m512, high: __m512) -> __m512i {
    let low = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(low)));
    let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(high)));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Adds products to sums, each row of weights times its scale.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
fn scale(products: &FloatSums, scales: &[f32], across: usize, sums: &mut FloatSums) {
    for ((products, sums), scales) in products.iter().zip(sums).zip(scales[..PAIR].chunks(ROWS)) {
        for (products, sums) in products.iter().zip(sums).take(across) {
            for ((product, sum), scale) in products.iter().zip(sums).zip(scales) {
                // SAFETY: lines are aligned and hold sixteen values.
                unsafe {
                    let (product, old) = (_mm512_load_ps(product.0.as_ptr()), _mm512_load_ps(sum.0.as_ptr()));
                    _mm512_store_ps(sum.0.as_mut_ptr(), _mm512_fmadd_ps(product, _mm512_set1_ps(*scale), old));
                }
            }
        }
    }
}

/// Values cut to what a bfloat16 holds.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn upper(v: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0xffff_0000_u32.cast_signed())))
}

/// A product of packed weights with many rows of inputs.
pub(super) struct Product<'a> {
    scaled: &'a Rows<'a>,
    /// The same rows without the factor that is common to a whole row.
    rows: Rows<'a>,
    x: Tiled,
    /// Table lookup of the same values, where the format has a table.
    codes: Option<Codes<'a>>,
    m: usize,
    n: usize,
    limbs: usize,
    /// Columns at a time.
    each: usize,
}

/// Scratch memory of one thread.
pub(super) struct Scratch {
    decoded: Vec<f32>,
    unpacked: Unpacked,
    /// Tiles of weights by panel, 32 columns, limb.
    tiles: Vec<Line<u8, LINE>>,
    sums: Vec<[FloatSums; UNIT / PAIR]>,
    /// Those of the last [`FOLD`] columns.
    running: Vec<[FloatSums; UNIT / PAIR]>,
    groups: Groups,
    /// Accumulators before scaling.
    products: [FloatSums; 2],
}

impl<'a> Product<'a> {
    /// Arranges inputs, but for rows of extreme magnitudes.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW.
    pub(super) unsafe fn new(
        format: Format,
        table: Option<&'a Table>,
        rows: &'a Rows<'a>,
        x: &Inputs<'_>,
        (m, n): (usize, usize),
    ) -> Result<Self> {
        // SAFETY: as the caller promises.
        let x = unsafe { Tiled::new(x, m, rows.k, x.dtype)? };
        let codes = table.map(|table| Codes::new(table, rows));
        let each = if codes.is_some() { FEW_COLUMNS } else { rows.cut(COLUMNS) };
        let decoded = weight_limbs(format);
        let limbs = table.map_or(decoded, |table| table.limbs(decoded));
        Ok(Self { scaled: rows, rows: rows.unscaled(), x, codes, m, n, limbs, each })
    }

    /// The rows of inputs of extreme magnitudes, which are left to others.
    pub(super) fn left(&self) -> impl Iterator<Item = usize> {
        (0..self.m).filter(|&row| !self.x.has(row))
    }

    /// Room for one thread's work.
    pub(super) fn scratch(&self) -> Result<Scratch> {
        let steps = self.each.min(self.rows.k).div_ceil(STEP);
        let passes = self.m.div_ceil(ROWS * self.x.across);
        Ok(Scratch {
            decoded: zeroed(steps * STEP)?,
            unpacked: Unpacked::default(),
            tiles: zeroed(UNIT / ROWS * steps * self.limbs * ROWS)?,
            sums: zeroed(passes)?,
            running: zeroed(passes)?,
            groups: Groups::default(),
            products: [FloatSums::default(); 2],
        })
    }

    /// Calls `write` with each row of inputs but those [`Self::left`], and its products with [`UNIT`] rows of weights from
    /// `first` on, or as many as there are; false, with nothing written, where the magnitude of weights is extreme.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI and AMX; `scratch` must be made by [`Self::scratch`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(super) unsafe fn run(
        &self,
        session: &Session,
        first: usize,
        scratch: &mut Scratch,
        mut write: impl FnMut(usize, usize, &mut [f32]),
    ) -> Result<bool> {
        let count = UNIT.min(self.n - first);
        let mut factors = [0.0f32; UNIT];
        for (r, factor) in factors.iter_mut().enumerate().take(count) {
            *factor = match &self.codes {
                Some(codes) => codes.factor(first + r),
                None => self.scaled.row_factor(first + r),
            };
            if !is_moderate(*factor) {
                return Ok(false);
            }
        }
        let Scratch { decoded, unpacked, tiles, sums, running, groups, products } = scratch;
        sums.fill([FloatSums::default(); UNIT / PAIR]);
        if let Some(codes) = &self.codes {
            // SAFETY: as the caller promises.
            if !unsafe { codes.read(first, count, UNIT, groups)? } {
                return Ok(false);
            }
        }
        // Columns whose sums are scaled together, and the steps they take.
        let apart = self.codes.as_ref().filter(|codes| codes.table.scaled_after()).map(|codes| codes.table.group);
        let mut list = Vec::new();
        for start in (0..self.rows.k).step_by(self.each) {
            let columns = start..self.rows.k.min(start + self.each);
            let (steps, columns_end) = (columns.len().div_ceil(STEP), columns.end);
            let panel = steps * self.limbs * TILE;
            let base = tiles.as_mut_ptr().cast::<u8>();
            if let Some(codes) = &self.codes {
                let place = Place { first, count, stride: UNIT, columns, limbs: self.limbs, panel };
                // SAFETY: as the caller promises; there are tiles for all panels.
                if !unsafe { codes.put(&place, groups, base) } {
                    return Ok(false);
                }
            } else {
                for r in 0..count {
                    self.rows.decode(first + r, columns.clone(), decoded, unpacked);
                    decoded[columns.len()..steps * STEP].fill(0.0);
                    // SAFETY: as above.
                    unsafe {
                        if !inside(&decoded[..steps * STEP], &WEIGHTS) {
                            return Ok(false);
                        }
                        self.put(&decoded[..steps * STEP], base.add(r / ROWS * panel + r % ROWS * LINE));
                    }
                }
            }
            if list.len() != steps * self.limbs {
                list = self.steps(steps);
            }
            for (pass, (sums, running)) in sums.iter_mut().zip(&mut *running).enumerate() {
                let inputs = &self.x.lines[pass * self.x.pass + start / STEP * self.x.step..];
                let pairs = sums.iter_mut().zip(running).enumerate();
                for (pair, (sums, running)) in pairs.take(count.div_ceil(PAIR)) {
                    let factors = Factors {
                        steps: &list,
                        weights: tiles.as_ptr().cast::<u8>().wrapping_add(2 * pair * panel),
                        panel,
                        inputs: inputs.as_ptr().cast(),
                        across: self.x.across,
                    };
                    // SAFETY: the steps name tiles of the weights just written and of the inputs of their columns.
                    unsafe {
                        match apart {
                            None => {
                                session.add_products(&factors, start.is_multiple_of(FOLD), running);
                                if (start + self.each).is_multiple_of(FOLD) || columns_end == self.rows.k {
                                    scale(running, &[1.0; PAIR], self.x.across, sums);
                                }
                            }
                            Some(group) => {
                                let scales = |at: usize| &groups.scales[(start / group + at) * UNIT + pair * PAIR..];
                                let steps = group.min(self.each) / STEP;
                                self.add_scaled(session, &factors, steps, scales, products, sums);
                            }
                        }
                    }
                }
            }
        }
        for (pass, sums) in sums.iter().enumerate() {
            for (panel, sums) in sums.as_flattened().iter().enumerate().take(count.div_ceil(ROWS)) {
                for (tile, sums) in sums.iter().enumerate().take(self.x.across) {
                    let row = (pass * self.x.across + tile) * ROWS;
                    let (start, many) = (panel * ROWS, ROWS.min(count - panel * ROWS));
                    // SAFETY: lines are aligned and hold sixteen values.
                    unsafe {
                        let mut values = [_mm512_setzero_ps(); ROWS];
                        for ((value, line), factor) in values.iter_mut().zip(sums).zip(&factors[start..]) {
                            *value = _mm512_mul_ps(_mm512_load_ps(line.0.as_ptr()), _mm512_set1_ps(*factor));
                        }
                        let values = transpose(values);
                        for (i, values) in values.iter().enumerate().take(self.m.saturating_sub(row)) {
                            if !self.x.has(row + i) {
                                continue;
                            }
                            let mut line = Line([0.0f32; 16]);
                            _mm512_store_ps(line.0.as_mut_ptr(), *values);
                            write(row + i, first + start, &mut line.0[..many]);
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// Adds products of groups of `steps` steps, each times its scales.
    ///
    /// # Safety
    /// As for [`Session::add_products`]; the processor must have AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn add_scaled<'s>(
        &self,
        session: &Session,
        factors: &Factors<'_>,
        steps: usize,
        scales: impl Fn(usize) -> &'s [f32],
        products: &mut [FloatSums; 2],
        sums: &mut FloatSums,
    ) {
        // The previous accumulators are scaled while AMX multiplies the next.
        let groups = factors.steps.chunks(steps * self.limbs);
        let last = groups.len() - 1;
        for (i, steps) in groups.enumerate() {
            // SAFETY: as the caller promises.
            unsafe { session.add_products(&Factors { steps, ..*factors }, true, &mut products[i % 2]) };
            if i > 0 {
                scale(&products[(i - 1) % 2], scales(i - 1), self.x.across, sums);
            }
        }
        scale(&products[last % 2], scales(last), self.x.across, sums);
    }

    /// Writes the limbs of a row of weights to a row of its tiles.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW; `to` must be a row of the first of as many tiles as the row has limbs of 32
    /// columns, which begin a cache line.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn put(&self, row: &[f32], mut to: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe {
            for columns in row.as_chunks::<STEP>().0 {
                let mut low = _mm512_loadu_ps(columns.as_ptr());
                let mut high = _mm512_loadu_ps(columns.as_ptr().add(16));
                for _ in 0..self.limbs {
                    _mm512_store_si512(to.cast(), upper_halves(low, high));
                    low = _mm512_sub_ps(low, upper(low));
                    high = _mm512_sub_ps(high, upper(high));
                    to = to.wrapping_add(TILE); // after the last, behind the tiles
                }
            }
        }
    }

    /// Pairs of limbs that are multiplied: those whose indices add up to less than three.
    fn steps(&self, steps: usize) -> Vec<Step> {
        let all = (0..steps).flat_map(|step| (0..self.limbs).map(move |limb| (step, limb)));
        let list = all.map(|(step, limb)| Step {
            weights: (step * self.limbs + limb) * TILE,
            inputs: step * self.x.step * LINE,
            limbs: self.x.limbs.min(MOST - limb),
        });
        list.collect()
    }
}
