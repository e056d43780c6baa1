//! From lines to rows of ids.

use std::sync::{Mutex, PoisonError};

use super::lines::{Lines, Piece, utf8};
use super::{Around, CharTokenizer, END, PAD, START};
use crate::error::{DataError, Result, ShapeError};
use crate::pool;

impl CharTokenizer {
    /// How many lines a text has, and how many characters the longest of them: what the arrays of
    /// [`CharTokenizer::encode_batch`] must have room for.
    ///
    /// # Errors
    /// [`crate::Error::Setting`] if threads cannot be started.
    pub fn measure(text: &[u8]) -> Result<(usize, usize)> {
        let lines = Lines::of(text)?;
        Ok((lines.count, lines.longest))
    }

    /// Encodes the lines of a UTF-8 text, each ended by a line feed or the end of the text, into rows of `width` ids.
    ///
    /// A row holds [`START`] and [`END`] as `around` asks, and is filled with [`PAD`]; `lengths` takes the number of its
    /// other tokens. `out` has `lengths.len() * width` elements, u8 or i64; `lengths` one for each line.
    ///
    /// # Errors
    /// [`crate::Error::Data`] with line and column, counted from 1, for a character that the vocabulary lacks and for broken
    /// UTF-8, with length and limit for a line that does not fit into `width`; of several the first. [`crate::Error::Shape`]
    /// where the arrays have another size. After an error the arrays hold nothing of use.
    pub fn encode_batch<T: From<u8> + Copy + Send>(
        &self,
        text: &[u8],
        width: usize,
        around: Around,
        out: &mut [T],
        lengths: &mut [i64],
    ) -> Result<()> {
        let lines = Lines::of(text)?;
        if lengths.len() != lines.count || lines.count.checked_mul(width) != Some(out.len()) {
            return Err(
                ShapeError::TokenArrays { lines: lines.count, width, lengths: lengths.len(), ids: out.len() }.into()
            );
        }
        let (mut out, mut lengths) = (out, lengths);
        let mut work = Vec::with_capacity(lines.pieces.len());
        for piece in &lines.pieces {
            let (rows, behind) = std::mem::take(&mut out).split_at_mut(piece.count * width);
            out = behind;
            let (row_lengths, behind) = std::mem::take(&mut lengths).split_at_mut(piece.count);
            lengths = behind;
            work.push((piece, Mutex::new((rows, row_lengths))));
        }
        let answers = pool::map(work.len(), text.len(), |at| {
            let (piece, out) = &work[at];
            // The lock is there for the compiler: each piece is taken by one thread, once.
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            let (rows, lengths) = &mut *out;
            self.encode_piece(piece, width, around, rows, lengths)
        })?;
        answers.into_iter().collect()
    }

    fn encode_piece<T: From<u8> + Copy>(
        &self,
        piece: &Piece<'_>,
        width: usize,
        around: Around,
        out: &mut [T],
        lengths: &mut [i64],
    ) -> Result<()> {
        let begin = usize::from(around.start);
        for (at, (line, length)) in piece.lines().zip(lengths).enumerate() {
            let row = &mut out[at * width..][..width];
            let mut count = line.len();
            let fits = count + around.tokens() <= width;
            // A line with an unknown byte, or longer in bytes than the row is in ids, is read again character by character.
            if !(fits && self.encode_ascii(line, &mut row[begin..])) {
                count = self.encode_characters(line, piece.first + at, width, around, &mut row[begin.min(width)..])?;
            }
            if around.start {
                row[0] = T::from(START);
            }
            if around.end {
                row[begin + count] = T::from(END);
            }
            let tokens = count + around.tokens();
            // The first reading may have left ids here, of a line with fewer characters than bytes.
            row[tokens..].fill(T::from(PAD));
            *length = tokens as i64;
        }
        Ok(())
    }

    /// Encodes a line that fits; false where a byte is not an ASCII character of the vocabulary.
    fn encode_ascii<T: From<u8>>(&self, line: &[u8], row: &mut [T]) -> bool {
        let mut all_known = true;
        for (slot, &byte) in row.iter_mut().zip(line) {
            let id = self.ascii[usize::from(byte)];
            all_known &= id != PAD;
            *slot = T::from(id);
        }
        all_known
    }

    /// Encodes any line into its row of `width` ids, given from the first character on, and counts its characters.
    fn encode_characters<T: From<u8>>(
        &self,
        line: &[u8],
        number: usize,
        width: usize,
        around: Around,
        row: &mut [T],
    ) -> Result<usize> {
        let line = utf8(line, number)?;
        let count = line.chars().count();
        let number = number + 1;
        if count + around.tokens() > width {
            let (specials, tokens) = (around.tokens(), count + around.tokens());
            return Err(DataError::LineTokens { line: number, tokens, specials, limit: width }.into());
        }
        for (at, (slot, character)) in row.iter_mut().zip(line.chars()).enumerate() {
            let id = self.id(character).ok_or_else(|| {
                let allowed = self.shown();
                DataError::UnknownCharacter { line: number, column: at + 1, character, allowed }
            })?;
            *slot = T::from(id);
        }
        Ok(count)
    }
}
