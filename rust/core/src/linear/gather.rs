//! Gathers rows of a packed embedding.

use super::Matrix;
use crate::codec::rows::{Rows, Unpacked};
use crate::codec::{ValuesMut, set_len};
use crate::error::{RangeError, Result, ShapeError};
use crate::float_state::FloatState;
use crate::pool;
use crate::simd::Level;

/// Ids in one unit of work.
const IDS: usize = 16;
/// Columns decoded at a time, about.
const COLUMNS: usize = 4096;

/// Decodes the rows `ids` of a packed matrix into `out`, `[ids, columns]`: the bits that decoding the whole would give.
///
/// # Errors
/// [`crate::Error::Range`] for an id outside `0..rows`, [`crate::Error::Shape`] where a length does not fit.
pub fn gather(ids: &[i64], w: &Matrix<'_>, mut out: ValuesMut<'_>) -> Result<()> {
    let _state = FloatState::standard();
    let level = Level::current();
    let k = w.columns;
    let rows = Rows::new(w.packed, w.rows, k, w.format, level)?;
    if ids.len().checked_mul(k) != Some(out.len()) {
        return Err(ShapeError::Gather {
            ids: ids.len(),
            columns: k,
            expected: ids.len().saturating_mul(k),
            got: out.len(),
        }
        .into());
    }
    let in_range = |id: i64| usize::try_from(id).is_ok_and(|id| id < w.rows);
    if let Some((position, id)) = ids.iter().enumerate().find(|(_, id)| !in_range(**id)) {
        return Err(RangeError::Id { id: *id, position, rows: w.rows }.into());
    }
    if k == 0 {
        return Ok(());
    }
    let chunk_columns = rows.cut(COLUMNS);
    let out = out.dst();
    pool::try_for_each(ids.len().div_ceil(IDS), ids.len() * k * out.dtype.bytes(), |unit| {
        let (mut values, mut unpacked) = (Vec::new(), Unpacked::default());
        for (at, &id) in ids.iter().enumerate().skip(unit * IDS).take(IDS) {
            for start in (0..k).step_by(chunk_columns) {
                let len = chunk_columns.min(k - start);
                set_len(&mut values, len)?;
                rows.decode(id as usize, start..start + len, &mut values, &mut unpacked);
                // SAFETY: each unit writes its own rows, whose number was checked.
                unsafe { out.narrow(at * k + start, &values, level) };
            }
        }
        Ok(())
    })
}
