//! Byte pair tokenizers: their files, and texts for them.

/// What is wrong with a byte pair tokenizer, its file, or a text for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BytePairFault {
    /// A file beyond the limit.
    #[error("{bytes} bytes; a file of a tokenizer has at most {limit}")]
    Bytes {
        /// Bytes of the file.
        bytes: usize,
        /// The largest number accepted.
        limit: usize,
    },
    /// Added tokens beyond the limit.
    #[error("added tokens of {bytes} bytes; accepted are at most {limit} together")]
    AddedBytes {
        /// Bytes of all of them.
        bytes: usize,
        /// The largest number accepted.
        limit: usize,
    },
    /// A vocabulary without tokens.
    #[error("a vocabulary without tokens")]
    NoTokens,
    /// An id that is too large.
    #[error("id {id}; accepted are ids below {limit}")]
    Id {
        /// The id.
        id: u64,
        /// The first id that is too large.
        limit: u32,
    },
    /// A token without bytes.
    #[error("the token of id {id} is empty")]
    Empty {
        /// Its id.
        id: u32,
    },
    /// Two tokens of one id, or two ids of one token.
    #[error("token {token}, id {id}: the token or its id is there twice")]
    Twice {
        /// The token, escaped and cut.
        token: String,
        /// Its id.
        id: u32,
    },
    /// An id without a token.
    #[error("id {id} is no token of the vocabulary")]
    NoToken {
        /// The id.
        id: u32,
    },
    /// More merges than are accepted.
    #[error("{count} merges; accepted are fewer than {limit}")]
    Merges {
        /// The number of merges.
        count: usize,
        /// The first number that is too large.
        limit: u32,
    },
    /// A merge that is not that of two tokens to a third one.
    #[error("merge {rank} of {left} and {right}: these, or both together, are not in the vocabulary")]
    Merge {
        /// Its number, from 0.
        rank: usize,
        /// The left token, escaped and cut.
        left: String,
        /// The right token, escaped and cut.
        right: String,
    },
    /// A line that is no merge or no rank.
    #[error("line {line}: {text}; accepted is {accepted}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The line, escaped and cut.
        text: String,
        /// What is accepted.
        accepted: &'static str,
    },
    /// A file of ranks without a byte.
    #[error("byte 0x{byte:02x} has no rank; a file of ranks has all 256 bytes")]
    NoByte {
        /// The byte.
        byte: u8,
    },
    /// A pattern that is not known.
    #[error("pattern {found:?} is not known; accepted are those of {accepted}")]
    Pattern {
        /// The name or the regular expression, cut.
        found: String,
        /// The patterns known.
        accepted: String,
    },
    /// A part of a file with another value than those known here.
    #[error("{field}: {found}; accepted is {accepted}")]
    Field {
        /// Where it stands.
        field: &'static str,
        /// The value found, cut.
        found: String,
        /// What is accepted.
        accepted: &'static str,
    },
    /// A special token in a text where they are refused.
    #[error(
        "text {text}: special token {token} at byte {place}; allow special tokens to get its id, split them to take it as text"
    )]
    Special {
        /// The number of the text, from 0.
        text: usize,
        /// The byte where it begins.
        place: usize,
        /// The token, escaped.
        token: String,
    },
    /// A byte that the vocabulary has no token for.
    #[error("text {text}: byte 0x{byte:02x} has no token in this vocabulary")]
    MissingByte {
        /// The number of the text, from 0.
        text: usize,
        /// The byte.
        byte: u8,
    },
}
