//! Rows of packed weights as bytes and a scale for each group, with AVX2: numbers of one byte times a scale.

use std::arch::x86_64::*;

use super::group_scales_avx2::GroupScales;
use super::int8_limbs_vnni::Plan;
use super::sums_avx2::BLOCK;
use crate::bitpack::{bytes_mut, unpack, unpack_signed};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;

/// Bits of a code up to which numbers are looked up in registers.
const LOOKED_UP: u32 = 6;
/// Codes that one register has numbers of.
const TABLE: usize = 16;

/// How unpacked codes become numbers.
#[derive(Clone, Copy)]
enum Reading {
    /// Codes are two's complement.
    TwoComplement,
    /// Codes are the numbers.
    Plain,
    /// The upper half of codes stands for the negative numbers of the lower half, at most [`LOOKED_UP`] bits.
    Mirrored,
    /// Each code stands for a number, at most [`LOOKED_UP`] bits.
    Table,
    /// The same for more bits.
    LongTable,
}

impl Reading {
    fn of(plan: &Plan) -> Self {
        let (table, count) = (&plan.tables[0], 1usize << plan.width);
        let all = |number: &dyn Fn(usize) -> i8| (0..count).all(|code| table[code].cast_signed() == number(code));
        if all(&|code| (code as i8) << (8 - plan.width) >> (8 - plan.width)) {
            Self::TwoComplement
        } else if all(&|code| code as i8) {
            Self::Plain
        } else if plan.width > LOOKED_UP {
            Self::LongTable
        } else if all(&|code| match code < count / 2 {
            true => table[code].cast_signed(),
            false => table[code - count / 2].cast_signed().wrapping_neg(),
        }) {
            Self::Mirrored
        } else {
            Self::Table
        }
    }
}

/// Reads rows of weights.
pub(super) struct Numbers<'a> {
    plan: &'a Plan,
    rows: &'a Rows<'a>,
    scales: GroupScales<'a>,
    reading: Reading,
}

/// Some rows of weights, filled with zeros to whole blocks.
pub(super) struct Scratch {
    numbers: Vec<i8>,
    scales: Vec<f32>,
    zeros: Vec<u16>,
    /// Whether numbers are read where they are stored.
    stored: bool,
}

impl<'a> Numbers<'a> {
    /// A reader of rows whose format has the plan, for products with inputs of which `group` columns share a scale.
    pub(super) fn new(plan: &'a Plan, rows: &'a Rows<'a>, group: usize) -> Self {
        Self { plan, rows, scales: GroupScales::new(plan, rows, group.min(BLOCK)), reading: Reading::of(plan) }
    }

    /// Columns that share a scale: [`BLOCK`], or half of it.
    pub(super) const fn group(&self) -> usize {
        self.scales.group
    }

    /// Blocks in a row.
    pub(super) const fn blocks(&self) -> usize {
        self.rows.k.div_ceil(BLOCK)
    }

    /// Groups of ours in a row.
    pub(super) const fn groups(&self) -> usize {
        self.blocks() * (BLOCK / self.group())
    }

    /// Room for `rows` rows.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn scratch(&self, rows: usize) -> Result<Scratch> {
        let stored = self.plan.bytes && self.rows.k.is_multiple_of(BLOCK);
        let numbers = zeroed(if stored { 0 } else { rows * self.blocks() * BLOCK })?;
        Ok(Scratch { numbers, scales: zeroed(rows * self.groups())?, zeros: Vec::new(), stored })
    }

    /// Reads one row to a place of `to`; false where a scale is so large or so small that weights may not be a number times
    /// it.
    ///
    /// # Safety
    /// The processor must have AVX2 and F16C; the matrix must have the row, and `to` the place.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn read(&self, row: usize, place: usize, to: &mut Scratch) -> bool {
        let groups = self.groups();
        // SAFETY: as the caller promises.
        if !unsafe { self.scales.read(row, &mut to.scales[place * groups..][..groups]) } {
            return false;
        }
        if to.stored {
            return true;
        }
        let (codes, row_bytes) = self.rows.codes();
        let packed = &codes[row * row_bytes..][..row_bytes];
        let numbers = &mut to.numbers[place * self.blocks() * BLOCK..][..self.rows.k];
        // SAFETY: as the caller promises.
        unsafe { self.numbers(packed, numbers) };
        if self.plan.zeros {
            self.rows.zeros(row, &mut to.zeros);
            for (numbers, &zero) in numbers.chunks_mut(self.plan.group).zip(&to.zeros) {
                let (parts, rest) = numbers.as_chunks_mut::<TABLE>();
                for part in parts {
                    // SAFETY: sixteen bytes are read, and written.
                    unsafe {
                        let number = _mm_loadu_si128(part.as_ptr().cast());
                        let number = _mm_sub_epi8(number, _mm_set1_epi8(zero as i8));
                        _mm_storeu_si128(part.as_mut_ptr().cast(), number);
                    }
                }
                rest.iter_mut().for_each(|number| *number -= zero as i8);
            }
        }
        true
    }

    /// The numbers and the scales of the row at a place, which [`Self::read`] read as `row`.
    pub(super) fn row(&self, row: usize, place: usize, from: &Scratch) -> (*const i8, *const f32) {
        let (codes, row_bytes) = self.rows.codes();
        let numbers = match from.stored {
            true => codes[row * row_bytes..][..row_bytes].as_ptr().cast(),
            false => from.numbers[place * self.blocks() * BLOCK..].as_ptr(),
        };
        (numbers, from.scales[place * self.groups()..].as_ptr())
    }

    /// Bytes from the numbers of a row to those of the one `rows` further, where both are read as they are stored; else 0.
    pub(super) const fn ahead(&self, rows: usize, from: &Scratch) -> usize {
        if from.stored { rows * self.rows.codes().1 } else { 0 }
    }

    /// Writes the numbers of packed codes.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn numbers(&self, packed: &[u8], numbers: &mut [i8]) {
        let table = &self.plan.tables[0];
        if matches!(self.reading, Reading::TwoComplement) {
            return unpack_signed(self.rows.level(), packed, self.plan.width, numbers);
        }
        unpack(self.rows.level(), packed, self.plan.width, bytes_mut(numbers));
        let (blocks, last) = numbers.as_chunks_mut::<BLOCK>();
        let number = |code: &mut i8| *code = table[usize::from(code.cast_unsigned())].cast_signed();
        let width = self.plan.width;
        for block in blocks {
            // SAFETY: as the caller promises.
            unsafe {
                match self.reading {
                    Reading::TwoComplement | Reading::Plain => {}
                    Reading::Mirrored => mirror(table, width, block),
                    Reading::Table => look_up(table, 1 << width, block),
                    Reading::LongTable => block.iter_mut().for_each(number),
                }
            }
        }
        last.iter_mut().for_each(number);
    }
}

