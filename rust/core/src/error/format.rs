//! Format texts that are wrong, and formats that cannot do what was asked.

use crate::format::Format;

/// A format text that is unknown or contradicts itself, or a format that cannot do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// No family has such a text.
    #[error("unknown format '{text}'{}", match .nearest {
        Some(name) => format!("; did you mean '{name}'?"),
        None => "; `octavo formats` lists the families".to_owned(),
    })]
    Unknown {
        /// The text given, cut where it is long.
        text: String,
        /// The nearest spelling, where one is near.
        nearest: Option<&'static str>,
    },
    /// Sparse codes of a format, or for a number of rows, that no kernel multiplies.
    #[error("'{format}': no kernel multiplies sparse codes with {rows} rows of inputs here; expand them first")]
    SparseProduct {
        /// The format.
        format: Format,
        /// Rows of inputs.
        rows: usize,
    },
    /// The family is known; a number or an option in the text is wrong.
    #[error("format '{text}': {fault}")]
    Text {
        /// The text given.
        text: String,
        /// What is wrong with it.
        fault: TextFault,
    },
    /// No dtype has this name.
    #[error("unknown dtype '{name}'; accepted are float32, float16, bfloat16")]
    UnknownDtype {
        /// The name given.
        name: String,
    },
    /// No rule of block scales has this name.
    #[error("unknown scale rule '{name}'; accepted are floor, ceil, mse")]
    UnknownScaleRule {
        /// The name given.
        name: String,
    },
    /// No policy for NaN and infinity has this name.
    #[error("unknown nonfinite policy '{name}'; accepted are error, saturate, nan")]
    UnknownNonfinite {
        /// The name given.
        name: String,
    },
    /// Moments of an optimizer in a format that cannot hold parts of a tensor by themselves.
    #[error(
        "'{format}' cannot hold the moments of an optimizer; accepted are formats with blocks of a power of two up to 256 values, and with scales alone beside their codes, such as bm8e4/256"
    )]
    Moments {
        /// The format.
        format: Format,
    },
    /// Values for a format that nothing is encoded in.
    #[error("'{format}' holds blocks of GGUF files as they are; nothing is encoded in it. Use '{}' instead", .format.instead().unwrap_or_default())]
    Carried {
        /// The format.
        format: Format,
    },
    /// A rule of block scales for a format without blocks.
    #[error(
        "'{format}' has no block scale, so scale='ceil' and 'mse' do not apply; they are for mx*, bfp, bm, blog and nvfp4"
    )]
    NoBlockScale {
        /// The format.
        format: Format,
    },
    /// NaN is to be stored, and no code stands for it.
    #[error("'{format}' cannot store NaN; nonfinite=\"saturate\" maps it to 0")]
    NoNan {
        /// The format.
        format: Format,
    },
    /// Scales were given for a format that has none.
    #[error("'{format}' has no scales, but scales were given")]
    NoScales {
        /// The format.
        format: Format,
    },
    /// A given scale is NaN or infinite, or negative in a format whose scales have no sign.
    #[error(
        "'{format}': given scale {value} at position {position}; scales must be finite{}",
        if .format.has_signed_scales() { "" } else { " and not negative" }
    )]
    GivenScale {
        /// The format.
        format: Format,
        /// The scale.
        value: f32,
        /// Its position.
        position: usize,
    },
    /// A given code of a shared exponent stands for NaN.
    #[error("'{format}': given scale code 255 (NaN) at position {position}")]
    GivenScaleNan {
        /// The format.
        format: Format,
        /// Its position.
        position: usize,
    },
    /// A given E4M3 code is negative or NaN.
    #[error("'{format}': given scale code {code} at position {position} is negative or NaN")]
    GivenScaleCode {
        /// The format.
        format: Format,
        /// The code.
        code: u8,
        /// Its position.
        position: usize,
    },
    /// The gradient of scales that do not learn was asked for.
    #[error("'{format}': only given scales of intW and fixedW can learn")]
    NotLearnable {
        /// The format.
        format: Format,
    },
    /// A format that integer products do not take.
    #[error(
        "integer products take int2 to int8 with :tensor or :channel scales, or both by groups; the {what} format is \
         '{format}'"
    )]
    IntegerProduct {
        /// Whose format it is: `weight` or `input`.
        what: &'static str,
        /// The format.
        format: Format,
    },
    /// Given scales or an integer bias, where each group has a scale.
    #[error(
        "integer products of '{weight}' weights and '{input}' inputs have a scale for each group, chosen from the inputs; \
         they take neither input scales nor integer biases"
    )]
    GroupedProduct {
        /// Format of the weights.
        weight: Format,
        /// Format of the inputs.
        input: Format,
    },
    /// More values than are listed.
    #[error("'{format}' has 2^{width} codes; values() lists formats of up to 16 bits")]
    TooManyValues {
        /// The format.
        format: Format,
        /// Bits of a code.
        width: u32,
    },
    /// The p of a norm is out of range.
    #[error("norm p = {power}; accepted are numbers above 0 and up to 2")]
    Norm {
        /// The p given.
        power: f32,
    },
    /// A refusal of a crate on top.
    #[error("{0}")]
    Other(String),
}

