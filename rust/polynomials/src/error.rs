//! The errors of lines, and the faults of integer models: a variant for each refusal, with the numbers as fields. Model
//! folders are refused with the errors of `octavo_engine`, in which [`octavo_engine::Error::fault`] finds a
//! [`octavo_engine::ModelFault`] or an [`IntegerFault`].

use crate::config::Architecture;
use crate::{CHARACTERS, LONGEST_LEFT};

/// What can go wrong while lines are read, drawn or turned into ids. Messages are lower case and carry the numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A left side that the law does not print.
    #[error("{left:?}{}, column {column}: {fault}", if *.cut { "..." } else { "" })]
    Left {
        /// The left side, cut.
        left: String,
        /// There was more of it.
        cut: bool,
        /// Column of the fault, from 1.
        column: usize,
        /// What is wrong there.
        fault: LeftFault,
    },
    /// A factor or a symbol that the law does not have.
    #[error(transparent)]
    Factor(#[from] FactorFault),
    /// Every draw of a line met one that is excluded.
    #[error("line {line} of stream {seed}: {draws} draws met one of the {excluded} excluded lines each; exclude fewer")]
    Excluded {
        /// Number of the line.
        line: u64,
        /// Seed of the generator.
        seed: u64,
        /// Draws made.
        draws: usize,
        /// Lines that are excluded.
        excluded: usize,
    },
    /// More lines than one call gives.
    #[error("{count} lines at once; accepted are up to {limit}")]
    Count {
        /// Lines asked for.
        count: usize,
        /// The largest number accepted.
        limit: usize,
    },
    /// Lines whose numbers pass the last one.
    #[error("{count} lines from line {start}: numbers of lines end at {}", u64::MAX)]
    Range {
        /// Number of the first line.
        start: u64,
        /// Lines asked for.
        count: usize,
    },
    /// A tokenizer without one of the [`CHARACTERS`].
    #[error("the tokenizer has no character {character:?}; polynomials need {CHARACTERS:?}")]
    Tokenizer {
        /// The first that it lacks.
        character: char,
    },
    /// A buffer for ids that is too small.
    #[error("{side}: {rows} rows of {width} ids do not fit into {bytes} bytes")]
    Buffer {
        /// `source` or `target`.
        side: &'static str,
        /// Rows of ids.
        rows: usize,
        /// Ids of a row.
        width: usize,
        /// Bytes of the buffer.
        bytes: usize,
    },
    /// Lines that are longer than the rows asked for.
    #[error(
        "pad_to {pad_to:?}: the longest sides of lines {first} to {last} take {longest:?} tokens, the end token included"
    )]
    PadTo {
        /// Ids of a row of sources and of targets.
        pad_to: (usize, usize),
        /// Number of the first line.
        first: u64,
        /// Number of the last line.
        last: u64,
        /// Tokens of the longest left and right side.
        longest: (usize, usize),
    },
    /// A refusal of octavo-core: threads, memory.
    #[error(transparent)]
    Core(#[from] octavo_core::Error),
}

/// A factor or a symbol that the law does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FactorFault {
    /// A coefficient of the symbol.
    #[error("coefficient {value}; accepted are -9 to 8 without 0")]
    Coefficient {
        /// The coefficient.
        value: i16,
    },
    /// A constant.
    #[error("constant {value}; accepted are -32 to 31")]
    Constant {
        /// The constant.
        value: i16,
    },
    /// A letter.
    #[error("letter {letter:?}; accepted are the letters of 'sincostanhijkxyz'")]
    Letter {
        /// The letter.
        letter: char,
    },
}

/// What is wrong at a column of a left side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeftFault {
    /// A character that no left side has.
    #[error("unknown character {character:?}; allowed are {CHARACTERS:?}")]
    Character {
        /// The character.
        character: char,
    },
    /// More characters than the longest left side.
    #[error("{characters} characters; the longest left side has {LONGEST_LEFT}")]
    Length {
        /// Number of characters.
        characters: usize,
    },
    /// Something else than the grammar has here.
    #[error("expected {what}")]
    Expected {
        /// What it has.
        what: &'static str,
    },
    /// A product without a symbol.
    #[error("no symbol; expected a product of two factors such as 2*x+3")]
    NoSymbol,
    /// A symbol after another one.
    #[error("another symbol than before; a line has one")]
    AnotherSymbol,
    /// A number with more digits than any of a line.
    #[error("a number of {digits} digits")]
    Digits {
        /// How many.
        digits: usize,
    },
    /// The coefficient of a square that no two factors give.
    #[error("{coefficient} is no product of two coefficients of -9 to 8 without 0")]
    Square {
        /// The coefficient.
        coefficient: i16,
    },
    /// A factor that the law does not have.
    #[error(transparent)]
    Factor(#[from] FactorFault),
    /// Another order or spelling than SymPy's.
    #[error("not as SymPy prints it, which is {printed:?}")]
    Spelling {
        /// The text that SymPy prints.
        printed: String,
    },
}

/// What is wrong with the file of an integer model, or with one of its tensors.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum IntegerFault {
    /// An architecture that has no integer model.
    #[error("{place}: architecture {}; integer models are hybrid", .architecture.name())]
    Architecture {
        /// The folder.
        place: String,
        /// The architecture.
        architecture: Architecture,
    },
    /// A code of -128.
    #[error("code -128 at flat position {position}; accepted are -127 to 127")]
    Code {
        /// Its position in the flattened matrix.
        position: usize,
    },
    /// A scale of a row that is negative or not finite.
    #[error("scale {scale} of row {row}; accepted are finite ones from 0")]
    Scale {
        /// The scale.
        scale: f32,
        /// The row.
        row: usize,
    },
    /// Sums of products that may leave int32.
    #[error("with its matrix a sum may reach {largest}; accepted are up to {}", i32::MAX)]
    Sum {
        /// The largest magnitude that a sum may have.
        largest: i64,
    },
    /// Bits of an input that no kernel takes.
    #[error("{found:?}; accepted is one number, 8 or 16")]
    Bits {
        /// The numbers found.
        found: Vec<i32>,
    },
    /// A step of codes that is none.
    #[error("{found:?}; accepted is one number above 0 with a finite inverse")]
    Step {
        /// The numbers found.
        found: Vec<f32>,
    },
    /// Two layers that read one tensor with different scales.
    #[error("{scale}; {other}, which reads the same tensor, has {theirs}")]
    InputScale {
        /// The scale of this layer.
        scale: f32,
        /// The other layer.
        other: String,
        /// Its scale.
        theirs: f32,
    },
    /// Two layers that read one tensor with different bits.
    #[error("other than those of {other}, which reads the same tensor")]
    InputBits {
        /// The other layer.
        other: String,
    },
}

/// `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// For callers that know octavo-core's errors alone: the same texts in its kinds.
impl From<Error> for octavo_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => error,
            Error::Buffer { .. } => Self::shape(error.to_string()),
            error => Self::data(error.to_string()),
        }
    }
}
