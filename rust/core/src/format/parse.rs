//! Reads the grammar of FORMATS.md section 1: `element [ "/" BLOCK ] [ ":" option { "," option } ]`.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::ops::RangeInclusive;

use super::catalogue::nearest;
use super::{Element, Format, Granularity, KQuant, MAX_BLOCK, MAX_OFFSET, Minifloat, Specials, default_bias};
use crate::error::{Error, FormatError, Result, TextFault};

/// Most bits of `intW:gN,full` and `uintW:gN,offset`: a code times a float16, plus one, is then exact in float64.
const MAX_REAL_RANGE: u8 = 8;
/// Longest text looked at; the longest valid one is shorter than this.
const MAX_TEXT: usize = 64;

fn unknown(text: &str) -> Error {
    let shown: String = text.chars().take(MAX_TEXT).collect();
    FormatError::Unknown { nearest: nearest(&shown), text: shown }.into()
}

fn wrong(text: &str, fault: TextFault) -> Error {
    FormatError::Text { text: text.to_owned(), fault }.into()
}

/// Reads numbers and letters off the front of a text.
struct Scanner<'a>(&'a str);

impl Scanner<'_> {
    fn eat(&mut self, prefix: &str) -> bool {
        self.0.strip_prefix(prefix).map(|rest| self.0 = rest).is_some()
    }
    /// A number without leading zeros, of at most five digits, in `range`; `Ok(None)` if no digit follows.
    fn number(&mut self, text: &str, what: &'static str, range: RangeInclusive<u32>) -> Result<Option<u32>> {
        let end = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        if digits.is_empty() {
            return Ok(None);
        }
        self.0 = rest;
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(wrong(text, TextFault::LeadingZero { what, digits: digits.to_owned() }));
        }
        match digits.parse::<u32>() {
            Ok(value) if range.contains(&value) => Ok(Some(value)),
            _ => {
                let (least, most) = range.into_inner();
                Err(wrong(text, TextFault::Outside { what, digits: digits.to_owned(), least, most }))
            }
        }
    }
    fn width(&mut self, text: &str, what: &'static str, range: RangeInclusive<u32>) -> Result<u8> {
        match self.number(text, what, range)? {
            Some(value) => u8::try_from(value).map_err(|_| unknown(text)),
            None => Err(unknown(text)),
        }
    }
    /// An integer with optional minus sign within +-[`MAX_OFFSET`].
    fn offset(&mut self, text: &str, what: &'static str) -> Result<i16> {
        let negative = self.eat("-");
        let Some(magnitude) = self.number(text, what, 0..=MAX_OFFSET.unsigned_abs())? else {
            return Err(wrong(text, TextFault::Missing { what }));
        };
        let magnitude = i16::try_from(magnitude).map_err(|_| unknown(text))?;
        Ok(if negative { magnitude.saturating_neg() } else { magnitude })
    }
    fn bias(&mut self, text: &str, default: i16) -> Result<i16> {
        if self.eat("b") { self.offset(text, "bias") } else { Ok(default) }
    }
}

pub(super) fn parse(text: &str) -> Result<Format> {
    if text.len() > MAX_TEXT || !text.is_ascii() {
        return Err(unknown(text));
    }
    let (head, options) = match text.split_once(':') {
        Some((head, options)) => (head, Some(options)),
        None => (text, None),
    };
    let (name, block) = match head.split_once('/') {
        Some((name, block)) => (name, Some(block)),
        None => (head, None),
    };
    let mut scan = Scanner(name);
    let mut element = parse_element(text, &mut scan)?;
    if !scan.0.is_empty() {
        return Err(unknown(text));
    }
    let mut granularity = default_granularity(&element);
    if let Some(block) = block {
        let Granularity::Block(_) = granularity else {
            let groups = matches!(element, Element::Int { .. });
            return Err(wrong(text, TextFault::NoBlock { name: name.to_owned(), block: block.to_owned(), groups }));
        };
        let mut scan = Scanner(block);
        let size = scan.number(text, "block size", 1..=MAX_BLOCK)?;
        match size {
            // The scales of a K-quant's block have one arrangement.
            Some(size) if matches!(element, Element::KQuant(_)) && size != KQuant::BLOCK => {
                return Err(wrong(
                    text,
                    TextFault::NoBlock { name: name.to_owned(), block: block.to_owned(), groups: false },
                ));
            }
            Some(size) if scan.0.is_empty() => granularity = Granularity::Block(size),
            _ => return Err(wrong(text, TextFault::BlockSize { block: block.to_owned() })),
        }
    } else if granularity == Granularity::Block(0) {
        return Err(wrong(text, TextFault::BlockMissing { name: name.to_owned() }));
    }
    if let Some(options) = options {
        apply_options(text, name, options, &mut element, &mut granularity)?;
    }
    Ok(Format { element, granularity })
}

