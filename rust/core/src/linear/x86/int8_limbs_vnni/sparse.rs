//! Products of sparse codes for a few rows of inputs: a word of the bitmap expands to four columns of sixteen rows of
//! weights, a lane for each row, so that the lanes of an accumulator are sums of a whole group.

use std::arch::x86_64::*;

use super::MAX_LIMBS;
use super::inputs::FixedInputs;
use super::plan::{MAX_WEIGHT_LIMBS, Plan, Scale};
use super::scales::{LOW, Scales, is_moderate};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::linear::sparse::SparseMatrix;
use crate::simd::amx::LINE;
use crate::simd::transpose::transpose;
use crate::simd::{Floats, Level, Line};
use crate::sparse::{PANEL, QUAD, expanded_word, stream};

/// Rows of inputs multiplied with expanded weights while those are in registers.
const UNROLL_INPUTS: usize = 4;

/// Prefetch distances: bytes of codes, and words of the bitmap.
const CODES_AHEAD: usize = 4096;
const WORDS_AHEAD: usize = 128;

/// How codes become bytes without a sign.
const BYTES: u8 = 0;
const NARROW: u8 = 1;
const WIDE: u8 = 2;

/// One row of inputs.
struct Input {
    row: usize,
    limbs: usize,
    /// By group and limb of the products, initial values of the accumulators.
    starts: Vec<i32>,
    /// By group, the scale of the accumulators.
    units: Vec<f32>,
    /// The smallest of these but 0.
    least: f32,
}

/// The product of sparse weights with some rows of inputs.
pub(in crate::linear) struct SparseDot<'a> {
    plan: &'a Plan,
    matrix: &'a SparseMatrix<'a>,
    rows: &'a Rows<'a>,
    fixed: &'a FixedInputs,
    scales: Scales<'a>,
    /// Quads of a group. A longer stored group is several of these.
    each: usize,
    inputs: Vec<Input>,
    /// All rows of inputs, a bit each, and those that have no fixed-point form.
    all: u32,
    without: u32,
}

/// Scratch memory of one thread.
#[derive(Default)]
pub(in crate::linear) struct Scratch {
    codes: Vec<u8>,
    /// Scales of all rows of the panel, row by row, and by group.
    by_row: Vec<f32>,
    by_group: Vec<Floats>,
}

impl<'a> SparseDot<'a> {
    /// Prepares the rows of `x`; `rows` are those of the matrix, without codes.
    pub(in crate::linear) fn new(
        plan: &'a Plan,
        matrix: &'a SparseMatrix<'a>,
        rows: &'a Rows<'a>,
        fixed: &'a FixedInputs,
    ) -> Result<Self> {
        let scales = Scales::new(plan.scale, rows);
        let raised = crate::float::exp2(-plan.shift - scales.raised()) as f32;
        let group = plan.group.min(LINE);
        let (mut inputs, mut without) = (Vec::new(), 0);
        for row in 0..fixed.rows {
            match Input::new(plan, fixed, row, group, raised)? {
                Some(input) => inputs.push(input),
                None => without |= 1 << row,
            }
        }
        inputs.sort_by_key(|input| input.limbs);
        let all = (0..fixed.rows).fold(0, |all, row| all | 1 << row);
        Ok(Self { plan, matrix, rows, fixed, scales, each: group / QUAD, inputs, all, without })
    }

