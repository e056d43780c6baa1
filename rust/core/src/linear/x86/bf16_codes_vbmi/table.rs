//! Tables from code to bfloat16 value, and how each format uses them.

use std::ops::Range;

use crate::codec::grid::{Grid, GroupScale, Integers, decode_element};
use crate::format::Format;
use crate::linear::limbs::MAX_LIMBS;
use crate::linear::x86::bf16_limbs::STEP;
use crate::linear::x86::int8_limbs_vnni::{Scale, grouping};
use crate::simd::Line;

/// Bits of the difference of a code and a zero point.
const DIFFERENCE: u32 = 6;
/// Magnitudes of table values for which products with moderate inputs neither underflow nor overflow.
const NUMBERS: Range<f32> = 1.0 / (1u64 << 40) as f32..(1u64 << 40) as f32;
/// The bits of an infinite bfloat16.
pub(super) const NONFINITE: u16 = 0x7f80;
/// How a group's scale is applied. Later: values are left unscaled, accumulators are scaled.
pub(super) const AFTER: u8 = 0;
/// Added to the exponents of the values.
pub(super) const EXPONENT: u8 = 1;
/// As [`EXPONENT`], with a check for values other than 0 whose exponent would leave the range.
pub(super) const CHECKED: u8 = 3;
/// Multiplied with the values.
pub(super) const TIMES: u8 = 2;

/// How codes become values. Looked up with six bits.
pub(super) const NARROW: u8 = 0;
/// Looked up with eight bits.
pub(super) const WIDE: u8 = 1;
/// Looked up with six bits of the difference of code and zero point.
pub(super) const ZEROS: u8 = 2;
/// Converted: codes are integers.
pub(super) const BYTES: u8 = 3;

/// The numbers of a format by code.
#[derive(Debug)]
pub(in crate::linear) struct Table {
    pub(super) width: u32,
    /// Columns that share a stored scale; all of a row where that is `usize::MAX`.
    pub(in crate::linear) group: usize,
    pub(super) scale: Scale,
    pub(super) way: u8,
    pub(super) scaling: u8,
    /// Fraction bits of converted integers.
    pub(super) shift: i32,
    /// Some codes are infinite or NaN: rows that hold one are refused.
    pub(super) nonfinite: bool,
    /// Limbs of the numbers as they are looked up.
    pub(super) limbs: usize,
    /// By limb and code, the lower and the upper bytes.
    pub(super) bytes: [[Line<u8, 256>; 2]; MAX_LIMBS],
}

impl Table {
    /// The table of a format; `None` where there is none.
    pub(in crate::linear) fn new(format: Format) -> Option<Self> {
        let width = format.width();
        let (group, scale) = grouping(format).filter(|_| width <= 8 && !format.has_offsets())?;
        let grid = Grid::of(format);
        let zeros = matches!(grid, Grid::Integer { layout: Integers::Offset, .. });
        if matches!(grid, Grid::Levels(2..)) || zeros && (width >= DIFFERENCE || group < STEP) {
            return None; // several scales a number; differences without a table, several zero points a line
        }
        let one = GroupScale { step: 1.0, zero: 0, offset: 0.0, levels: [1.0; 4] };
        let number = |code: u32| match zeros {
            true => (code as i32) << (32 - DIFFERENCE) >> (32 - DIFFERENCE),
            false => 0,
        } as f32 + if zeros { 0.0 } else { decode_element(&grid, width, code, &one) };
        let codes = 1u32 << if zeros { DIFFERENCE } else { width };
        let mut bytes = [[Line([0; 256]); 2]; MAX_LIMBS];
        let (mut limbs, mut nonfinite) = (1, false);
        for index in 0..256 {
            let mut rest = number(index & (codes - 1));
            if !rest.is_finite() {
                nonfinite = true;
                bytes[0][1].0[index as usize] = NONFINITE.to_le_bytes()[1];
                bytes[0][0].0[index as usize] = NONFINITE.to_le_bytes()[0];
                continue;
            }
            if rest != 0.0 && !NUMBERS.contains(&rest.abs()) {
                return None;
            }
            for (limb, [low, high]) in bytes.iter_mut().enumerate() {
                let bits = rest.to_bits() >> 16;
                if bits != 0 {
                    limbs = limbs.max(limb + 1);
                }
                [low.0[index as usize], high.0[index as usize]] = (bits as u16).to_le_bytes();
                rest -= f32::from_bits(bits << 16);
            }
        }
        let scaling = match scale {
            Scale::Exponent { .. } => EXPONENT,
            _ if group < STEP => TIMES,
            _ => AFTER,
        };
        // An integer of eight bits and a sign is 1 in its lowest place.
        let unit = number(1);
        let bytes_of = |code: u32| f32::from((code as u8).cast_signed()) * unit;
        let integers = width == 8 && (0..256).all(|code| number(code) == bytes_of(code)) && unit.log2().fract() == 0.0;
        let way = match width {
            _ if zeros => ZEROS,
            _ if integers => BYTES,
            ..=DIFFERENCE => NARROW,
            _ => WIDE,
        };
        let shift = if integers { -unit.log2() as i32 } else { 0 };
        let fits = limbs == 1 || scaling != TIMES;
        fits.then_some(Self { width, group, scale, way, scaling, shift, nonfinite, limbs, bytes })
    }

    /// Limbs of what [`super::Codes::put`] writes, if decoded weights have so many.
    pub(in crate::linear) fn limbs(&self, decoded: usize) -> usize {
        if self.scaling == TIMES { decoded } else { self.limbs }
    }

    /// True if numbers of one limb without zero points are written, and scaled later: those of inputs are multiplied so.
    pub(in crate::linear) fn has_codes(&self) -> bool {
        self.limbs == 1 && self.scaling == AFTER && self.way != ZEROS
    }

    /// True if sums over a group are to be multiplied with its scale.
    pub(in crate::linear) fn scaled_after(&self) -> bool {
        self.scaling == AFTER && self.scale != Scale::Row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limbs_add_up_to_the_numbers() {
        for text in ["int8", "mxint6", "mxfp4", "mxfp8e4m3", "e3m4", "bm8e4/16", "nvfp4", "nf4", "ternary", "log6"] {
            let format = Format::parse(text).unwrap();
            let table = Table::new(format).unwrap();
            for code in 0..1u32 << table.width {
                let limb = |p: usize| {
                    let [low, high] = &table.bytes[p];
                    f32::from_bits(u32::from(low.0[code as usize]) << 16 | u32::from(high.0[code as usize]) << 24)
                };
                let sum = (0..table.limbs).rev().fold(0.0, |sum, p| sum + limb(p));
                let wanted = decode_element(&Grid::of(format), table.width, code, &GroupScale::step(1.0));
                assert!(sum == wanted || !(sum.is_finite() || wanted.is_finite()), "{text}, code {code}");
            }
        }
    }

    #[test]
    fn what_no_table_holds_is_decoded() {
        for text in ["int12", "fp16", "binary2", "int4:g7", "uint8", "uint4:g16", "mxfp4/12", "e8m3"] {
            assert!(Table::new(Format::parse(text).unwrap()).is_none(), "{text}");
        }
    }
}