fn parse_element(text: &str, scan: &mut Scanner<'_>) -> Result<Element> {
    let ieee = |exponent, mantissa| {
        Element::Native(Minifloat { exponent, mantissa, bias: default_bias(exponent), specials: Specials::Ieee })
    };
    let exact = match scan.0 {
        "fp32" => Some(ieee(8, 23)),
        "fp16" => Some(ieee(5, 10)),
        "bf16" => Some(ieee(8, 7)),
        "ternary" => Some(Element::Ternary),
        "nvfp4" => Some(Element::NvFp4),
        "q2_k" => Some(Element::KQuant(KQuant::Q2)),
        "q3_k" => Some(Element::KQuant(KQuant::Q3)),
        "q4_k" => Some(Element::KQuant(KQuant::Q4)),
        "q5_k" => Some(Element::KQuant(KQuant::Q5)),
        "q6_k" => Some(Element::KQuant(KQuant::Q6)),
        "mxfp8e4m3" => Some(Element::MxFloat(Minifloat::standard(4, 3))),
        "mxfp8e5m2" => Some(Element::MxFloat(Minifloat::standard(5, 2))),
        "mxfp6e3m2" => Some(Element::MxFloat(Minifloat::standard(3, 2))),
        "mxfp6e2m3" => Some(Element::MxFloat(Minifloat::standard(2, 3))),
        "mxfp4" => Some(Element::MxFloat(Minifloat::standard(2, 1))),
        _ => None,
    };
    if let Some(element) = exact {
        scan.0 = "";
        return Ok(element);
    }
    if scan.eat("mxint") {
        return Ok(Element::MxInt { width: scan.width(text, "width", 2..=16)? });
    }
    for (prefix, signed) in [("ufixed", false), ("fixed", true)] {
        if scan.eat(prefix) {
            let width = scan.width(text, "width", 2..=32)?;
            let fraction = if scan.eat(".") { Some(scan.offset(text, "number of fraction bits")?) } else { None };
            return Ok(Element::Fixed { width, fraction, signed, mse: false });
        }
    }
    for (prefix, signed) in [("uint", false), ("int", true)] {
        if scan.eat(prefix) {
            return Ok(Element::Int { width: scan.width(text, "width", 2..=16)?, signed });
        }
    }
    if scan.eat("binary") {
        let levels = scan.number(text, "number of levels", 1..=4)?.unwrap_or(1);
        return Ok(Element::Binary { levels: u8::try_from(levels).map_err(|_| unknown(text))? });
    }
    if scan.eat("denorm") {
        let width = scan.width(text, "width", 3..=16)?;
        if !scan.eat("e") {
            return Err(unknown(text));
        }
        let exponent = scan.width(text, "exponent width", 1..=8)?;
        if exponent.saturating_add(2) > width {
            return Err(wrong(text, TextFault::NoMantissa { width, exponent }));
        }
        return Ok(Element::Denorm { width, exponent, bias: scan.bias(text, default_bias(exponent))? });
    }
    if scan.eat("log") {
        let width = scan.width(text, "width", 2..=9)?;
        return Ok(Element::Log { width, bias: scan.bias(text, default_bias(width.saturating_sub(1)))? });
    }
    if scan.eat("blog") {
        return Ok(Element::BlockLog { width: scan.width(text, "width", 2..=9)? });
    }
    if scan.eat("bfp") {
        return Ok(Element::Bfp { width: scan.width(text, "width", 2..=16)? });
    }
    if scan.eat("bm") {
        let width = scan.width(text, "width", 2..=16)?;
        if !scan.eat("e") {
            return Err(unknown(text));
        }
        let exponent = scan.width(text, "exponent width", 1..=8)?;
        return match i16::from(width).saturating_sub(1).saturating_sub(i16::from(exponent)) {
            0..=10 => Ok(Element::BlockMinifloat { width, exponent }),
            mantissa => Err(wrong(text, TextFault::Mantissa { width, exponent, mantissa })),
        };
    }
    if scan.eat("nf") {
        return Ok(Element::NormalFloat { width: scan.width(text, "width", 3..=4)? });
    }
    if scan.eat("e") {
        let exponent = scan.width(text, "exponent width", 1..=8)?;
        if !scan.eat("m") {
            return Err(unknown(text));
        }
        let mantissa = scan.width(text, "mantissa width", 0..=10)?;
        let mut float = Minifloat::standard(exponent, mantissa);
        float.bias = scan.bias(text, float.bias)?;
        if float.bias != default_bias(exponent) {
            float.specials = Specials::Finite;
        }
        return Ok(Element::Minifloat(float));
    }
    Err(unknown(text))
}

