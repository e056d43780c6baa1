//! A text taken apart into pieces of whole lines that threads can work on.

use crate::error::{DataError, Result};
use crate::pool;

/// Bytes that one thread takes at a time, about.
const PIECE_BYTES: usize = 64 * 1024;

/// Some whole lines.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    /// Ends with a line feed, but for the last piece of a text that does not.
    text: &'a [u8],
    /// Number of the first line, counted from 0.
    pub(super) first: usize,
    /// How many lines.
    pub(super) count: usize,
}

impl<'a> Piece<'a> {
    /// The lines, without their line feeds.
    pub(super) fn lines(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.text.split_inclusive(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\n").unwrap_or(line))
    }
}

/// All lines of a text. Every line feed ends one; so does the end of the text, unless a line feed stands there.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    pub(super) pieces: Vec<Piece<'a>>,
    /// How many lines.
    pub(super) count: usize,
    /// Characters of the longest line.
    pub(super) longest: usize,
}

impl<'a> Lines<'a> {
    /// Counts and measures the lines.
    pub(super) fn of(text: &'a [u8]) -> Result<Self> {
        let mut texts = Vec::with_capacity(text.len() / PIECE_BYTES + 1);
        let mut rest = text;
        while !rest.is_empty() {
            let feed = rest.iter().skip(PIECE_BYTES).position(|&byte| byte == b'\n');
            let (piece, behind) = rest.split_at(feed.map_or(rest.len(), |at| PIECE_BYTES + at + 1));
            texts.push(piece);
            rest = behind;
        }
        let measures = pool::map(texts.len(), text.len(), |at| {
            Piece { text: texts[at], first: 0, count: 0 }.lines().fold((0, 0), |(count, longest), line| {
                // Every byte but those that continue a character begins one.
                let characters = line.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
                (count + 1, longest.max(characters))
            })
        })?;
        let (mut first, mut longest) = (0, 0);
        let mut pieces = Vec::with_capacity(texts.len());
        for (text, (count, piece_longest)) in texts.into_iter().zip(measures) {
            pieces.push(Piece { text, first, count });
            first += count;
            longest = longest.max(piece_longest);
        }
        Ok(Self { pieces, count: first, longest })
    }
}

/// A line as text; `row` is its number counted from 0.
pub(super) fn utf8(line: &[u8], row: usize) -> Result<&str> {
    std::str::from_utf8(line).map_err(|error| {
        let column = String::from_utf8_lossy(&line[..error.valid_up_to()]).chars().count() + 1;
        let byte = line[error.valid_up_to()];
        DataError::BrokenUtf8 { line: row + 1, column, byte }.into()
    })
}
