//! Products for a few rows of inputs: VNNI dot products in registers, codes unpacked as they are read.
//!
//! A block is 64 columns; 4-bit codes take 128 columns, even columns first and then odd ones, which is the order in which
//! masks unpack nibbles. Each lane of an accumulator sums columns of one group only, so that one multiplication scales all
//! lanes. Weights are stored as unsigned bytes, offset by their minimum; accumulators start at minus offset times the sum
//! of inputs.

use std::arch::x86_64::*;

use super::inputs::FixedInputs;
use super::plan::{MOST_WEIGHT_LIMBS, Plan, Scale};
use super::scales::{Scales, is_moderate};
use super::{CHUNK, MOST_LIMBS};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::float::tree_sum;
use crate::simd::Line;
use crate::simd::amx::LINE;

/// Rows of weights multiplied at a time: they share loads of inputs and hide each other's latency.
pub(in crate::linear) const TOGETHER: usize = 4;
/// Prefetch distance in bytes of packed codes, bounded by the L1 cache.
const MOST_AHEAD: usize = 16 * 1024;

/// The product of packed weights with some rows of inputs.
pub(in crate::linear) struct Dot<'a> {
    plan: &'a Plan,
    rows: &'a Rows<'a>,
    scales: Scales<'a>,
    /// Columns of a block: 64, or 128 of nibbles.
    block: usize,
    /// Columns of a group: 16, 32 or 64. A longer stored group is several of these.
    group: usize,
    /// Each row of inputs that has a fixed-point form.
    inputs: Vec<Option<Input>>,
    /// All rows of inputs, a bit each.
    all: u8,
    /// The code of zeros is 0.
    clear_zeros: bool,
    /// Limbs of weights by code, as bytes without a sign.
    tables: [Line<u8, 256>; MOST_WEIGHT_LIMBS],
    /// Byte permutation: for each run of eight codes, the bytes of packed codes that hold it.
    gather: Line<u8, LINE>,
    /// First bit of each code inside its run.
    shifts: Line<u8, LINE>,
}

/// How codes become bytes.
const NIBBLES: u8 = 0;
const NARROW: u8 = 1;
const WIDE: u8 = 2;
const BYTES: u8 = 3;

/// One row of inputs.
struct Input {
    /// Limbs of a number.
    count: usize,
    /// By block and limb, one line, or two of nibbles.
    limbs: Vec<Line<i8, LINE>>,
    /// By block and limb of the products, initial values of the accumulators.
    starts: Vec<Line<i32, 16>>,
    /// By block and limb, sums of inputs, which zero points multiply.
    sums: Vec<Line<f32, 16>>,
    /// By group, the scale of the accumulators.
    units: Vec<f32>,
    /// The smallest of these but 0.
    least: f32,
}

/// Scratch memory of one thread.
pub(in crate::linear) struct Scratch {
    /// Scales of rows by group.
    scales: Vec<f32>,
    /// The same, times the scale of a row of inputs.
    factors: Vec<f32>,
    zeros: Vec<f32>,
    stored_zeros: Vec<u16>,
}