    /// Calls `write` with each row of inputs and its products with the rows of a panel. Returns a bit for each row of inputs
    /// that is left to others: all where scales are out of range, those without a fixed-point form, and those so small that
    /// their products with the scales could vanish.
    ///
    /// # Errors
    /// Where the panel has more codes than there are, or memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, VBMI, VBMI2 and VNNI, and POPCNT; the matrix must be checked and have the panel.
    pub(in crate::linear) unsafe fn run(
        &self,
        panel: usize,
        scratch: &mut Scratch,
        mut write: impl FnMut(usize, &mut [f32]),
    ) -> Result<u32> {
        let shape = self.matrix.shape;
        let quads = shape.quads();
        let (first, count) = (panel * PANEL, PANEL.min(shape.rows - panel * PANEL));
        let words = &self.matrix.sparse.bitmap[panel * quads..][..quads];
        // SAFETY: as the caller promises.
        let Some((steps, least)) = (unsafe { self.scales(first, count, words, scratch)? }) else {
            return Ok(self.all);
        };
        let Scratch { codes, by_group, .. } = scratch;
        let stream = stream(Level::Avx512, &self.matrix.sparse, self.plan.width, panel, words, codes)?;
        let mut left = self.without;
        let mut rest = self.inputs.as_slice();
        while let Some(next) = rest.first() {
            let alike = rest.iter().take_while(|input| input.limbs == next.limbs).count();
            let together = if next.limbs == MAX_LIMBS { 1 } else { alike.min(UNROLL_INPUTS) };
            let (chunk, after) = rest.split_at(together);
            rest = after;
            // SAFETY: as the caller promises.
            let mut products = unsafe {
                match (next.limbs, together) {
                    (3, 1) => self.product::<3, 1>(stream, words, chunk, by_group),
                    (3, 2) => self.product::<3, 2>(stream, words, chunk, by_group),
                    (3, 3) => self.product::<3, 3>(stream, words, chunk, by_group),
                    (3, _) => self.product::<3, 4>(stream, words, chunk, by_group),
                    _ => self.product::<4, 1>(stream, words, chunk, by_group),
                }
            };
            for (input, products) in chunk.iter().zip(&mut products) {
                if least * input.least < f32::MIN_POSITIVE {
                    left |= 1 << input.row;
                    continue;
                }
                products.0.iter_mut().zip(steps).for_each(|(product, step)| *product *= step);
                write(input.row, &mut products.0[..count]);
            }
        }
        Ok(left)
    }

