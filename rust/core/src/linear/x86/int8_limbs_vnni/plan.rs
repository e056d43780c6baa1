//! The formats whose values are integers times a power of two, and the int8 limbs of their codes.

use crate::codec::grid::{Grid, GroupScale, Integers, decode_element};
use crate::codec::scale_search::Chooser;
use crate::format::{Element, Format, Granularity, KQuant, ScaleType};
use crate::simd::Line;
use crate::simd::amx::LINE;

/// Limbs of a weight, at most.
pub(super) const MAX_WEIGHT_LIMBS: usize = 3;
/// Fraction bits to which the levels of code books are rounded: with their range of 2 they fill three limbs.
const BOOK_BITS: i32 = 22;

/// Type of the stored scale of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::linear) enum Scale {
    /// One step for a row, or for all.
    Row,
    /// `2^(code - 127 - shift)`.
    Exponent { shift: i32 },
    /// float16.
    Half,
    /// E4M3 times the tensor's scale.
    Code,
    /// Those of a K-quant's blocks.
    Nested(KQuant),
}

/// How the weights of a format are read.
#[derive(Clone, Debug)]
pub(in crate::linear) struct Plan {
    /// Bits of a code.
    pub(in crate::linear) width: u32,
    /// Codes are bytes of two's complement: their own limbs.
    pub(in crate::linear) bytes: bool,
    /// Limbs of a weight: 1 to 3.
    pub(super) limbs: usize,
    /// Numbers of codes of at most 4 bits, exactly, times `2^shift`: those of the limbs, but for code books.
    pub(in crate::linear) numbers: [f32; 16],
    /// Each limb by code.
    pub(in crate::linear) tables: [[u8; 256]; MAX_WEIGHT_LIMBS],
    /// Largest magnitude of the integers of codes.
    pub(in crate::linear) most: i32,
    /// Added to the integers of codes, so that they are numbers from 0 up.
    pub(in crate::linear) offset: i32,
    /// Limbs of those by code, as bytes without a sign.
    pub(in crate::linear) unsigned: [Line<u8, 256>; MAX_WEIGHT_LIMBS],
    /// Code 0 is the number 0.
    pub(super) zero_is_zero: bool,
    /// Byte permutation: for each run of eight codes, the bytes of packed codes that hold it.
    pub(super) gather: Line<u8, LINE>,
    /// First bit of each code inside its run.
    pub(super) shifts: Line<u8, LINE>,
    /// Fraction bits of the numbers.
    pub(in crate::linear) shift: i32,
    /// Columns that share a stored scale; all of a row where that is `usize::MAX`.
    pub(in crate::linear) group: usize,
    pub(in crate::linear) scale: Scale,
    /// Codes are numbers plus a zero point.
    pub(in crate::linear) zeros: bool,
    /// Groups have an offset behind their scale.
    pub(in crate::linear) offsets: bool,
}

impl Plan {
    /// The plan of a format; `None` where there is none.
    pub(in crate::linear) fn new(format: Format) -> Option<Self> {
        let width = format.width();
        if width > 8 {
            return None;
        }
        let (group, scale) = grouping(format)?;
        let grid = Grid::of(format);
        let zeros = matches!(grid, Grid::Integer { layout: Integers::Offset, .. });
        if matches!(grid, Grid::Levels(2..)) {
            return None; // several scales a number
        }
        let one = GroupScale { step: 1.0, zero: 0, offset: 0.0, levels: [1.0; 4] };
        let numbers: Vec<f64> =
            (0..1u32 << width).map(|code| f64::from(decode_element(&grid, width, code, &one))).collect();
        let (shift, limbs) = match grid {
            Grid::Book(_) => (BOOK_BITS, MAX_WEIGHT_LIMBS),
            _ => integers(&numbers)?,
        };
        let mut tables = [[0; 256]; MAX_WEIGHT_LIMBS];
        for code in 0..256 {
            let number = numbers[code & (numbers.len() - 1)];
            let mut rest = (number * crate::float::exp2(shift)).round_ties_even() as i64;
            for table in &mut tables[..limbs] {
                let limb = rest as i8;
                table[code] = limb.cast_unsigned();
                rest = (rest - i64::from(limb)) >> 8;
            }
        }
        let bytes = width == 8 && limbs == 1 && (0..256).all(|code| usize::from(tables[0][code]) == code);
        let integers: [i32; 256] = std::array::from_fn(|code| {
            tables[..limbs].iter().rev().fold(0, |n, table| n * 256 + i32::from(table[code].cast_signed()))
        });
        let offset = -integers.iter().copied().min().unwrap_or(0);
        Some(Self {
            width,
            bytes,
            limbs,
            numbers: std::array::from_fn(|code| match numbers.len() <= 16 {
                true => (numbers[code % numbers.len()] * crate::float::exp2(shift)) as f32,
                false => 0.0,
            }),
            tables,
            most: integers.iter().map(|n| n.abs()).max().unwrap_or(0),
            offset,
            unsigned: std::array::from_fn(|limb| {
                Line(std::array::from_fn(|code| ((integers[code] + offset) >> (8 * limb)) as u8))
            }),
            zero_is_zero: integers[0] == 0,
            gather: Line(std::array::from_fn(|i| (i / 8 * width as usize + i % 8) as u8 & 63)),
            shifts: Line(std::array::from_fn(|i| (i % 8 * width as usize) as u8)),
            shift,
            group,
            scale,
            zeros,
            offsets: format.has_offsets(),
        })
    }
}

