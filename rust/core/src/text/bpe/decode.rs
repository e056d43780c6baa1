//! Ids to bytes.

use super::BytePairs;
use super::token_table::TokenTable;
use crate::error::{DataError, Result};
use crate::pool;

/// Ids that one thread takes at a time.
const CHUNK: usize = 64 * 1024;
/// Bytes of a token that its entry holds.
const SHORT: usize = 15;
/// Length in the entry of a longer token.
const LONG: u8 = 255;

/// An entry for each token: its bytes and their number, 0 for a number that is no id.
pub(super) fn short_tokens(tokens: &TokenTable) -> Vec<[u8; 16]> {
    let entry = |id| {
        let (token, mut entry) = (tokens.bytes(id), [0; 16]);
        if token.len() <= SHORT {
            entry[..token.len()].copy_from_slice(token);
            entry[SHORT] = token.len() as u8;
        } else {
            entry[SHORT] = LONG;
        }
        entry
    };
    (0..tokens.len() as u32).map(entry).collect()
}

/// The last byte of each entry.
pub(super) fn lengths(short: &[[u8; 16]]) -> Vec<u8> {
    short.iter().map(|entry| entry[SHORT]).collect()
}

impl BytePairs {
    /// The number of bytes that ids stand for, in pieces of [`BytePairs::decode_to`].
    ///
    /// # Errors
    /// [`crate::Error::Data`] with the place of a number that is no id; [`crate::Error::Setting`] if threads cannot be started.
    pub fn measure<T: Copy + Sync + Into<i64>>(&self, ids: &[T]) -> Result<Vec<usize>> {
        let lengths = pool::map(ids.len().div_ceil(CHUNK), size_of_val(ids), |at| {
            let begin = at * CHUNK;
            let mut total = 0;
            for (column, &id) in ids[begin..].iter().take(CHUNK).enumerate() {
                let id: i64 = id.into();
                let length = usize::try_from(id).ok().and_then(|id| self.lengths.get(id)).copied().unwrap_or(0);
                total += match length {
                    0 => {
                        let (id, most) = (id.to_string(), self.size() - 1);
                        return Err(DataError::UnknownId { row: 1, column: begin + column + 1, id, most });
                    }
                    LONG => self.tokens.bytes(id as u32).len(),
                    length => usize::from(length),
                };
            }
            Ok(total)
        })?;
        Ok(lengths.into_iter().collect::<std::result::Result<_, _>>()?)
    }

    /// Writes the bytes of ids; `lengths` are those of [`BytePairs::measure`] of the same ids, and `out` is as long as their sum.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for another length of `out`; [`crate::Error::Setting`] if threads cannot be started.
    pub fn decode_to<T: Copy + Sync + Into<i64>>(&self, ids: &[T], lengths: &[usize], out: &mut [u8]) -> Result<()> {
        if lengths.iter().sum::<usize>() != out.len() || lengths.len() != ids.len().div_ceil(CHUNK) {
            return Err(crate::Error::shape(format!("{} ids are not {} bytes", ids.len(), out.len())));
        }
        let bytes = out.len();
        let mut pieces = Vec::with_capacity(lengths.len());
        let mut rest = out;
        for (ids, &length) in ids.chunks(CHUNK).zip(lengths) {
            let (here, behind) = rest.split_at_mut(length);
            pieces.push((ids, here));
            rest = behind;
        }
        pool::consume(pieces, bytes, |(ids, out)| self.piece_of_bytes(ids, out))
    }

    fn piece_of_bytes<T: Copy + Into<i64>>(&self, ids: &[T], out: &mut [u8]) {
        let mut at = 0;
        for &id in ids {
            let id = id.into() as usize;
            let Some(entry) = self.short.get(id) else { return };
            let length = usize::from(entry[SHORT]);
            // Copies of 16 bytes, whatever the length, are quicker than copies of the length; the next token overwrites the rest.
            match out.get_mut(at..at + 16) {
                Some(to) if length <= SHORT => to.copy_from_slice(entry),
                _ => {
                    let token = self.tokens.bytes(id as u32);
                    let Some(to) = out.get_mut(at..at + token.len()) else { return };
                    to.copy_from_slice(token);
                    at += token.len();
                    continue;
                }
            }
            at += length;
        }
    }

    /// The bytes that ids stand for.
    ///
    /// # Errors
    /// As [`BytePairs::measure`].
    pub fn decode<T: Copy + Sync + Into<i64>>(&self, ids: &[T]) -> Result<Vec<u8>> {
        let lengths = self.measure(ids)?;
        let mut out = vec![0; lengths.iter().sum()];
        self.decode_to(ids, &lengths, &mut out)?;
        Ok(out)
    }
}