    /// Scales of a panel by group, in `scratch`; returns the factors of its rows, and the smallest magnitude of a scale but
    /// 0. `None` where one is out of range.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scales(
        &self,
        first: usize,
        count: usize,
        words: &[u64],
        scratch: &mut Scratch,
    ) -> Result<Option<([f32; PANEL], f32)>> {
        let mut steps = [1.0; PANEL];
        if self.plan.scale == Scale::Row {
            for (row, step) in steps.iter_mut().enumerate().take(count) {
                *step = self.rows.row_step(first + row) as f32;
                if !is_moderate(*step) {
                    return Ok(None);
                }
            }
            if scratch.by_group.is_empty() {
                scratch.by_group = zeroed(1)?;
                scratch.by_group[0] = Line([1.0; PANEL]);
            }
            return Ok(Some((steps, f32::INFINITY)));
        }
        let groups = self.scales.groups;
        let stride = groups.next_multiple_of(16);
        if scratch.by_group.len() != stride {
            scratch.by_row = zeroed(PANEL * stride)?;
            scratch.by_group = zeroed(stride)?;
        }
        let mut least = _mm512_set1_ps(f32::INFINITY);
        for (row, to) in scratch.by_row.chunks_mut(stride.max(1)).enumerate() {
            if row >= count {
                to.fill(0.0);
                continue;
            }
            // SAFETY: as the caller promises; the row has as many scales.
            if !unsafe { self.scales.read(first + row, 0, &mut to[..groups], &mut least) } {
                return Ok(None);
            }
        }
        let mut least = _mm512_reduce_min_ps(least);
        if self.scales.low(least) {
            // Scales of groups of zeros become 0, so that they do not look like weights that would vanish.
            least = f32::INFINITY;
            for (row, scales) in scratch.by_row.chunks_mut(stride).enumerate().take(count) {
                let quad = 15u64 << (QUAD * row);
                for (scale, words) in scales.iter_mut().zip(words.chunks(self.plan.group / QUAD)) {
                    if *scale < LOW && words.iter().all(|word| word & quad == 0) {
                        *scale = 0.0;
                    } else {
                        least = least.min(*scale);
                    }
                }
            }
        }
        for at in (0..stride).step_by(16) {
            let rows: [&[f32; 16]; PANEL] =
                std::array::from_fn(|row| scratch.by_row[row * stride + at..].first_chunk().unwrap_or(&[0.0; 16]));
            // SAFETY: arrays of sixteen values are whole vectors.
            let columns = unsafe { transpose(rows.map(|row| _mm512_loadu_ps(row.as_ptr()))) };
            for (column, to) in columns.into_iter().zip(&mut scratch.by_group[at..at + 16]) {
                // SAFETY: a line is a whole aligned vector.
                unsafe { _mm512_store_ps(to.0.as_mut_ptr(), column) };
            }
        }
        Ok(Some((steps, least)))
    }

    /// [`Self::sum`] for the weights' own way and number of limbs.
    ///
    /// # Safety
    /// As for [`Self::sum`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,popcnt")]
    unsafe fn product<const LIMBS: usize, const INPUTS: usize>(
        &self,
        stream: &[u8],
        words: &[u64],
        chunk: &[Input],
        scales: &[Floats],
    ) -> [Floats; UNROLL_INPUTS] {
        let x: [&Input; INPUTS] = std::array::from_fn(|i| &chunk[i]);
        // SAFETY: as the caller promises.
        unsafe {
            match (self.plan.width, self.plan.limbs) {
                _ if self.plan.bytes => self.sum::<LIMBS, INPUTS, BYTES, 1>(stream, words, x, scales),
                (1..=6, 1) => self.sum::<LIMBS, INPUTS, NARROW, 1>(stream, words, x, scales),
                (1..=6, 2) => self.sum::<LIMBS, INPUTS, NARROW, 2>(stream, words, x, scales),
                (1..=6, _) => self.sum::<LIMBS, INPUTS, NARROW, 3>(stream, words, x, scales),
                (_, 1) => self.sum::<LIMBS, INPUTS, WIDE, 1>(stream, words, x, scales),
                (_, 2) => self.sum::<LIMBS, INPUTS, WIDE, 2>(stream, words, x, scales),
                _ => self.sum::<LIMBS, INPUTS, WIDE, 3>(stream, words, x, scales),
            }
        }
    }

    /// Sums of products of the sixteen rows of weights of a panel, of `EACH` limbs, and `INPUTS` rows of inputs of `LIMBS`.
    /// What is computed of a row of inputs does not depend on how many there are.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, VBMI, VBMI2 and VNNI, and POPCNT.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,popcnt")]
    #[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
    unsafe fn sum<const LIMBS: usize, const INPUTS: usize, const WAY: u8, const EACH: usize>(
        &self,
        stream: &[u8],
        words: &[u64],
        x: [&Input; INPUTS],
        scales: &[Floats],
    ) -> [Floats; UNROLL_INPUTS] {
        let places = LIMBS + EACH - 1;
        let groups = words.len().div_ceil(self.each);
        // Words of one group that shares a stored scale with others.
        let shared = (self.plan.group / QUAD).max(1) / self.each;
        let planes: [[&[i8]; LIMBS]; INPUTS] =
            std::array::from_fn(|i| std::array::from_fn(|limb| self.fixed.plane(x[i].row, limb)));
        assert!(planes.iter().flatten().all(|plane| plane.len() >= QUAD * words.len()));
        assert!(x.iter().all(|x| x.starts.len() >= groups * places && x.units.len() >= groups));
        assert!(scales.len() > groups.saturating_sub(1) / shared);
        let mut from = stream.as_ptr();
        let mut totals = [_mm512_setzero_ps(); INPUTS];
        // SAFETY: `stream` has the codes of all words, and 64 bytes behind; planes have four columns for each of them, and
        // groups their starts, units and scales, as was checked above.
        unsafe {
            let sign = _mm512_set1_epi8(-128);
            let mut tables = [[_mm512_setzero_si512(); 4]; EACH];
            for (quarters, table) in tables.iter_mut().zip(&self.plan.unsigned) {
                for (quarter, bytes) in quarters.iter_mut().zip(table.0.as_chunks::<LINE>().0) {
                    *quarter = _mm512_load_si512(bytes.as_ptr().cast());
                }
            }
            for group in 0..groups {
                // Quads take turns with two sets of accumulators, where registers hold them: each waits for its last sum.
                let mut sums = [[[_mm512_setzero_si512(); MAX_LIMBS + MAX_WEIGHT_LIMBS - 1]; INPUTS]; 2];
                for i in 0..INPUTS {
                    for place in 0..places {
                        sums[0][i][place] = _mm512_set1_epi32(*x[i].starts.get_unchecked(group * places + place));
                    }
                }
                let first = group * self.each;
                let end = words.len().min(first + self.each);
                _mm_prefetch::<_MM_HINT_T1>(words.as_ptr().wrapping_add(first + WORDS_AHEAD).cast());
                for pair in (first..end).step_by(2) {
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(CODES_AHEAD).cast());
                    for half in 0..2 {
                        let quad = pair + half;
                        if quad == end {
                            break;
                        }
                        let sums = &mut sums[if INPUTS == 1 { half } else { 0 }];
                        let word = *words.get_unchecked(quad);
                        let packed = expanded_word(word, from);
                        from = from.add(word.count_ones() as usize);
                        let mut weights = [_mm512_setzero_si512(); EACH];
                        for each in 0..EACH {
                            let [a, b, c, d] = tables[each];
                            weights[each] = match WAY {
                                BYTES => _mm512_xor_si512(packed, sign),
                                NARROW => _mm512_permutexvar_epi8(packed, a),
                                _ => {
                                    let below = _mm512_permutex2var_epi8(a, packed, b);
                                    let above = _mm512_permutex2var_epi8(c, packed, d);
                                    _mm512_mask_blend_epi8(_mm512_movepi8_mask(packed), below, above)
                                }
                            };
                        }
                        for i in 0..INPUTS {
                            for limb in 0..LIMBS {
                                let at = planes[i][limb].as_ptr().add(QUAD * quad).cast::<i32>();
                                let inputs = _mm512_set1_epi32(at.read_unaligned());
                                for each in 0..EACH {
                                    sums[i][limb + each] =
                                        _mm512_dpbusd_epi32(sums[i][limb + each], weights[each], inputs);
                                }
                            }
                        }
                    }
                }
                let scale = _mm512_load_ps(scales.get_unchecked(group / shared).0.as_ptr());
                let byte = _mm512_set1_ps(256.0);
                for i in 0..INPUTS {
                    let of_place =
                        |place: usize| _mm512_cvtepi32_ps(_mm512_add_epi32(sums[0][i][place], sums[1][i][place]));
                    let mut sum = of_place(places - 1);
                    for place in (0..places - 1).rev() {
                        sum = _mm512_fmadd_ps(sum, byte, of_place(place));
                    }
                    let unit = _mm512_set1_ps(*x[i].units.get_unchecked(group));
                    totals[i] = _mm512_fmadd_ps(_mm512_mul_ps(sum, unit), scale, totals[i]);
                }
            }
            let mut products = [Floats::default(); UNROLL_INPUTS];
            for i in 0..INPUTS {
                _mm512_store_ps(products[i].0.as_mut_ptr(), totals[i]);
            }
            products
        }
    }
}

