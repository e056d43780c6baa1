//! Weights of up to 8 bits decoded to bfloat16 by table lookup, for products of tiles.
//!
//! The scale of a group is applied in one of three places: to the exponent of the values, where it is a power of two; to
//! the values, where groups are short; otherwise to the accumulators, by the caller.

mod table;

use std::arch::x86_64::*;
use std::ops::Range;

use self::table::{AFTER, BYTES, CHECKED, EXPONENT, NARROW, NONFINITE, TIMES, WIDE, ZEROS};
use super::bf16_limbs::{STEP, upper};
use super::int8_limbs_vnni::{Scale, Scales};
use crate::codec::rows::Rows;
use crate::codec::set_len;
use crate::error::Result;
use crate::simd::Line;
use crate::simd::tiles::{LINE, ROWS, TILE};
use crate::simd::transpose::transpose;

pub(super) use self::table::Table;

/// Columns unpacked at a time.
const BLOCK: usize = 64;
/// Exponent codes for which weights, and their products with moderate inputs, neither underflow nor overflow.
const EXPONENTS: Range<u8> = 91..164;

/// The weights of a matrix, to be looked up.
pub(super) struct Codes<'a> {
    pub(super) table: &'a Table,
    rows: &'a Rows<'a>,
    scales: Scales<'a>,
    /// Value of 1 in the numbers that are written, apart from the factor of a row or tensor.
    unit: f32,
    /// Byte permutation: for each run of eight codes, the bytes of packed codes that hold it.
    gather: Line<u8, LINE>,
    /// First bit of each code inside its run.
    shifts: Line<u8, LINE>,
}

/// The weights to write, and where.
pub(super) struct Place {
    /// Rows: the first, and how many.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Rows whose groups were read together.
    pub(super) stride: usize,
    pub(super) columns: Range<usize>,
    /// Limbs of a number.
    pub(super) limbs: usize,
    /// Bytes of sixteen rows of tiles.
    pub(super) panel: usize,
}

/// Scales and zero points of some rows.
#[derive(Default)]
pub(super) struct Groups {
    /// By group, then row.
    pub(super) scales: Vec<f32>,
    /// By row, then group: zero points, and what is added to the bits of numbers for an exponent.
    zeros: Vec<u8>,
    exponents: Vec<i16>,
    /// True if an exponent is extreme, as those of blocks of zeros are.
    extreme: bool,
    row_scales: Vec<f32>,
    stored_zeros: Vec<u16>,
}

impl<'a> Codes<'a> {
    pub(super) fn new(table: &'a Table, rows: &'a Rows<'a>) -> Self {
        let scales = Scales::new(table.scale, &rows.unscaled());
        let scale_bits = if let Scale::Exponent { shift } = table.scale { shift } else { 0 };
        let unit = crate::float::exp2(-scale_bits - table.shift) as f32;
        let width = table.width as usize;
        // Interleaving the lower halves of sixteen bytes is to give the first 32 columns, the upper ones the next.
        let eight = |i: usize| i / 16 + if i % 16 < 8 { 0 } else { 4 };
        let gather = Line(std::array::from_fn(|i| (eight(i) * width + i % 8) as u8 & 63));
        let shifts = Line(std::array::from_fn(|i| (i % 8 * width) as u8));
        Self { table, rows, scales, unit, gather, shifts }
    }

    /// What the numbers written of a row count.
    pub(super) fn factor(&self, row: usize) -> f32 {
        match self.table.scale {
            Scale::Row => self.rows.row_step(row) as f32 * self.unit,
            _ => self.rows.row_factor(row) * self.unit,
        }
    }

