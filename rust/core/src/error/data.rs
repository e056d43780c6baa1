//! Texts, tokens and files of them that do not obey the rules of their kind.

use super::byte_pairs::BytePairFault;

/// Text, tokens or a file of them that do not obey the rules of their kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A refusal of the content of a file.
    #[error("{place}: {fault}")]
    At {
        /// Path of the file.
        place: String,
        /// The refusal.
        fault: Box<DataError>,
    },
    /// A file that is no JSON, or not that of a tokenizer.
    #[error("{0}")]
    Json(#[source] serde_json::Error),
    /// A file of a tokenizer beyond the limit.
    #[error("{bytes} bytes; a file of a tokenizer has at most {limit}")]
    FileBytes {
        /// Bytes of the file.
        bytes: usize,
        /// The largest number accepted.
        limit: usize,
    },
    /// A file of another kind of tokenizer, or of another version.
    #[error("type {kind:?}, version {version}; accepted is \"char\", version 1")]
    Kind {
        /// The kind found, cut.
        kind: String,
        /// The version found.
        version: u64,
    },
    /// Special tokens with other numbers.
    #[error(
        "special tokens pad {}, start {}, end {}; accepted are pad {}, start {}, end {}",
        .found[0], .found[1], .found[2], .accepted[0], .accepted[1], .accepted[2]
    )]
    SpecialTokens {
        /// Numbers of padding, start and end found.
        found: [u64; 3],
        /// Those accepted.
        accepted: [u64; 3],
    },
    /// Characters of a vocabulary that are not in ascending order.
    #[error("characters: {character:?} at position {position} {fault}; accepted are distinct ones in ascending order")]
    CharacterOrder {
        /// The character.
        character: char,
        /// Its position.
        position: usize,
        /// Its fault, in words.
        fault: &'static str,
    },
    /// More characters than a vocabulary has.
    #[error("characters: more than {limit}")]
    CharacterLimit {
        /// The largest number.
        limit: usize,
    },
    /// A vocabulary of no or too many characters.
    #[error("a vocabulary of {count} characters; accepted are 1 to {limit}")]
    VocabularySize {
        /// The number of characters.
        count: usize,
        /// The largest number.
        limit: usize,
    },
    /// A vocabulary with the character that separates lines.
    #[error("a vocabulary with a line feed, which separates lines")]
    LineFeed,
    /// A line with more tokens than are accepted.
    #[error("line {line}: {tokens} tokens{}; the limit is {limit}", match .specials {
        0 => String::new(),
        specials => format!(", {specials} of them special"),
    })]
    LineTokens {
        /// Number of the line, from 1.
        line: usize,
        /// Its tokens.
        tokens: usize,
        /// How many of them are special ones.
        specials: usize,
        /// The largest number.
        limit: usize,
    },
    /// A character that the vocabulary does not have.
    #[error("line {line}, column {column}: character {character:?} is not in the vocabulary; allowed are {allowed}")]
    UnknownCharacter {
        /// Number of the line, from 1.
        line: usize,
        /// Column of the character, from 1.
        column: usize,
        /// The character.
        character: char,
        /// The vocabulary, cut.
        allowed: String,
    },
    /// A line that is no text.
    #[error("line {line}, column {column}: broken UTF-8 at byte 0x{byte:02x}")]
    BrokenUtf8 {
        /// Number of the line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The first byte that is none of a character.
        byte: u8,
    },
    /// A number that is no id.
    #[error("row {row}, column {column}: id {id}; accepted are 0 to {most}")]
    UnknownId {
        /// The row.
        row: usize,
        /// The column.
        column: usize,
        /// The number, as it is printed.
        id: String,
        /// The largest id.
        most: usize,
    },
    /// A part of the file of a WordPiece tokenizer.
    #[error("{field}: {fault}")]
    Field {
        /// The field.
        field: &'static str,
        /// The refusal.
        fault: FieldFault,
    },
    /// A byte pair tokenizer, its file, or a text for it.
    #[error(transparent)]
    BytePairs(#[from] BytePairFault),
    /// A refusal of a crate on top.
    #[error("{0}")]
    Other(String),
}

/// What is wrong with a part of the file of a WordPiece tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldFault {
    /// A file beyond the limit.
    #[error("{bytes} bytes; accepted are {limit}")]
    Bytes {
        /// Bytes of the file.
        bytes: usize,
        /// The largest number accepted.
        limit: usize,
    },
    /// A vocabulary without the token for unknown words.
    #[error("has no {token:?}, the unk_token")]
    NoUnknown {
        /// The token.
        token: String,
    },
    /// A token with rules that are not known here.
    #[error("{token:?}: single_word, lstrip, rstrip, normalized and empty contents are not known here")]
    TokenRules {
        /// The token.
        token: String,
    },
    /// An id that is too large.
    #[error("id {id}; accepted are ids below {limit}")]
    Id {
        /// The id.
        id: u32,
        /// The first id that is too large.
        limit: u32,
    },
    /// A part of another type, or of none.
    #[error("{}; accepted is {}", match .found {
        Some(name) => format!("type {name:?}"),
        None => "has no type".to_owned(),
    }, .accepted.join(" or "))]
    Type {
        /// The type found.
        found: Option<String>,
        /// The types accepted.
        accepted: &'static [&'static str],
    },
    /// A special token that is not described.
    #[error("{token:?} is not among its special_tokens")]
    NoSpecial {
        /// The token.
        token: String,
    },
    /// A template with another number of texts.
    #[error("{count} sequences in a text alone; accepted is one")]
    Sequences {
        /// The number found.
        count: usize,
    },
}