impl<'a> Dot<'a> {
    /// Arranges the rows of `x`, at most eight.
    ///
    /// # Safety
    /// The processor must have BMI2; `plan` must be that of the rows' format, and `x` of as many columns as they.
    pub(in crate::linear) unsafe fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &FixedInputs) -> Result<Self> {
        let nibbles = plan.width == 4;
        let block = if nibbles { 2 * LINE } else { LINE };
        let group = plan.group.min(LINE);
        let scales = Scales::new(plan.scale, rows);
        // Numbers as integers, from 0 up.
        let numbers: Vec<i32> = (0..256)
            .map(|code| {
                plan.tables[..plan.limbs].iter().rev().fold(0, |n, t| n * 256 + i32::from(t[code].cast_signed()))
            })
            .collect();
        let offset = -numbers.iter().copied().min().unwrap_or(0);
        let tables = std::array::from_fn(|limb| {
            Line(std::array::from_fn(|code| ((numbers[code] + offset) >> (8 * limb)) as u8))
        });
        let raised = crate::float::exp2(-plan.shift - scales.raised()) as f32;
        let arrange = |row: usize| -> Result<Option<Input>> {
            let (count, blocks) = (x.limbs(row), x.columns / block);
            let mut units = zeroed::<f32>(x.columns / group)?;
            let (mut moderate, mut least) = (count > 0, f32::INFINITY);
            for (g, to) in units.iter_mut().enumerate() {
                let unit = x.unit(row, g * group / CHUNK);
                *to = unit * raised;
                if unit != 0.0 {
                    moderate &= *to >= f32::MIN_POSITIVE;
                    least = least.min(*to);
                }
            }
            if !moderate {
                return Ok(None);
            }
            let lines = block / LINE;
            let mut limbs = zeroed::<Line<i8, LINE>>(blocks * count * lines)?;
            let places = count + plan.limbs - 1;
            let mut starts = zeroed::<Line<i32, 16>>(blocks * places)?;
            let mut sums = zeroed::<Line<f32, 16>>(if plan.zeros { blocks * count } else { 0 })?;
            for limb in 0..count {
                let plane = x.plane(row, limb).chunks_exact(block);
                let to = limbs.chunks_exact_mut(lines).skip(limb).step_by(count);
                for (columns, to) in plane.zip(to) {
                    // SAFETY: as the caller promises.
                    unsafe { if nibbles { split(columns, to) } else { to[0].0.copy_from_slice(columns) } }
                }
            }
            for (block, starts) in starts.chunks_exact_mut(places).enumerate() {
                let mut all = [[0i32; 16]; MOST_LIMBS];
                let all = &mut all[..count];
                for (limb, all) in all.iter_mut().enumerate() {
                    for line in &limbs[(block * count + limb) * lines..][..lines] {
                        for (sum, quad) in all.iter_mut().zip(line.0.as_chunks::<4>().0) {
                            *sum += quad.iter().map(|&d| i32::from(d)).sum::<i32>();
                        }
                    }
                }
                for (limb, all) in all.iter().enumerate() {
                    for place in 0..plan.limbs {
                        let offset = offset >> (8 * place) & 255;
                        let start = &mut starts[limb + place].0;
                        start.iter_mut().zip(all).for_each(|(start, sum)| *start -= offset * sum);
                    }
                }
                for (sums, all) in sums.iter_mut().skip(block * count).zip(&*all) {
                    sums.0 = all.map(|sum| sum as f32);
                }
            }
            Ok(Some(Input { count, limbs, starts, sums, units, least }))
        };
        let inputs: Vec<_> = (0..x.rows).map(arrange).collect::<Result<_>>()?;
        let all = inputs.iter().fold(0, |all, _| all << 1 | 1);
        let clear_zeros = !plan.zeros && numbers[0] == 0;
        let width = plan.width as usize;
        let gather = Line(std::array::from_fn(|i| (i / 8 * width + i % 8) as u8 & 63));
        let shifts = Line(std::array::from_fn(|i| (i % 8 * width) as u8));
        Ok(Self { plan, rows, scales, block, group, inputs, all, clear_zeros, tables, gather, shifts })
    }

    /// True where no row of inputs has a fixed-point form.
    pub(in crate::linear) fn is_empty(&self) -> bool {
        self.inputs.iter().all(Option::is_none)
    }

    /// Room for one thread's work.
    pub(in crate::linear) fn scratch(&self) -> Result<Scratch> {
        // Groups are loaded eight at a time.
        let places = TOGETHER * self.rows.k.div_ceil(CHUNK) * (CHUNK / self.group) + 8;
        Ok(Scratch {
            scales: zeroed(places)?,
            factors: zeroed(places)?,
            zeros: zeroed(if self.plan.zeros { places } else { 0 })?,
            stored_zeros: Vec::new(),
        })
    }

    /// Calls `write` with each row of inputs and its products with `count` rows of weights from `first` on, at most
    /// [`TOGETHER`]. Returns a bit for each row of inputs that is left to others: all where scales are out of range, those
    /// without a fixed-point form, and those so small that their products with the scales would vanish.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, VBMI and VNNI; the rows must be the matrix's, `count` at least 1, and
    /// `scratch` made by [`Self::scratch`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    pub(in crate::linear) unsafe fn run(
        &self,
        first: usize,
        count: usize,
        scratch: &mut Scratch,
        mut write: impl FnMut(usize, &mut [f32]),
    ) -> u8 {
        let groups = self.rows.k.div_ceil(CHUNK) * (CHUNK / self.group);
        // Rows beyond the last repeat it.
        let row_of = |r: usize| first + r.min(count - 1);
        let (mut steps, mut least) = ([1.0; TOGETHER], _mm512_set1_ps(f32::INFINITY));
        for (r, step) in steps.iter_mut().enumerate() {
            if self.plan.scale == Scale::Row {
                *step = self.rows.row_step(row_of(r)) as f32;
                if !is_moderate(*step) {
                    return self.all;
                }
            } else {
                // SAFETY: as the caller promises.
                if !unsafe { self.scales(row_of(r), &mut scratch.scales[r * groups..][..groups], &mut least) } {
                    return self.all;
                }
            }
            if self.plan.zeros {
                self.rows.zeros(row_of(r), &mut scratch.stored_zeros);
                let each = self.plan.group / self.group;
                for (g, zero) in scratch.zeros[r * groups..][..groups].iter_mut().enumerate() {
                    *zero = f32::from(scratch.stored_zeros[(g / each).min(scratch.stored_zeros.len() - 1)]);
                }
            }
        }
        let (codes, row_bytes) = self.rows.codes();
        let mut least = _mm512_reduce_min_ps(least);
        if self.clear_zeros && self.scales.low(least) {
            // Scales of blocks of zeros become 0, so that they do not look like weights that would vanish.
            least = f32::INFINITY;
            for (r, scales) in scratch.scales.chunks_mut(groups.max(1)).enumerate().take(TOGETHER) {
                let codes = &codes[row_of(r) * row_bytes..][..row_bytes];
                // SAFETY: as the caller promises.
                least = least.min(unsafe { Scales::clear(scales, codes, self.group / 8 * self.plan.width as usize) });
            }
        }
        let rows: [*const u8; TOGETHER] = std::array::from_fn(|r| codes[row_of(r) * row_bytes..].as_ptr());
        let mut left = 0;
        for (m, input) in self.inputs.iter().enumerate() {
            let Some(input) = input else {
                left |= 1 << m;
                continue;
            };
            // Rare: each scale is then checked alone.
            let vanish = least * input.least < f32::MIN_POSITIVE
                && (0..TOGETHER).any(|r| vanishes(&scratch.scales[r * groups..], &input.units));
            if vanish {
                left |= 1 << m;
                continue;
            }
            for (r, factors) in scratch.factors.chunks_mut(groups.max(1)).enumerate().take(TOGETHER) {
                let scales = &scratch.scales[r * groups..];
                match self.plan.scale {
                    Scale::Row => factors.copy_from_slice(&input.units),
                    _ => factors.iter_mut().zip(scales).zip(&input.units).for_each(|((f, s), u)| *f = s * u),
                }
            }
            let place = Place { rows: &rows, input, factors: &scratch.factors, zeros: &scratch.zeros, groups };
            let way = match self.plan.width {
                4 => NIBBLES,
                1..=6 => NARROW,
                _ if self.plan.bytes => BYTES,
                _ => WIDE,
            };
            // SAFETY: as the caller promises; factors and zero points are there for all groups of the rows.
            let mut values = unsafe {
                if input.count == 3 { self.product::<3>(&place, way) } else { self.product::<4>(&place, way) }
            };
            values.iter_mut().zip(steps).for_each(|(value, step)| *value *= step);
            write(m, &mut values[..count]);
        }
        left
    }

    /// [`Self::sum`] for the weights' own way and number of limbs.
    ///
    /// # Safety
    /// As for [`Self::sum`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    unsafe fn product<const LIMBS: usize>(&self, place: &Place<'_>, way: u8) -> [f32; TOGETHER] {
        // SAFETY: as the caller promises.
        unsafe {
            match (way, self.plan.limbs, self.plan.zeros) {
                (NIBBLES, 1, false) => self.sum::<LIMBS, NIBBLES, 1, false>(place),
                (NIBBLES, 1, true) => self.sum::<LIMBS, NIBBLES, 1, true>(place),
                (NIBBLES, 2, _) => self.sum::<LIMBS, NIBBLES, 2, false>(place),
                (NIBBLES, ..) => self.sum::<LIMBS, NIBBLES, 3, false>(place),
                (NARROW, 1, false) => self.sum::<LIMBS, NARROW, 1, false>(place),
                (NARROW, 1, true) => self.sum::<LIMBS, NARROW, 1, true>(place),
                (NARROW, 2, _) => self.sum::<LIMBS, NARROW, 2, false>(place),
                (NARROW, ..) => self.sum::<LIMBS, NARROW, 3, false>(place),
                (WIDE, 1, false) => self.sum::<LIMBS, WIDE, 1, false>(place),
                (WIDE, 1, true) => self.sum::<LIMBS, WIDE, 1, true>(place),
                (WIDE, 2, false) => self.sum::<LIMBS, WIDE, 2, false>(place),
                (WIDE, _, true) => self.sum::<LIMBS, WIDE, 2, true>(place),
                (WIDE, ..) => self.sum::<LIMBS, WIDE, 3, false>(place),
                _ => self.sum::<LIMBS, BYTES, 1, false>(place),
            }
        }
    }

    /// Scales of a row by group of ours, whose smallest magnitudes but 0 are kept; false where one is out of range.
    ///
    /// # Safety
    /// As for [`Self::run`]; the row must be one of the matrix.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn scales(&self, row: usize, to: &mut [f32], least: &mut __m512) -> bool {
        let (stored, each) = (self.scales.groups, self.plan.group / self.group);
        if each == 1 {
            // SAFETY: as the caller promises; the row has `stored` scales.
            return unsafe { self.scales.read(row, 0, &mut to[..stored], least) };
        }
        let mut scales = [0.0f32; 64];
        let mut fits = true;
        for start in (0..stored).step_by(64) {
            let scales = &mut scales[..64.min(stored - start)];
            // SAFETY: as above.
            fits &= unsafe { self.scales.read(row, start, scales, least) };
            for (to, scale) in to[start * each..].chunks_mut(each).zip(scales) {
                to.fill(*scale);
            }
        }
        fits
    }

    /// Sums of products of [`TOGETHER`] rows of weights, with codes unpacked one `WAY` to `EACH` limbs, and inputs of
    /// `LIMBS`.
    ///
    /// # Safety
    /// As for [`Self::run`]; the place must hold factors and zero points for all groups of the rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    unsafe fn sum<const LIMBS: usize, const WAY: u8, const EACH: usize, const ZEROS: bool>(
        &self,
        place: &Place<'_>,
    ) -> [f32; TOGETHER] {
        let Place { rows, input, groups, .. } = *place;
        let (_, row_bytes) = self.rows.codes();
        let lines = if WAY == NIBBLES { 2 } else { 1 };
        let bytes = if WAY == NIBBLES { LINE } else { 8 * self.plan.width as usize };
        let per_block = self.block / self.group;
        // Prefetch the same columns of the next rows: the pass over the current rows hides the latency.
        let ahead = (TOGETHER * row_bytes).min(MOST_AHEAD);
        let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let spread = _mm512_srli_epi32::<4>(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(per_block as i32)));
        let mut totals = [_mm512_setzero_ps(); TOGETHER];
        assert!(place.factors.len() >= TOGETHER * groups + 8);
        // SAFETY: masks keep inside the rows; inputs cover whole chunks; eight groups may be read beyond the last.
        unsafe {
            let gather = _mm512_load_si512(self.gather.0.as_ptr().cast());
            let shifts = _mm512_load_si512(self.shifts.0.as_ptr().cast());
            let mut tables = [[_mm512_setzero_si512(); 4]; EACH];
            for (quarters, table) in tables.iter_mut().zip(&self.tables) {
                for (quarter, bytes) in quarters.iter_mut().zip(table.0.as_chunks::<LINE>().0) {
                    *quarter = _mm512_load_si512(bytes.as_ptr().cast());
                }
            }
            let groups_at = |all: &[f32], r: usize, block: usize| {
                let eight = _mm256_loadu_ps(all.as_ptr().add(r * groups + block * per_block));
                _mm512_permutexvar_ps(spread, _mm512_castps256_ps512(eight))
            };
            for block in 0..self.rows.k.div_ceil(self.block) {
                let left = (row_bytes - block * bytes).min(bytes);
                let mask = u64::MAX >> (64 - left);
                let limbs = input.limbs.as_ptr().add(block * LIMBS * lines);
                let starts = input.starts.as_ptr().add(block * (LIMBS + EACH - 1));
                for (r, total) in totals.iter_mut().enumerate() {
                    let at = rows[r].wrapping_add(block * bytes);
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(ahead).cast());
                    let packed = _mm512_maskz_loadu_epi8(mask, at.cast());
                    let codes = match WAY {
                        NIBBLES => [packed, _mm512_srli_epi16::<4>(packed)],
                        BYTES => [_mm512_xor_si512(packed, _mm512_set1_epi8(-128)); 2],
                        WIDE if self.plan.width == 8 => [packed; 2],
                        _ => [_mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(gather, packed)); 2],
                    };
                    // A second limb counts 256 times as much, as the next limb of the inputs does.
                    let mut sums = [_mm512_setzero_si512(); MOST_LIMBS + MOST_WEIGHT_LIMBS - 1];
                    for (limb, sum) in sums.iter_mut().enumerate().take(LIMBS + EACH - 1) {
                        *sum = _mm512_load_si512((*starts.add(limb)).0.as_ptr().cast());
                    }
                    for (line, codes) in codes.into_iter().enumerate().take(lines) {
                        for (each, [a, b, c, d]) in tables.iter().enumerate() {
                            let weights = match WAY {
                                BYTES => codes,
                                WIDE => {
                                    let below = _mm512_permutex2var_epi8(*a, codes, *b);
                                    let above = _mm512_permutex2var_epi8(*c, codes, *d);
                                    _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), below, above)
                                }
                                // Tables repeat with the width: higher bits of an index do not matter.
                                _ => _mm512_permutexvar_epi8(codes, *a),
                            };
                            for limb in 0..LIMBS {
                                let inputs = _mm512_load_si512((*limbs.add(limb * lines + line)).0.as_ptr().cast());
                                sums[limb + each] = _mm512_dpbusd_epi32(sums[limb + each], weights, inputs);
                            }
                        }
                    }
                    let byte = _mm512_set1_ps(256.0);
                    let mut sum = _mm512_setzero_ps();
                    for (limb, of_limb) in sums[..LIMBS + EACH - 1].iter().enumerate().rev() {
                        let mut of_limb = _mm512_cvtepi32_ps(*of_limb);
                        if ZEROS && limb < LIMBS {
                            // Exact: equal digits of code and zero point cancel.
                            let inputs = _mm512_load_ps(input.sums[block * LIMBS + limb].0.as_ptr());
                            of_limb = _mm512_fnmadd_ps(groups_at(place.zeros, r, block), inputs, of_limb);
                        }
                        sum = if limb == LIMBS + EACH - 2 { of_limb } else { _mm512_fmadd_ps(sum, byte, of_limb) };
                    }
                    *total = _mm512_fmadd_ps(sum, groups_at(place.factors, r, block), *total);
                }
            }
            totals.map(|total| {
                let mut lanes = Line([0.0; 16]);
                _mm512_store_ps(lanes.0.as_mut_ptr(), total);
                tree_sum(lanes.0)
            })
        }
    }
}

