//! [`Generator`]: an endless, reproducible sequence of lines, read from any place.

use octavo_core::pool;
use octavo_core::text::characters::{CharTokenizer, END, PAD};

use super::excluded::Excluded;
use super::law::{draw, next_word, word};
use super::{CHARACTERS, Factors, LONGEST_LEFT, LONGEST_RIGHT};
use crate::{Error, Result};

/// Lines that one thread takes at a time. Fixed, though nothing depends on it: a line is a function of its number.
const PIECE: usize = 4096;
/// Most lines of one call, so that no number that a caller mistook asks for all memory there is.
const MOST_LINES: usize = 1 << 24;
/// Draws of one line before the generator gives up; with half of all lines excluded it happens once in 2^1024.
const ATTEMPTS: usize = 1024;

/// Line number i is a pure function of (seed, excluded set, i): independent of threads, of batches and of the machine.
///
/// Line i is the first of the draws (seed, i, 0), (seed, i, 1), ... that is not excluded.
#[derive(Clone, Debug)]
pub struct Generator {
    seed: u64,
    excluded: Excluded,
}

/// The text of some lines, left and right sides without separators, and the length of each side.
struct Printed {
    text: Vec<u8>,
    lengths: Vec<(u8, u8)>,
}

impl Generator {
    /// The generator of a seed that never yields a line whose [`Factors::key`] is among `excluded`.
    pub fn new(seed: u64, excluded: &[u64]) -> Self {
        Self { seed, excluded: Excluded::new(excluded) }
    }

    /// The seed it was made with.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// How many lines are excluded.
    pub const fn excluded(&self) -> usize {
        self.excluded.len()
    }

    /// Line number `index`.
    ///
    /// # Errors
    /// [`Error::Excluded`] where every attempt meets an excluded line.
    pub fn factors(&self, index: u64) -> Result<Factors> {
        let mut word = word(self.seed, index);
        for _ in 0..ATTEMPTS {
            let factors = draw(word);
            if !self.excluded.contains(factors.key()) {
                return Ok(factors);
            }
            word = next_word(word);
        }
        Err(Error::Excluded { line: index, seed: self.seed, draws: ATTEMPTS, excluded: self.excluded.len() })
    }

    /// The lines `start..start + count` as `left=right`, each followed by a line feed.
    ///
    /// # Errors
    /// [`Error::Count`] for more than 2^24 lines, [`Error::Range`] for a range beyond 2^64, and as [`Generator::factors`].
    pub fn text(&self, start: u64, count: usize) -> Result<Vec<u8>> {
        let pieces = self.pieces(start, count, |first, lines| {
            let mut text = Vec::with_capacity(lines * 40);
            for index in first..first + lines as u64 {
                self.factors(index)?.line(&mut text);
                text.push(b'\n');
            }
            Ok(text)
        })?;
        Ok(pieces.concat())
    }