    /// Reads scales and zero points of `count` rows from `first` on; scales lie `stride` apart, a multiple of sixteen that is
    /// not below `count`. False where one is not in range.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VL.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn read(&self, first: usize, count: usize, stride: usize, to: &mut Groups) -> Result<bool> {
        let groups = self.scales.groups;
        to.extreme = false; // of other weights
        if matches!(self.table.scale, Scale::Half | Scale::Code) {
            let room = groups.next_multiple_of(ROWS);
            set_len(&mut to.scales, room * stride)?;
            set_len(&mut to.row_scales, ROWS * room)?;
            let mut least = _mm512_setzero_ps();
            for start in (0..count).step_by(ROWS) {
                for (r, scales) in to.row_scales.chunks_mut(room).enumerate().take(count - start) {
                    // SAFETY: as the caller promises; the row has the groups.
                    if !unsafe { self.scales.read(first + start + r, 0, &mut scales[..groups], &mut least) } {
                        return Ok(false);
                    }
                }
                for group in (0..groups).step_by(ROWS) {
                    // SAFETY: as the caller promises; sixteen rows have room for whole sixteens of groups.
                    unsafe {
                        let rows = std::array::from_fn(|r| _mm512_loadu_ps(to.row_scales[r * room + group..].as_ptr()));
                        for (i, scales) in transpose(rows).iter().enumerate() {
                            let to = &mut to.scales[(group + i) * stride + start..][..ROWS];
                            _mm512_storeu_ps(to.as_mut_ptr(), *scales);
                        }
                    }
                }
            }
        }
        if self.table.scaling == EXPONENT {
            let codes = &self.scales.bytes()[first * groups..][..count * groups];
            if codes.contains(&u8::MAX) {
                return Ok(false); // NaN, whatever the numbers are
            }
            set_len(&mut to.exponents, codes.len())?;
            for (to, &code) in to.exponents.iter_mut().zip(codes) {
                *to = (i16::from(code) - 127) << 7;
            }
            to.extreme = codes.iter().fold(false, |extreme, code| extreme | !EXPONENTS.contains(code));
        }
        if self.table.way == ZEROS {
            set_len(&mut to.zeros, groups * count)?;
            for r in 0..count {
                self.rows.zeros(first + r, &mut to.stored_zeros);
                let zeros = to.zeros[r * groups..].iter_mut();
                zeros.zip(&to.stored_zeros).for_each(|(to, &zero)| *to = zero as u8);
            }
        }
        Ok(true)
    }

    /// Writes up to 64 columns of `count` rows from `first` on, which begin at a multiple of 64, to panels of tiles: lines of
    /// 32 numbers by row, those of the limbs a tile apart. False where a scale is out of range. The `groups` are those read
    /// of the rows.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI. The columns and rows must be the matrix's, and their groups read;
    /// `tiles`, which begin a cache line, must have room for all rows, `panel` bytes for each sixteen.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(super) unsafe fn put(&self, place: &Place, groups: &Groups, tiles: *mut u8) -> bool {
        let scaling = if groups.extreme { CHECKED } else { self.table.scaling };
        // SAFETY: as the caller promises.
        unsafe {
            match (self.table.way, scaling) {
                (NARROW, AFTER) => self.put_as::<NARROW, AFTER>(place, groups, tiles),
                (NARROW, EXPONENT) => self.put_as::<NARROW, EXPONENT>(place, groups, tiles),
                (NARROW, TIMES) => self.put_as::<NARROW, TIMES>(place, groups, tiles),
                (NARROW, _) => self.put_as::<NARROW, CHECKED>(place, groups, tiles),
                (ZEROS, AFTER) => self.put_as::<ZEROS, AFTER>(place, groups, tiles),
                (ZEROS, _) => self.put_as::<ZEROS, TIMES>(place, groups, tiles),
                (BYTES, AFTER) => self.put_as::<BYTES, AFTER>(place, groups, tiles),
                (BYTES, EXPONENT) => self.put_as::<BYTES, EXPONENT>(place, groups, tiles),
                (BYTES, TIMES) => self.put_as::<BYTES, TIMES>(place, groups, tiles),
                (BYTES, _) => self.put_as::<BYTES, CHECKED>(place, groups, tiles),
                (_, AFTER) => self.put_as::<WIDE, AFTER>(place, groups, tiles),
                (_, EXPONENT) => self.put_as::<WIDE, EXPONENT>(place, groups, tiles),
                (_, TIMES) => self.put_as::<WIDE, TIMES>(place, groups, tiles),
                _ => self.put_as::<WIDE, CHECKED>(place, groups, tiles),
            }
        }
    }

    /// [`Self::put`] in one way.
    ///
    /// # Safety
    /// As for [`Self::put`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn put_as<const WAY: u8, const SCALING: u8>(&self, place: &Place, groups: &Groups, tiles: *mut u8) -> bool {
        let Place { first, count, ref columns, limbs, panel, .. } = *place;
        let (width, table_limbs) = (self.table.width as usize, if WAY == BYTES { 1 } else { self.table.limbs });
        let (codes, row_bytes) = self.rows.codes();
        let (start, bytes) = (columns.start / 8 * width, BLOCK / 8 * width);
        let mask = u64::MAX >> (64 - (row_bytes - start).min(bytes));
        // Groups of each sixteen columns; those beyond the last are of columns that are not written.
        let last = self.scales.groups.saturating_sub(1);
        let at: [usize; 4] = std::array::from_fn(|i| ((columns.start + i * STEP / 2) / self.table.group).min(last));
        // What the same call for the next rows reads, in the order of memory, which these loads are not in.
        let mut next = codes.as_ptr().wrapping_add((first + place.stride) * row_bytes + place.stride * start);
        let second = columns.len() > STEP;
        let mut extreme = 0;
        // SAFETY: masks keep inside the rows; there is a line for each limb of 32 columns, and all groups were read.
        unsafe {
            let gather = _mm512_load_si512(self.gather.0.as_ptr().cast());
            let shifts = _mm512_load_si512(self.shifts.0.as_ptr().cast());
            for r in 0..count {
                _mm_prefetch::<_MM_HINT_T1>(next.cast());
                next = next.wrapping_add(bytes);
                let loaded = _mm512_maskz_loadu_epi8(mask, codes.as_ptr().add((first + r) * row_bytes + start).cast());
                let to = tiles.add(r / ROWS * panel + r % ROWS * LINE);
                let after = to.wrapping_add(limbs * TILE); // of columns that may not be there
                if WAY == BYTES {
                    let (low, high) = (_mm512_castsi512_si256(loaded), _mm512_extracti64x4_epi64::<1>(loaded));
                    extreme |= self.finish::<SCALING>(place, groups, r, (at[0], at[1]), converted(low), to);
                    if second {
                        extreme |= self.finish::<SCALING>(place, groups, r, (at[2], at[3]), converted(high), after);
                    }
                    continue;
                }
                let mut indices = _mm512_permutexvar_epi8(gather, loaded);
                if WAY != WIDE || width < 8 {
                    indices = _mm512_multishift_epi64_epi8(shifts, indices);
                }
                if WAY == ZEROS {
                    // Bits above the code come off first: those of the difference are looked up.
                    let codes = _mm512_and_si512(indices, _mm512_set1_epi8((1 << width) - 1));
                    let all = &groups.zeros[r * self.scales.groups..][..self.scales.groups];
                    let [first, second] = [all[at[0]], all[at[2]]];
                    let first = _mm512_set1_epi8(first.cast_signed());
                    let zeros = _mm512_mask_set1_epi8(first, 0xff00_ff00_ff00_ff00, second.cast_signed());
                    indices = _mm512_sub_epi8(codes, zeros);
                }
                for limb in 0..table_limbs {
                    let [low, high] = &self.table.bytes[limb];
                    let (low, high) = (look_up::<WAY>(low, indices), look_up::<WAY>(high, indices));
                    let line = _mm512_unpacklo_epi8(low, high);
                    extreme |= self.finish::<SCALING>(place, groups, r, (at[0], at[1]), line, to.add(limb * TILE));
                    if second {
                        let line = _mm512_unpackhi_epi8(low, high);
                        let to = after.add(limb * TILE);
                        extreme |= self.finish::<SCALING>(place, groups, r, (at[2], at[3]), line, to);
                    }
                }
            }
        }
        extreme == 0
    }

    /// Scales 32 numbers, sixteen of each of two groups, as far as this is done here, and writes them; returns which of them
    /// are not finite or have an extreme scale.
    ///
    /// # Safety
    /// As for [`Self::put`]; `to` must be their line, or the first of one for each limb, a tile apart.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn finish<const SCALING: u8>(
        &self,
        place: &Place,
        groups: &Groups,
        r: usize,
        at: (usize, usize),
        mut line: __m512i,
        to: *mut u8,
    ) -> u32 {
        let mut extreme = 0;
        if self.table.nonfinite {
            let infinity = _mm512_set1_epi16(NONFINITE.cast_signed());
            extreme = _mm512_cmpeq_epi16_mask(_mm512_and_si512(line, infinity), infinity);
        }
        // SAFETY: as the caller promises.
        unsafe {
            if SCALING == TIMES {
                let (first, second) = (groups.scales[at.0 * place.stride + r], groups.scales[at.1 * place.stride + r]);
                multiplied(line, first, second, place.limbs, to);
                return extreme;
            }
            if SCALING != AFTER {
                let numbers = _mm512_test_epi16_mask(line, _mm512_set1_epi16(0x7fff));
                let row = &groups.exponents[r * self.scales.groups..][..self.scales.groups];
                let mut exponents = _mm512_set1_epi16(row[at.0]);
                if at.0 != at.1 {
                    exponents = _mm512_mask_set1_epi16(exponents, 0xffff_0000, row[at.1]);
                }
                line = _mm512_mask_add_epi16(line, numbers, line, exponents);
                if SCALING == CHECKED {
                    let codes = &self.scales.bytes()[(place.first + r) * self.scales.groups..];
                    let half = |at: usize| if EXPONENTS.contains(&codes[at]) { 0 } else { 0xffff };
                    extreme |= numbers & (half(at.0) | half(at.1) << 16);
                }
            }
            _mm512_store_si512(to.cast(), line);
        }
        extreme
    }
}

