//! Drop-out, residual sum and division by the root mean square in one pass over rows, and their gradients in another.
//!
//! `s = x + weight * dropout(branch)`, rounded to the dtype of the stream, and `s / sqrt(mean(s^2) + epsilon) * gain`. The
//! mask is a function of a seed, the row and the column ([`Mask`]), so that the gradients compute it anew. Results depend
//! neither on threads nor on the SIMD level.

mod mask;
#[cfg(test)]
mod reference;
mod rows;
#[cfg(test)]
mod tests;

pub use mask::Mask;

use crate::codec::{Values, ValuesMut, zeroed};
use crate::error::{Error, Result};
use crate::float_state::FloatState;
use crate::pool;
use crate::simd::{self, Level};
use rows::{Backward, BackwardRows, Forward, ForwardRows};

/// Rows that a thread takes together; the gradients of gains are summed in these pieces.
const PIECE: usize = 16;

/// What holds for all rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Factor of what drop-out leaves, its own `1 / (1 - p)` included.
    pub weight: f32,
    /// What drop-out keeps; all of it where there is none.
    pub mask: Option<Mask>,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// The results of [`forward`].
#[derive(Debug)]
pub struct Results<'a> {
    /// The sums.
    pub stream: ValuesMut<'a>,
    /// The sums after the norm.
    pub normed: ValuesMut<'a>,
    /// One over the root of each row's mean square.
    pub rates: &'a mut [f32],
}

/// What [`backward`] reads.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Gradients of the sums.
    pub of_stream: Values<'a>,
    /// Gradients of the normed rows.
    pub of_normed: Values<'a>,
    /// The sums.
    pub stream: Values<'a>,
    /// As [`forward`] wrote them.
    pub rates: &'a [f32],
}

/// The results of [`backward`].
#[derive(Debug)]
pub struct Gradients<'a> {
    /// Of x.
    pub x: ValuesMut<'a>,
    /// Of the branch.
    pub branch: ValuesMut<'a>,
    /// Of the gains; empty where there are none.
    pub gain: &'a mut [f32],
}

/// Writes the sums and the normed rows of `x` and `branch`, `[rows, width]`; `gain` has a factor for each column.
///
/// # Errors
/// [`Error::Shape`] where lengths differ.
pub fn forward(
    x: Values<'_>,
    branch: Values<'_>,
    gain: Option<&[f32]>,
    width: usize,
    settings: Settings,
    results: Results<'_>,
) -> Result<()> {
    forward_at(x, branch, gain, width, settings, results, Level::current())
}

fn forward_at(
    x: Values<'_>,
    branch: Values<'_>,
    gain: Option<&[f32]>,
    width: usize,
    settings: Settings,
    results: Results<'_>,
    level: Level,
) -> Result<()> {
    let Results { mut stream, mut normed, rates } = results;
    check(width, gain, rates.len(), &[x.len(), branch.len(), stream.len(), normed.len()])?;
    let bytes = 4 * x.len();
    let (x, branch, stream, normed) = (x.src(), branch.src(), stream.dst(), normed.dst());
    let call = Forward { x, branch, gain, width, settings, stream, normed };
    let pieces = rates.chunks_mut(PIECE).enumerate().collect();
    pool::consume(pieces, bytes, |(i, rates): (usize, &mut [f32])| {
        simd::run(level, ForwardRows(call, i * PIECE, rates))
    })
}

/// Writes the gradients of [`forward`] with the same gains and settings.
///
/// # Errors
/// [`Error::Shape`] where lengths differ, [`Error::OutOfMemory`] for sums of the gains' gradients that find no room.
pub fn backward(
    inputs: Given<'_>,
    gain: Option<&[f32]>,
    width: usize,
    settings: Settings,
    gradients: Gradients<'_>,
) -> Result<()> {
    backward_at(inputs, gain, width, settings, gradients, Level::current())
}

fn backward_at(
    inputs: Given<'_>,
    gain: Option<&[f32]>,
    width: usize,
    settings: Settings,
    gradients: Gradients<'_>,
    level: Level,
) -> Result<()> {
    let Given { of_stream, of_normed, stream, rates } = inputs;
    let Gradients { x: mut of_x, branch: mut of_branch, gain: of_gain } = gradients;
    let lengths = [of_stream.len(), of_normed.len(), stream.len(), of_x.len(), of_branch.len()];
    check(width, gain, rates.len(), &lengths)?;
    if of_gain.len() != gain.map_or(0, <[f32]>::len) {
        return Err(Error::shape(format!("drop-out and norm: {} gradients of gains", of_gain.len())));
    }
    let bytes = 4 * stream.len();
    let (of_stream, of_normed, stream) = (of_stream.src(), of_normed.src(), stream.src());
    let (of_x, of_branch) = (of_x.dst(), of_branch.dst());
    let call = Backward { of_stream, of_normed, stream, gain, width, settings, of_x, of_branch };
    let mut sums = zeroed::<f32>(rates.len().div_ceil(PIECE) * of_gain.len())?;
    let mut rest = &mut sums[..];
    let mut pieces = Vec::new();
    for (i, rates) in rates.chunks(PIECE).enumerate() {
        let (gains, others) = rest.split_at_mut(of_gain.len());
        pieces.push(BackwardRows { call, first: i * PIECE, rates, gains });
        rest = others;
    }
    pool::consume(pieces, bytes, |piece: BackwardRows<'_>| simd::run(level, piece))?;
    of_gain.fill(0.0);
    if !of_gain.is_empty() {
        let _state = FloatState::standard();
        for sums in sums.chunks(of_gain.len()) {
            of_gain.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        }
    }
    Ok(())
}

fn check(width: usize, gain: Option<&[f32]>, rows: usize, lengths: &[usize]) -> Result<()> {
    let all = rows.checked_mul(width);
    if width == 0 || lengths.iter().any(|&length| Some(length) != all) || gain.is_some_and(|gain| gain.len() != width) {
        let gains = gain.map_or(0, <[f32]>::len);
        return Err(Error::shape(format!(
            "drop-out and norm of {rows} rows of {width} numbers: {lengths:?} numbers and {gains} gains"
        )));
    }
    Ok(())
}
