//! [`Table`]: an embedding whose rows stay packed.

use std::sync::Arc;

use octavo_core::{ValuesMut, linear};

use crate::error::{Error, Result};
use crate::tensors::StoredTensor;

/// Rows that ids look up.
pub enum Table {
    /// Packed rows, their number and their width.
    Packed(Arc<StoredTensor>, usize, usize),
    /// Plain rows and their width.
    Plain(Vec<f32>, usize),
}

impl Table {
    /// Numbers of a row.
    pub const fn width(&self) -> usize {
        let (Self::Packed(_, _, width) | Self::Plain(_, width)) = self;
        *width
    }

    /// Adds the rows of `ids` to `out`, `[ids, width]`.
    ///
    /// # Errors
    /// [`octavo_core::Error::Range`] or [`Error::Internal`] for ids outside the table.
    pub fn add(&self, ids: &[i64], out: &mut [f32]) -> Result<()> {
        match self {
            Self::Packed(held, rows, width) => {
                let mut found = vec![0.0; ids.len() * width];
                linear::gather(ids, &held.matrix(*rows, *width), ValuesMut::F32(&mut found))?;
                out.iter_mut().zip(found).for_each(|(out, found)| *out += found);
            }
            Self::Plain(rows, width) => {
                for (out, &id) in out.chunks_exact_mut(*width).zip(ids) {
                    let row =
                        usize::try_from(id).ok().and_then(|id| rows.get(id.checked_mul(*width)?..)?.get(..*width));
                    let row = row.ok_or_else(|| Error::Internal(format!("id {id} is outside its table")))?;
                    out.iter_mut().zip(row).for_each(|(out, row)| *out += row);
                }
            }
        }
        Ok(())
    }
}
