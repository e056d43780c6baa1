//! Prints a format as FORMATS.md section 1 writes it: the shortest text that [`Format::parse`] reads as the same value.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::fmt;

use super::parse::default_granularity;
use super::{Element, Format, Granularity, Minifloat, Specials, default_bias};

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bias = |f: &mut fmt::Formatter<'_>, bias: i16, default: i16| {
            if bias == default { Ok(()) } else { write!(f, "b{bias}") }
        };
        match self.element {
            Element::Native(Minifloat { mantissa: 23, .. }) => f.write_str("fp32")?,
            Element::Native(Minifloat { mantissa: 10, .. }) => f.write_str("fp16")?,
            Element::Native(_) => f.write_str("bf16")?,
            Element::Fixed { width, fraction, signed, .. } => {
                write!(f, "{}fixed{width}", if signed { "" } else { "u" })?;
                if let Some(fraction) = fraction {
                    write!(f, ".{fraction}")?;
                }
            }
            Element::FullRange { width } => write!(f, "int{width}")?,
            Element::Affine { width } => write!(f, "uint{width}")?,
            Element::Int { width, signed } => write!(f, "{}int{width}", if signed { "" } else { "u" })?,
            Element::Minifloat(float) => {
                write!(f, "e{}m{}", float.exponent, float.mantissa)?;
                bias(f, float.bias, default_bias(float.exponent))?;
            }
            Element::Denorm { width, exponent, bias: b } => {
                write!(f, "denorm{width}e{exponent}")?;
                bias(f, b, default_bias(exponent))?;
            }
            Element::Log { width, bias: b } => {
                write!(f, "log{width}")?;
                bias(f, b, default_bias(width.saturating_sub(1)))?;
            }
            Element::Binary { levels: 1 } => f.write_str("binary")?,
            Element::Binary { levels } => write!(f, "binary{levels}")?,
            Element::Ternary => f.write_str("ternary")?,
            Element::Bfp { width } => write!(f, "bfp{width}")?,
            Element::BlockMinifloat { width, exponent } => write!(f, "bm{width}e{exponent}")?,
            Element::BlockLog { width } => write!(f, "blog{width}")?,
            Element::MxInt { width } => write!(f, "mxint{width}")?,
            Element::MxFloat(Minifloat { exponent: 2, mantissa: 1, .. }) => f.write_str("mxfp4")?,
            Element::MxFloat(float) => write!(f, "mxfp{}e{}m{}", float.width(), float.exponent, float.mantissa)?,
            Element::NvFp4 => f.write_str("nvfp4")?,
            Element::KQuant(kind) => write!(f, "q{}_k", kind.width())?,
            Element::NormalFloat { width } => write!(f, "nf{width}")?,
        }
        let signs = matches!(self.element, Element::Binary { .. } | Element::Ternary);
        match self.granularity {
            Granularity::Block(size) if is_integer(&self.element) => write!(f, ":g{size}")?,
            Granularity::Block(size) if default_granularity(&self.element) != self.granularity => write!(f, "/{size}")?,
            Granularity::Channel => f.write_str(":channel")?,
            Granularity::None if signs => f.write_str(":unit")?,
            _ => {}
        }
        match self.element {
            Element::FullRange { .. } => f.write_str(",full"),
            Element::Affine { .. } => f.write_str(",offset"),
            Element::Fixed { mse: true, .. } if self.granularity == Granularity::Channel => f.write_str(",mse"),
            Element::Fixed { mse: true, .. } => f.write_str(":mse"),
            Element::Minifloat(float)
                if float.specials == Specials::Finite
                    && Minifloat::standard(float.exponent, float.mantissa).specials != Specials::Finite
                    && float.bias == default_bias(float.exponent) =>
            {
                f.write_str(":finite")
            }
            _ => Ok(()),
        }
    }
}

/// True where groups are written `:gN`.
const fn is_integer(element: &Element) -> bool {
    matches!(element, Element::Int { .. } | Element::FullRange { .. } | Element::Affine { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::catalogue;

    #[test]
    fn every_catalogue_entry_prints_as_it_was_read() {
        for text in catalogue() {
            assert_eq!(&Format::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn defaults_are_not_printed() {
        for (text, shown) in [
            ("mxint8/32", "mxint8"),
            ("nvfp4/16", "nvfp4"),
            ("nf4/64", "nf4"),
            ("int8:tensor", "int8"),
            ("e4m3b7", "e4m3"),
            ("log8b63", "log8"),
            ("binary1", "binary"),
            ("e3m2:finite", "e3m2"),
            ("fixed8:mse,channel", "fixed8:channel,mse"),
            ("int4:full,g32", "int4:g32,full"),
            ("uint4:offset,g32", "uint4:g32,offset"),
            ("fixed8.0", "fixed8.0"),
            ("fixed8.-3", "fixed8.-3"),
        ] {
            let format = Format::parse(text).unwrap();
            assert_eq!(format.to_string(), shown);
            assert_eq!(Format::parse(shown).unwrap(), format);
        }
    }
}
