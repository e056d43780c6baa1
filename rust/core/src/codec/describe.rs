//! What a format can represent: bits, range, smallest step, and the full list of values.

use super::grid::{Grid, GroupScale, Integers, decode_element, range};
use super::{Layout, Sizes};
use crate::error::{FormatError, Result};
use crate::format::{Element, Format, Granularity, ScaleType};

/// A code and the number it stands for at scale 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementValue {
    /// Bit pattern, right-aligned.
    pub code: u32,
    /// Exact value, without the group's scale.
    pub value: f64,
}

impl Format {
    /// Bits for one element with its share of scales, zero points and second-level scale, for one row of `k` elements
    /// (or a tensor of `k` elements): bytes on disk times 8 over `k`, except that the padding of a short last byte is
    /// left out.
    pub fn bits_per_element(self, k: usize) -> f64 {
        if k == 0 {
            return f64::from(self.width());
        }
        let groups = match self.granularity() {
            Granularity::None => 0,
            Granularity::Tensor => 1,
            _ => self.groups_per_row(k),
        };
        let scale_bits = self.scale_type().map_or(0, ScaleType::bytes) * 8 * self.scales_per_group()
            + if self.has_zeros() { self.width() as usize } else { 0 };
        f64::from(self.width()) + (groups * scale_bits) as f64 / k as f64
    }
    /// Bits per element in the limit of long rows: what the table of FORMATS.md section 1 gives.
    pub fn nominal_bits(self) -> f64 {
        match self.granularity() {
            Granularity::Block(block) => self.bits_per_element(block as usize),
            _ => f64::from(self.width()),
        }
    }
    /// Bytes of a tensor of this shape in this format.
    ///
    /// # Errors
    /// [`Error::Shape`] for shapes that the format does not take or that overflow.
    pub fn bytes_for(self, shape: &[usize], axis: isize) -> Result<usize> {
        Ok(Sizes::new(self, &Layout::new(shape, axis, self)?)?.total())
    }
    /// Lowest and highest finite value at scale 1 (`binaryN`: at unit levels).
    pub fn range(self) -> (f64, f64) {
        match self.element() {
            Element::Binary { levels } => (-f64::from(levels), f64::from(levels)),
            Element::Fixed { fraction: Some(f), .. } => {
                range(&Grid::of(self), &GroupScale::step(crate::float::exp2(-i32::from(f))))
            }
            Element::MxInt { width } => {
                range(&Grid::of(self), &GroupScale::step(crate::float::exp2(2 - i32::from(width))))
            }
            Element::Bfp { width } => {
                range(&Grid::of(self), &GroupScale::step(crate::float::exp2(1 - i32::from(width))))
            }
            _ => range(&Grid::of(self), &GroupScale::step(1.0)),
        }
    }
    /// Smallest positive value at scale 1.
    pub fn smallest(self) -> f64 {
        match (Grid::of(self), self.element()) {
            (_, Element::Fixed { fraction: Some(f), .. }) => crate::float::exp2(-i32::from(f)),
            (_, Element::Binary { levels }) if levels % 2 == 0 => 2.0,
            (_, Element::MxInt { width }) => crate::float::exp2(2 - i32::from(width)),
            (_, Element::Bfp { width }) => crate::float::exp2(1 - i32::from(width)),
            (Grid::Float(float), _) if float.ties_by_field => crate::float::exp2(float.emin),
            (Grid::Float(float), _) => crate::float::exp2(float.emin - float.mantissa as i32),
            (Grid::Book(levels), _) => levels.iter().copied().filter(|&v| v > 0.0).fold(f32::MAX, f32::min).into(),
            _ => 1.0,
        }
    }
    /// Every code that an encoder writes, with its exact value at scale 1, in ascending order of value.
    ///
    /// At scale 1 means: the shared scale, block scale or calibrated F taken as 1, 2^0 or 0, and levels of 1.
    ///
    /// # Errors
    /// [`Error::Format`] for elements of more than 16 bits.
    pub fn values(self) -> Result<Vec<ElementValue>> {
        let width = self.width();
        if width > 16 {
            return Err(FormatError::TooManyValues { format: self, width }.into());
        }
        let grid = Grid::of(self);
        let step = match self.element() {
            Element::Fixed { fraction: Some(f), .. } => crate::float::exp2(-i32::from(f)),
            Element::MxInt { width } => crate::float::exp2(2 - i32::from(width)),
            Element::Bfp { width } => crate::float::exp2(1 - i32::from(width)),
            _ => 1.0,
        };
        let mut listed: Vec<ElementValue> = (0..1u32 << width)
            .filter(|&code| is_canonical(&grid, width, code))
            .map(|code| ElementValue { code, value: exact(&grid, width, code) * step })
            .filter(|entry| entry.value.is_finite())
            .collect();
        listed.sort_by(|a, b| a.value.total_cmp(&b.value));
        Ok(listed)
    }
}

/// Exact number of a code at scale 1.
fn exact(grid: &Grid, width: u32, code: u32) -> f64 {
    match grid {
        Grid::Float(float) => float.value(code),
        _ => {
            let unit = GroupScale { step: 1.0, zero: 0, offset: 0.0, levels: [1.0; 4] };
            f64::from(decode_element(grid, width, code, &unit))
        }
    }
}

/// True for codes that an encoder writes: no negative zero, no number below the grid, no denorm with an exponent
/// larger than needed.
fn is_canonical(grid: &Grid, width: u32, code: u32) -> bool {
    let sign = 1u32 << (width - 1);
    match *grid {
        Grid::Integer { lo, layout: Integers::TwosComplement, .. } if lo < 0 => {
            lo < -i64::from(sign - 1) || code != sign
        }
        Grid::Integer { layout: Integers::SignMagnitude, .. } => code != sign,
        Grid::Float(float) if float.explicit_one => {
            let field = (code & (sign - 1)) >> (float.mantissa + 1);
            let top_bit = code >> float.mantissa & 1;
            code != sign && (field == 0 || top_bit == 1)
        }
        Grid::Float(_) => code != sign,
        _ => true,
    }
}