/// Puts the numbers of codes of `width` bits in their place; the upper half of codes has those of the lower half, negative.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn mirror(table: &[u8; 256], width: u32, block: &mut [i8; BLOCK]) {
    // SAFETY: the block is 32 bytes, and the table has sixteen from each multiple of sixteen on.
    unsafe {
        let part = |first: usize| _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().add(first).cast()));
        let codes = _mm256_loadu_si256(block.as_ptr().cast());
        let lower = _mm256_and_si256(codes, _mm256_set1_epi8((1 << (width - 1)) - 1));
        // A shuffle gives 0 where the highest bit is set: codes of the other part.
        let low = _mm256_shuffle_epi8(part(0), _mm256_add_epi8(lower, _mm256_set1_epi8(0x70)));
        let high = _mm256_shuffle_epi8(part(TABLE), _mm256_sub_epi8(lower, _mm256_set1_epi8(TABLE as i8)));
        // The bit of the sign moves to the highest place; no byte is 0, which would make a 0 of the number.
        let signs = _mm256_sll_epi16(codes, _mm_cvtsi32_si128(8 - width as i32));
        let signs = _mm256_or_si256(signs, _mm256_set1_epi8(1));
        _mm256_storeu_si256(block.as_mut_ptr().cast(), _mm256_sign_epi8(_mm256_or_si256(low, high), signs));
    }
}

/// Puts the numbers of codes below `count`, at most 64, in their place.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn look_up(table: &[u8; 256], count: usize, block: &mut [i8; BLOCK]) {
    // SAFETY: the block is 32 bytes, and the table has sixteen from each multiple of sixteen on.
    unsafe {
        let codes = _mm256_loadu_si256(block.as_ptr().cast());
        let mut all = _mm256_setzero_si256();
        for first in (0..count).step_by(TABLE) {
            let part = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().add(first).cast()));
            // A shuffle gives 0 where the highest bit is set: codes of other parts.
            let at = _mm256_sub_epi8(codes, _mm256_set1_epi8(first as i8));
            let at = _mm256_adds_epu8(at, _mm256_set1_epi8(0x70));
            all = _mm256_or_si256(all, _mm256_shuffle_epi8(part, at));
        }
        _mm256_storeu_si256(block.as_mut_ptr().cast(), all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Format, catalogue};
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::simd::Level;

    #[test]
    fn numbers_times_scales_are_the_decoded_weights() {
        if Level::detect() < Level::Avx2 {
            return;
        }
        let more = ["int4:g64", "uint4:g128", "uint7:g16", "int5:g32", "bfp6/16", "int2:tensor", "int8:g16", "e2m3"];
        let mut found = 0;
        for (text, k) in catalogue().iter().copied().chain(more).flat_map(|text| [200, 67, 256].map(|k| (text, k))) {
            let format = Format::parse(text).unwrap();
            let Some(plan) = Plan::new(format).filter(Plan::is_bytes) else { continue };
            found += 1;
            let weights: Vec<f32> = (0..3 * k).map(noise).collect();
            let sample = Sample::new(&weights, k, format);
            let (rows, mut wanted) = (sample.rows(Level::Avx2), vec![0.0; k]);
            for group in [16, BLOCK] {
                let reader = Numbers::new(&plan, &rows, group);
                let mut scratch = reader.scratch(2).unwrap();
                for row in [0, 2] {
                    rows.decode(row, 0..k, &mut wanted, &mut Default::default());
                    // SAFETY: the level was detected; pointers hold as many numbers and scales.
                    unsafe {
                        assert!(reader.read(row, 1, &mut scratch));
                        let (numbers, scales) = reader.row(row, 1, &scratch);
                        for (column, wanted) in wanted.iter().enumerate() {
                            let weight = f32::from(*numbers.add(column)) * *scales.add(column / reader.group());
                            assert_eq!(weight, *wanted, "{text}, {k} columns: {row}, {column}");
                        }
                        let filled = k..reader.blocks() * BLOCK;
                        assert!({ filled }.all(|column| *numbers.add(column) == 0), "{text}");
                    }
                }
            }
        }
        assert!(found > 60, "{found}");
    }
}
