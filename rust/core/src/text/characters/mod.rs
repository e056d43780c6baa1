//! [`CharTokenizer`]: one character, one token, one byte.
//!
//! Ids are below 256: [`PAD`], [`START`] and [`END`], then the characters of the vocabulary in ascending order. Lines are
//! separated by line feeds, which are therefore in no vocabulary.

mod decode;
mod encode;
mod file;
mod lines;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::error::{DataError, Result};
use crate::pool;
use lines::Lines;

/// Fills a row behind its last token.
pub const PAD: u8 = 0;
/// Stands before the first character of a line.
pub const START: u8 = 1;
/// Stands behind the last character of a line.
pub const END: u8 = 2;
/// How many special tokens there are.
pub const SPECIALS: usize = 3;
/// Most characters that a vocabulary can hold.
pub const MOST_CHARACTERS: usize = 256 - SPECIALS;

/// A vocabulary of single characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharTokenizer {
    /// Ascending, so that a search among them finds the id.
    characters: Vec<char>,
    /// The id of each ASCII byte; [`PAD`] for what is not in the vocabulary, and for every byte above 127.
    ascii: [u8; 256],
}

/// What stands around the characters of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// [`START`] before them.
    pub start: bool,
    /// [`END`] behind them.
    pub end: bool,
}

impl Around {
    /// How many special tokens a line gets.
    pub const fn tokens(self) -> usize {
        self.start as usize + self.end as usize
    }
}

impl CharTokenizer {
    /// The vocabulary of the characters of `text`, in any order, repeated ones counting once.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for more than [`MOST_CHARACTERS`] distinct ones, for none, and for a line feed.
    pub fn from_characters(text: &str) -> Result<Self> {
        Self::from_set(&text.chars().collect())
    }

    /// The vocabulary of all characters of some lines, separated by line feeds.
    ///
    /// # Errors
    /// [`crate::Error::Data`] with line and column for bytes that are not UTF-8, and as [`CharTokenizer::from_characters`].
    pub fn from_lines(text: &[u8]) -> Result<Self> {
        let lines = Lines::of(text)?;
        let sets = pool::map(lines.pieces.len(), text.len(), |at| {
            let piece = &lines.pieces[at];
            let mut set = BTreeSet::new();
            let mut seen = [false; 128];
            for (row, line) in piece.lines().enumerate() {
                for character in lines::utf8(line, piece.first + row)?.chars() {
                    // Most texts are nearly all ASCII, where a table is quicker than a tree.
                    match seen.get_mut(character as usize) {
                        Some(seen) => *seen = true,
                        None => _ = set.insert(character),
                    }
                }
            }
            set.extend((0..128u8).filter(|&byte| seen[usize::from(byte)]).map(char::from));
            Ok(set)
        })?;
        let sets = sets.into_iter().collect::<Result<Vec<_>>>()?;
        Self::from_set(&sets.into_iter().flatten().collect())
    }

    fn from_set(set: &BTreeSet<char>) -> Result<Self> {
        if set.is_empty() || set.len() > MOST_CHARACTERS {
            let count = set.len();
            return Err(DataError::VocabularySize { count, limit: MOST_CHARACTERS }.into());
        }
        if set.contains(&'\n') {
            return Err(DataError::LineFeed.into());
        }
        Ok(Self::build(set.iter().copied().collect()))
    }

    /// `characters` ascending and few enough.
    fn build(characters: Vec<char>) -> Self {
        let mut ascii = [PAD; 256];
        for (at, &character) in characters.iter().enumerate().filter(|(_, character)| character.is_ascii()) {
            ascii[character as usize] = (SPECIALS + at) as u8;
        }
        Self { characters, ascii }
    }

    /// The characters, ascending: number i has the id `SPECIALS + i`.
    pub fn characters(&self) -> &[char] {
        &self.characters
    }

    /// How many ids there are, the special ones included.
    pub const fn size(&self) -> usize {
        SPECIALS + self.characters.len()
    }

    /// The id of each ASCII byte; [`PAD`] for bytes that are no character of the vocabulary.
    pub const fn ascii(&self) -> &[u8; 256] {
        &self.ascii
    }

    /// The id of a character.
    fn id(&self, character: char) -> Option<u8> {
        self.characters.binary_search(&character).ok().map(|at| (SPECIALS + at) as u8)
    }

    /// The vocabulary for messages, cut where it is long.
    fn shown(&self) -> String {
        let text: String = self.characters.iter().take(64).collect();
        let more = self.characters.len().saturating_sub(64);
        if more == 0 { format!("{text:?}") } else { format!("{text:?} and {more} more") }
    }
}
