//! From rows of ids to lines.

use super::{CharTokenizer, END, PAD, SPECIALS, START};
use crate::error::{DataError, Result, ShapeError};
use crate::pool;

/// Rows that one thread takes at a time.
const PIECE: usize = 4096;

impl CharTokenizer {
    /// The lines that `rows` rows of `width` ids stand for, each followed by a line feed.
    ///
    /// A row is read up to the first [`END`]; what stands behind it is not looked at. [`PAD`] and [`START`] are skipped.
    ///
    /// # Errors
    /// [`crate::Error::Data`] with row and column, counted from 1, for a number that is no id; [`crate::Error::Shape`] where `ids` has
    /// another length.
    pub fn decode_batch<T>(&self, ids: &[T], rows: usize, width: usize) -> Result<String>
    where
        T: Copy + Sync + std::fmt::Display + TryInto<usize>,
    {
        if rows.checked_mul(width) != Some(ids.len()) {
            return Err(ShapeError::TokenRows { rows, width, ids: ids.len() }.into());
        }
        let pieces = pool::map(rows.div_ceil(PIECE), ids.len(), |piece| {
            let first = piece * PIECE;
            let rows = first..rows.min(first + PIECE);
            let mut text = String::with_capacity(rows.len() * (width + 1));
            for row in rows {
                self.decode_row(&ids[row * width..][..width], row, &mut text)?;
                text.push('\n');
            }
            Ok(text)
        })?;
        Ok(pieces.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }

    fn decode_row<T>(&self, ids: &[T], row: usize, text: &mut String) -> Result<()>
    where
        T: Copy + std::fmt::Display + TryInto<usize>,
    {
        for (at, &given) in ids.iter().enumerate() {
            match given.try_into().unwrap_or(usize::MAX) {
                id if id == usize::from(END) => break,
                id if id == usize::from(PAD) || id == usize::from(START) => {}
                id => match self.characters.get(id - SPECIALS) {
                    Some(&character) => text.push(character),
                    None => {
                        let (row, column, most) = (row + 1, at + 1, self.size() - 1);
                        return Err(DataError::UnknownId { row, column, id: given.to_string(), most }.into());
                    }
                },
            }
        }
        Ok(())
    }
}
