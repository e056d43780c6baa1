//! Formats whose codes the int8 tensor cores can multiply as bytes, and how codes become bytes.

use octavo_core::format::{Granularity, ScaleType};
use octavo_core::{Format, Layout, Packed, Sizes, ValuesMut, codec, pack_rows};

use crate::Result;

/// How a code becomes a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unpack {
    /// Two's complement, moved to the top of the byte.
    Shifted,
    /// The code itself.
    Plain,
    /// One of these.
    Table(Vec<u8>),
}

/// The numbers of a format as bytes times a power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) unpack: Unpack,
    /// A byte counts `2^unit`, at scale 1.
    pub(crate) unit: i32,
    /// Bytes have no sign.
    pub(crate) unsigned: bool,
}

/// Powers of two that a byte may count.
const UNITS: std::ops::RangeInclusive<i32> = -120..=120;

impl Bytes {
    /// `None` for formats wider than 8 bits, formats whose values are not small integers, and formats with several scales
    /// an element.
    pub(crate) fn of(format: Format) -> Result<Option<Self>> {
        let width = format.width();
        if width > 8 || format.scales_per_group() > 1 {
            return Ok(None);
        }
        let numbers = numbers(format)?;
        let sign = |code: usize| i32::from(((code << (8 - width)) as u8).cast_signed() >> (8 - width));
        // The largest unit of which all are multiples.
        for unit in UNITS.rev() {
            let counts: Vec<f32> = numbers.iter().map(|number| number * 2.0f32.powi(-unit)).collect();
            if counts.iter().any(|count| count.fract() != 0.0 || !count.is_finite()) {
                continue;
            }
            let all = |rule: &dyn Fn(usize) -> i32| counts.iter().enumerate().all(|(code, &v)| v == rule(code) as f32);
            if all(&sign) {
                let unpack = if width == 8 { Unpack::Plain } else { Unpack::Shifted };
                return Ok(Some(Self { unpack, unit: unit - (8 - width as i32), unsigned: false }));
            }
            if all(&|code| code as i32) {
                return Ok(Some(Self { unpack: Unpack::Plain, unit, unsigned: true }));
            }
            if counts.iter().all(|count| (-128.0..=127.0).contains(count)) {
                let table = counts.iter().map(|&count| (count as i8).cast_unsigned()).collect();
                return Ok(Some(Self { unpack: Unpack::Table(table), unit, unsigned: false }));
            }
            return Ok(None);
        }
        Ok(None)
    }
}

/// The number of each code at scale 1 and zero point 0.
pub(crate) fn numbers(format: Format) -> Result<Vec<f32>> {
    let (width, count) = (format.width(), 1usize << format.width());
    let layout = Layout::new(&[1, count], -1, format)?;
    let sizes = Sizes::new(format, &layout)?;
    let all: Vec<u32> = (0..count as u32).collect();
    let mut codes = vec![0; sizes.codes];
    pack_rows(&all, 1, count, width, &mut codes)?;
    let one: &[u8] = match format.scale_type() {
        Some(ScaleType::F32) => &[0, 0, 0x80, 0x3f],
        Some(ScaleType::F16) => &[0, 0x3c],
        Some(ScaleType::E8M0) => &[127],
        Some(ScaleType::E4M3) => &[0x38],
        Some(ScaleType::I8 | ScaleType::Nested) | None => &[0],
    };
    let scales: Vec<u8> = one.iter().copied().cycle().take(sizes.scales).collect();
    let levels: &[u8] = if format.has_levels() { &[0, 0, 0x80, 0x3f] } else { &[] };
    let packed = Packed { codes: &codes, scales: &scales, zeros: &vec![0; sizes.zeros], levels };
    let mut numbers = vec![0.0; count];
    codec::decode(packed, layout, format, ValuesMut::F32(&mut numbers))?;
    Ok(numbers)
}

/// The widest load, in bytes, that all rows of packed codes allow.
pub(crate) fn load(codes: u64, width: u32, row_bytes: usize) -> u32 {
    let most = match width {
        4 | 8 => 16,
        2 | 6 => 8,
        _ => 4,
    };
    let fits = |load: &u32| codes.is_multiple_of(u64::from(*load)) && row_bytes.is_multiple_of(*load as usize);
    [most, 4].into_iter().find(fits).unwrap_or(1)
}

/// Columns that share a stored scale, 0 where a whole row or tensor does.
pub(crate) fn group(format: Format) -> u32 {
    match format.granularity() {
        Granularity::Block(block) => block,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Option<Bytes> {
        Bytes::of(Format::parse(text).unwrap()).unwrap()
    }

    #[test]
    fn integers_in_disguise_are_found() {
        let plain = |unit, unsigned| Some(Bytes { unpack: Unpack::Plain, unit, unsigned });
        let shifted = |unit| Some(Bytes { unpack: Unpack::Shifted, unit, unsigned: false });
        assert_eq!(bytes("int8"), plain(0, false));
        assert_eq!(bytes("mxint8"), plain(-6, false));
        assert_eq!(bytes("uint4:g32"), plain(0, true));
        assert_eq!(bytes("int4:g128"), shifted(-4));
        assert_eq!(bytes("ternary"), shifted(-6));
        assert_eq!(bytes("fixed6.3"), shifted(-5));
        let table = bytes("mxfp4").unwrap();
        assert_eq!(table.unit, -1);
        assert_eq!(table.unpack, Unpack::Table(vec![0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244]));
        for text in ["bfp8/16", "mxfp6e2m3", "nvfp4", "binary"] {
            assert!(matches!(bytes(text), Some(Bytes { unpack: Unpack::Table(_), .. })), "{text}");
        }
        for text in ["int12", "mxfp8e4m3", "mxfp8e5m2", "nf4", "binary2", "log8", "fp16"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