impl Plan {
    /// True where numbers are bytes with a sign, zero points apart, and have no offsets.
    pub(in crate::linear) const fn is_bytes(&self) -> bool {
        self.limbs == 1 && !self.offsets
    }

    /// True where inputs of the format are multiplied by their codes: numbers of one limb without zero points.
    pub(in crate::linear) const fn has_codes(&self) -> bool {
        self.is_bytes() && !self.zeros
    }
}

/// Columns that share a scale (`usize::MAX`: a whole row) and the type of the scale; `None` for group lengths that do not
/// fill vectors.
pub(in crate::linear) fn grouping(format: Format) -> Option<(usize, Scale)> {
    if let Element::KQuant(kind) = format.element() {
        return Some((kind.group(), Scale::Nested(kind)));
    }
    let Granularity::Block(block) = format.granularity() else { return Some((usize::MAX, Scale::Row)) };
    let scale = match (format.scale_type(), Chooser::of(format)) {
        (Some(ScaleType::F16), _) => Scale::Half,
        (_, Chooser::Exponent { shift, .. }) => Scale::Exponent { shift },
        (_, Chooser::NvFp4) => Scale::Code,
        _ => return None,
    };
    let fits = matches!(block, 16 | 32) || block.is_multiple_of(64);
    fits.then_some((block as usize, scale))
}

/// The fewest fraction bits with which all numbers are integers of at most three limbs, and the limbs they need.
fn integers(numbers: &[f64]) -> Option<(i32, usize)> {
    let (low, high) = numbers.iter().fold((0.0f64, 0.0f64), |(low, high), &v| (low.min(v), high.max(v)));
    let finite = numbers.iter().all(|v| v.is_finite());
    (-8..=24).filter(|_| finite).find_map(|shift| {
        let scaled = |v: f64| v * crate::float::exp2(shift);
        if numbers.iter().any(|&v| scaled(v).fract() != 0.0) {
            return None;
        }
        // `d` limbs, bytes with a sign, reach from -128 to 127 times 1 + 256 + 256^2 + ...
        let mut ones = 0.0;
        (1..=MAX_WEIGHT_LIMBS).find_map(|limbs| {
            ones = ones * 256.0 + 1.0;
            (scaled(low) >= -128.0 * ones && scaled(high) <= 127.0 * ones).then_some((shift, limbs))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Option<Plan> {
        Plan::new(Format::parse(text).unwrap())
    }

    #[test]
    fn limbs_add_up_to_the_numbers_of_the_format() {
        for text in
            ["int8", "int4:g32", "mxint6", "mxfp4", "mxfp6e3m2", "e3m4", "bm8e4/16", "nvfp4", "bfp8/16", "ternary"]
        {
            let (format, plan) = (Format::parse(text).unwrap(), plan(text).unwrap());
            for code in 0..1u32 << plan.width {
                let limbs = plan.tables[..plan.limbs].iter().rev();
                let sum = limbs.fold(0.0, |sum, table| sum * 256.0 + f64::from(table[code as usize].cast_signed()));
                let wanted = decode_element(&Grid::of(format), plan.width, code, &GroupScale::step(1.0));
                assert_eq!(sum * crate::float::exp2(-plan.shift), f64::from(wanted), "{text}, code {code}");
            }
        }
    }

    #[test]
    fn formats_that_are_no_small_integers_have_no_plan() {
        for text in ["int12", "fp16", "e5m2", "mxfp8e5m2", "log8", "binary2", "int4:g7", "mxfp4/12"] {
            assert!(plan(text).is_none(), "{text}");
        }
        assert!(plan("mxint8").unwrap().bytes && plan("int8:channel").unwrap().bytes);
        assert!(!plan("bfp8/16").unwrap().bytes && !plan("uint8").unwrap().bytes);
    }
}