/// What is wrong with the text of a format whose family is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextFault {
    /// A number with zeros in front.
    #[error("{what} '{digits}' has a leading zero")]
    LeadingZero {
        /// The number's meaning.
        what: &'static str,
        /// As it is written.
        digits: String,
    },
    /// A number out of range.
    #[error("{what} {digits} is outside {least}..{most}")]
    Outside {
        /// The number's meaning.
        what: &'static str,
        /// As it is written.
        digits: String,
        /// The smallest number accepted.
        least: u32,
        /// The largest.
        most: u32,
    },
    /// A number that must be there.
    #[error("{what} is missing")]
    Missing {
        /// The number's meaning.
        what: &'static str,
    },
    /// A block size for a family without blocks.
    #[error("'{name}' takes no block size '/{block}'{}", if *.groups { format!("; groups are written '{name}:g{block}'") } else { String::new() })]
    NoBlock {
        /// The text before the block size.
        name: String,
        /// The block size.
        block: String,
        /// The family has groups instead.
        groups: bool,
    },
    /// A block size that is no number.
    #[error("block size '{block}' is no number")]
    BlockSize {
        /// As it is written.
        block: String,
    },
    /// A family with blocks, and no block size.
    #[error("the block size is missing; write for example '{name}/16'")]
    BlockMissing {
        /// The text before the block size.
        name: String,
    },
    /// Exponent bits that leave none for the mantissa.
    #[error("{width} bits leave no mantissa beside {exponent} exponent bits and a sign")]
    NoMantissa {
        /// Bits of a code.
        width: u8,
        /// Exponent bits among them.
        exponent: u8,
    },
    /// A number of mantissa bits out of range.
    #[error("{width} bits with {exponent} exponent bits and a sign give {mantissa} mantissa bits, outside 0..10")]
    Mantissa {
        /// Bits of a code.
        width: u8,
        /// Exponent bits among them.
        exponent: u8,
        /// What is left of them.
        mantissa: i16,
    },
    /// Unit steps and residual levels, which need scales.
    #[error("'unit' contradicts residual levels, which need scales")]
    UnitLevels,
    /// An option stands there twice.
    #[error("option '{option}' is given twice")]
    Twice {
        /// The option.
        option: &'static str,
    },
    /// An option that others have.
    #[error("'{name}' has no option '{option}'")]
    NoOption {
        /// The text before the options.
        name: String,
        /// The option.
        option: &'static str,
    },
    /// A group size that is no number.
    #[error("group '{option}' is not of the form g32")]
    Group {
        /// As it is written.
        option: String,
    },
    /// An option of groups without a group size.
    #[error("'{option}' is for groups; write for example '{name}:g32,{option}'")]
    GroupMissing {
        /// The text before the options.
        name: String,
        /// The option.
        option: &'static str,
    },
    /// An option that none has.
    #[error("unknown option '{option}'; '{name}' takes: {accepted}")]
    UnknownOption {
        /// The option.
        option: String,
        /// The text before the options.
        name: String,
        /// The options of the family.
        accepted: &'static str,
    },
    /// Two options that exclude each other.
    #[error("options '{first}' and '{second}' contradict each other")]
    Contradiction {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
}