/// Bytes by code.
///
/// # Safety
/// The processor must have AVX-512 F, BW and VBMI.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn look_up<const WAY: u8>(bytes: &Line<u8, 256>, codes: __m512i) -> __m512i {
    let quarters = bytes.0.as_chunks::<BLOCK>().0;
    // SAFETY: a quarter is a vector, and aligned.
    let quarter = |i: usize| unsafe { _mm512_load_si512(quarters[i].as_ptr().cast()) };
    if WAY != WIDE {
        // Tables repeat with the width: higher bits of an index do not matter.
        return _mm512_permutexvar_epi8(codes, quarter(0));
    }
    let below = _mm512_permutex2var_epi8(quarter(0), codes, quarter(1));
    let above = _mm512_permutex2var_epi8(quarter(2), codes, quarter(3));
    _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), below, above)
}

/// Integers of eight bits as bfloat16.
///
/// # Safety
/// The processor must have AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn converted(bytes: __m256i) -> __m512i {
    // Pairs of columns in a lane: the even one below, the odd one above.
    let pairs = _mm512_cvtepi8_epi16(bytes);
    let even = _mm512_cvtepi32_ps(_mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs)));
    let odd = _mm512_cvtepi32_ps(_mm512_srai_epi32::<16>(pairs));
    let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(even));
    _mm512_mask_blend_epi16(0xaaaa_aaaa, low, _mm512_castps_si512(odd))
}

/// Writes the limbs of 32 numbers times two scales, of sixteen each, a tile apart.
///
/// # Safety
/// The processor must have AVX-512 F; `to` must be a row of the first of `limbs` tiles, which begin a cache line.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn multiplied(line: __m512i, first: f32, second: f32, limbs: usize, mut to: *mut u8) {
    let scale = _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(first), _mm512_set1_ps(second));
    // Pairs of columns in a lane: the even one below, the odd one above.
    let mut even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(line)), scale);
    let mut odd = _mm512_mul_ps(upper(_mm512_castsi512_ps(line)), scale);
    for _ in 0..limbs {
        let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(even));
        // SAFETY: as the caller promises.
        unsafe { _mm512_store_si512(to.cast(), _mm512_or_si512(low, _mm512_castps_si512(upper(odd)))) };
        even = _mm512_sub_ps(even, upper(even));
        odd = _mm512_sub_ps(odd, upper(odd));
        to = to.wrapping_add(TILE);
    }
}