/// True where the product of a scale and a unit, neither of which is 0, is no normal number.
fn vanishes(scales: &[f32], units: &[f32]) -> bool {
    scales.iter().zip(units).any(|(s, u)| *s != 0.0 && *u != 0.0 && (s * u).abs() < f32::MIN_POSITIVE)
}

/// Operands of the products of some rows of weights with one row of inputs.
struct Place<'a> {
    rows: &'a [*const u8; TOGETHER],
    input: &'a Input,
    /// By row and group.
    factors: &'a [f32],
    zeros: &'a [f32],
    /// Groups of ours in a row.
    groups: usize,
}

/// Splits 128 columns into the even and the odd ones.
///
/// # Safety
/// The processor must have BMI2.
#[target_feature(enable = "bmi2")]
unsafe fn split(columns: &[i8], to: &mut [Line<i8, LINE>]) {
    let [even, odd] = to else { return };
    let halves = even.0.as_chunks_mut::<4>().0.iter_mut().zip(odd.0.as_chunks_mut::<4>().0);
    for (eight, (even, odd)) in columns.as_chunks::<8>().0.iter().zip(halves) {
        let all = u64::from_le_bytes(eight.map(i8::cast_unsigned));
        let low = 0x00ff_00ff_00ff_00ff;
        *even = (_pext_u64(all, low) as u32).to_le_bytes().map(u8::cast_signed);
        *odd = (_pext_u64(all, !low) as u32).to_le_bytes().map(u8::cast_signed);
    }
}