    /// The lines `start..start + count` as token ids: rows of left sides in `source`, rows of right sides and
    /// [`END`] in `target`, padded with [`PAD`] to the longest of the batch, or to `pad_to`.
    ///
    /// Answers the lengths of the rows, which follow each other without gaps from the start of the buffers. `source` and
    /// `target` must have room for `count` rows of `pad_to`, or of [`LONGEST_LEFT`] and [`LONGEST_RIGHT`]` + 1`; what
    /// lies behind the last row is left as it is.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] for one without one of the [`CHARACTERS`], [`Error::PadTo`] for a line longer than `pad_to`,
    /// [`Error::Buffer`] for a buffer that is too small, and as [`Generator::text`].
    pub fn batch(
        &self,
        start: u64,
        count: usize,
        tokenizer: &CharTokenizer,
        source: &mut [u8],
        target: &mut [u8],
        pad_to: Option<(usize, usize)>,
    ) -> Result<(usize, usize)> {
        let ids = tokenizer.ascii();
        if let Some(character) = CHARACTERS.chars().find(|&character| ids[character as usize] == PAD) {
            return Err(Error::Tokenizer { character });
        }
        let room = pad_to.unwrap_or((LONGEST_LEFT, LONGEST_RIGHT + 1));
        for (side, width, bytes) in [("source", room.0, source.len()), ("target", room.1, target.len())] {
            if count.checked_mul(width).is_none_or(|needed| needed > bytes) {
                return Err(Error::Buffer { side, rows: count, width, bytes });
            }
        }
        let printed = self.pieces(start, count, |first, lines| {
            let mut piece = Printed { text: Vec::with_capacity(lines * 40), lengths: Vec::with_capacity(lines) };
            for index in first..first + lines as u64 {
                let factors = self.factors(index)?;
                let begin = piece.text.len();
                factors.left(&mut piece.text);
                let left = piece.text.len() - begin;
                factors.right(&mut piece.text);
                piece.lengths.push((left as u8, (piece.text.len() - begin - left) as u8));
            }
            Ok(piece)
        })?;
        let longest = printed.iter().flat_map(|piece| &piece.lengths).fold((0, 0), |longest, &(left, right)| {
            (usize::from(left).max(longest.0), (usize::from(right) + 1).max(longest.1))
        });
        let (width, target_width) = pad_to.unwrap_or(longest);
        if longest.0 > width || longest.1 > target_width {
            let (pad_to, last) = ((width, target_width), start + count as u64 - 1);
            return Err(Error::PadTo { pad_to, first: start, last, longest });
        }
        let pieces = rows(source, width, count).zip(rows(target, target_width, count)).zip(&printed).collect();
        pool::consume(
            pieces,
            count * (width + target_width),
            |((source, target), piece): ((&mut [u8], _), &Printed)| {
                piece.write(ids, source, width, target, target_width);
            },
        )?;
        Ok((width, target_width))
    }

    /// `work(first number, lines)` for each piece of a range, in parallel, the answers in order.
    fn pieces<T: Send>(
        &self,
        start: u64,
        count: usize,
        work: impl Fn(u64, usize) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        if count > MOST_LINES {
            return Err(Error::Count { count, limit: MOST_LINES });
        }
        if start.checked_add(count as u64).is_none() {
            return Err(Error::Range { start, count });
        }
        let answers = pool::map(count.div_ceil(PIECE), count.saturating_mul(40), |piece| {
            let first = piece * PIECE;
            work(start + first as u64, PIECE.min(count - first))
        })?;
        answers.into_iter().collect()
    }
}

/// The rows of a buffer in the pieces that one thread takes; rows of no ids too.
fn rows(buffer: &mut [u8], width: usize, count: usize) -> impl Iterator<Item = &mut [u8]> {
    let mut rest = &mut buffer[..count * width];
    (0..count.div_ceil(PIECE)).map(move |piece| {
        let lines = PIECE.min(count - piece * PIECE);
        let (rows, behind) = std::mem::take(&mut rest).split_at_mut(lines * width);
        rest = behind;
        rows
    })
}

impl Printed {
    /// Translates each line into its row of ids.
    fn write(&self, ids: &[u8; 256], source: &mut [u8], width: usize, target: &mut [u8], target_width: usize) {
        source.fill(PAD);
        target.fill(PAD);
        let mut text = self.text.as_slice();
        for (row, &(left, right)) in self.lengths.iter().enumerate() {
            let (left_text, behind) = text.split_at(left.into());
            let (right_text, behind) = behind.split_at(right.into());
            text = behind;
            for (id, &byte) in source[row * width..].iter_mut().zip(left_text) {
                *id = ids[usize::from(byte)];
            }
            let target = &mut target[row * target_width..];
            for (id, &byte) in target.iter_mut().zip(right_text) {
                *id = ids[usize::from(byte)];
            }
            target[usize::from(right)] = END;
        }
    }
}
