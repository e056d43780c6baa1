//! [`BytePairs`]: byte-level byte pair encoding, the tokenizer of GPT-2 and of most models after it.
//!
//! A text is cut at special tokens, then into pieces by a [`Pattern`]; the bytes of each piece merge, pair by pair, into
//! tokens. Sources: Sennrich, Haddow and Birch 2016 (byte pair encoding); Radford et al. 2019 (bytes, the pattern of GPT-2).
//! Ids are those of the packages `tiktoken` and `tokenizers`, whose files are read.

mod byte_characters;
mod character_classes;
mod decode;
mod encode;
mod file_json;
mod file_merges;
mod file_ranks;
mod learn_merges;
mod merge_piece;
mod pair_table;
mod patterns;
mod piece_cache;
mod piece_counts;
mod special_tokens;
#[cfg(test)]
mod tests;
mod token_table;
mod unicode_ranges;
mod vocabulary;

use std::sync::Mutex;

pub use self::encode::Encoded;
pub use self::learn_merges::Learner;
pub use self::pair_table::{MOST_IDS, MOST_MERGES};
pub use self::patterns::Pattern;
pub use self::piece_counts::PieceCounts;
pub use self::special_tokens::{Added, Special};
pub use self::vocabulary::{Order, Parts};

use self::encode::Scratch;
use self::merge_piece::Merges;
use self::special_tokens::AddedTokens;
use self::token_table::TokenTable;

/// A vocabulary of byte pairs, and the rules by which a text becomes ids.
#[derive(Debug)]
pub struct BytePairs {
    parts: Parts,
    tokens: TokenTable,
    merges: Merges,
    added: AddedTokens,
    /// Tokens of up to 15 bytes with their length in the last byte, for decoding.
    short: Vec<[u8; 16]>,
    /// Those lengths alone, which the L1 cache holds: counting bytes reads nothing else.
    lengths: Vec<u8>,
    /// Bytes that the vocabulary has no token for.
    missing: Vec<u8>,
    /// Caches of threads that are done with them.
    idle: Mutex<Vec<Scratch>>,
}

impl BytePairs {
    /// What the tokenizer is made of.
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// One more than the largest id.
    pub fn size(&self) -> usize {
        self.tokens.len()
    }

    /// The bytes of a token; none for a number that is no id.
    pub fn token(&self, id: u32) -> Option<&[u8]> {
        Some(self.tokens.bytes(id)).filter(|bytes| !bytes.is_empty())
    }

    /// The id of a token of these bytes, an added one first.
    pub fn id(&self, token: &[u8]) -> Option<u32> {
        self.added.id(token).or_else(|| Some(self.tokens.id(token)).filter(|&id| id != token_table::NONE))
    }
}