/// `Block(0)` marks the families whose block size must be written.
pub(super) const fn default_granularity(element: &Element) -> Granularity {
    match element {
        Element::Native(_) | Element::Minifloat(_) | Element::Denorm { .. } | Element::Log { .. } => Granularity::None,
        Element::Fixed { fraction: Some(_), .. } => Granularity::None,
        Element::Fixed { .. }
        | Element::Int { .. }
        | Element::FullRange { .. }
        | Element::Affine { .. }
        | Element::Binary { .. }
        | Element::Ternary => Granularity::Tensor,
        Element::Bfp { .. } | Element::BlockMinifloat { .. } | Element::BlockLog { .. } => Granularity::Block(0),
        Element::MxInt { .. } | Element::MxFloat(_) => Granularity::Block(32),
        Element::NvFp4 => Granularity::Block(16),
        Element::NormalFloat { .. } => Granularity::Block(64),
        Element::KQuant(_) => Granularity::Block(KQuant::BLOCK),
    }
}

fn apply_options(
    text: &str,
    name: &str,
    options: &str,
    element: &mut Element,
    granularity: &mut Granularity,
) -> Result<()> {
    let mut chosen: Option<&str> = None;
    let mut range: Option<(&'static str, Element)> = None;
    for option in options.split(',') {
        let grouped = matches!(element, Element::Int { .. });
        let signs = matches!(element, Element::Binary { .. } | Element::Ternary);
        let calibrated = matches!(element, Element::Fixed { fraction: None, .. });
        let mut group = Scanner(option);
        let next = match option {
            "tensor" if grouped || signs || calibrated => Granularity::Tensor,
            "channel" if grouped || signs || calibrated => Granularity::Channel,
            "unit" if signs => {
                if matches!(element, Element::Binary { levels: 2.. }) {
                    return Err(wrong(text, TextFault::UnitLevels));
                }
                Granularity::None
            }
            "full" | "offset" if grouped => {
                let ranged = real_range(text, name, option, element)?;
                if range.replace(ranged).is_some() {
                    return Err(wrong(text, TextFault::Twice { option: ranged.0 }));
                }
                continue;
            }
            "mse" if calibrated => {
                if let Element::Fixed { mse, .. } = element {
                    if *mse {
                        return Err(wrong(text, TextFault::Twice { option: "mse" }));
                    }
                    *mse = true;
                }
                continue;
            }
            "finite" => {
                let Element::Minifloat(float) = element else {
                    return Err(wrong(text, TextFault::NoOption { name: name.to_owned(), option: "finite" }));
                };
                if chosen.is_some() {
                    return Err(wrong(text, TextFault::Twice { option: "finite" }));
                }
                float.specials = Specials::Finite;
                chosen = Some(option);
                continue;
            }
            _ if grouped && group.eat("g") => match group.number(text, "group size", 1..=MAX_BLOCK)? {
                Some(size) if group.0.is_empty() => Granularity::Block(size),
                _ => return Err(wrong(text, TextFault::Group { option: option.to_owned() })),
            },
            _ => {
                let accepted = if let Element::Int { signed, .. } = element {
                    if *signed { "tensor, channel, gN, full" } else { "tensor, channel, gN, offset" }
                } else if signs {
                    "unit, tensor, channel"
                } else if calibrated {
                    "tensor, channel, mse"
                } else if matches!(element, Element::Minifloat(_)) {
                    "finite"
                } else {
                    "none"
                };
                let (option, name) = (option.to_owned(), name.to_owned());
                return Err(wrong(text, TextFault::UnknownOption { option, name, accepted }));
            }
        };
        if let Some(first) = chosen.replace(option) {
            let (first, second) = (first.to_owned(), option.to_owned());
            return Err(wrong(text, TextFault::Contradiction { first, second }));
        }
        *granularity = next;
    }
    if let Some((option, ranged)) = range {
        if !matches!(granularity, Granularity::Block(_)) {
            return Err(wrong(text, TextFault::GroupMissing { name: name.to_owned(), option }));
        }
        *element = ranged;
    }
    Ok(())
}

/// The element of `intW:gN,full` or `uintW:gN,offset`.
fn real_range(text: &str, name: &str, option: &str, element: &Element) -> Result<(&'static str, Element)> {
    let no = |option| wrong(text, TextFault::NoOption { name: name.to_owned(), option });
    let (option, width, ranged) = match (option, element) {
        ("full", &Element::Int { width, signed: true }) => ("full", width, Element::FullRange { width }),
        ("offset", &Element::Int { width, signed: false }) => ("offset", width, Element::Affine { width }),
        ("full", _) => return Err(no("full")),
        _ => return Err(no("offset")),
    };
    Scanner(&width.to_string()).number(text, "width", 2..=MAX_REAL_RANGE.into())?;
    Ok((option, ranged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_texts_name_the_part_and_the_nearest_spelling() {
        for (text, part) in [
            ("mxfp6e3m3", "did you mean 'mxfp6e3m2'?"),
            ("MXINT8", "did you mean 'mxint8'?"),
            ("int17", "17 is outside 2..16"),
            ("int8/32", "'int8:g32'"),
            ("bfp8", "'bfp8/16'"),
            ("int8:channel,tensor", "contradict"),
            ("int8:g0", "outside 1..65536"),
            ("binary2:unit", "contradicts"),
            ("int8:mse", "takes: tensor, channel, gN, full"),
            ("uint8:mse", "takes: tensor, channel, gN, offset"),
            ("int4:full", "write for example 'int4:g32,full'"),
            ("uint4:channel,offset", "write for example 'uint4:g32,offset'"),
            ("int4:g32,offset", "'int4' has no option 'offset'"),
            ("uint4:g32,full", "'uint4' has no option 'full'"),
            ("int9:g32,full", "9 is outside 2..8"),
            ("int4:g32,full,full", "twice"),
            ("e9m3", "outside 1..8"),
            ("denorm5e4", "leave no mantissa"),
            ("fixed8.", "fraction bits is missing"),
            ("fixed08.4", "leading zero"),
            ("bm16e2/8", "13 mantissa bits"),
            ("e4m3:finite,finite", "twice"),
            ("", "unknown format ''"),
            ("int8:", "unknown option ''"),
            ("mxint8/", "is no number"),
            ("mxint8/99999999999999999999", "outside 1..65536"),
            ("fixed8.512", "outside 0..511"),
            ("é4m3", "unknown format"),
        ] {
            let message = Format::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