impl Input {
    /// Prepares a row; `None` where it has no fixed-point form, or where its smallest numbers would vanish.
    fn new(plan: &Plan, x: &FixedInputs, row: usize, group: usize, raised: f32) -> Result<Option<Self>> {
        let (limbs, groups) = (x.limbs(row), x.columns / group);
        if limbs == 0 {
            return Ok(None);
        }
        let places = limbs + plan.limbs - 1;
        let (mut starts, mut units) = (zeroed::<i32>(groups * places)?, zeroed(groups)?);
        let mut least = f32::INFINITY;
        for (at, to) in units.iter_mut().enumerate() {
            let given = x.unit(row, at * group);
            *to = given * raised;
            if given != 0.0 {
                if to.abs() < f32::MIN_POSITIVE {
                    return Ok(None);
                }
                least = least.min(to.abs());
            }
        }
        for limb in 0..limbs {
            for (columns, starts) in x.plane(row, limb).chunks_exact(group).zip(starts.chunks_exact_mut(places)) {
                let sum: i32 = columns.iter().map(|&column| i32::from(column)).sum();
                for place in 0..plan.limbs {
                    starts[limb + place] -= (plan.offset >> (8 * place) & 255) * sum;
                }
            }
        }
        Ok(Some(Self { row, limbs, starts, units, least }))
    }
}
