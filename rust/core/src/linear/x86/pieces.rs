//! The division of a product into pieces that one thread makes ready and multiplies.

use super::bf16_limbs::UNIT;
use crate::pool;

/// Bytes of limbs of weights of a piece of a product: they stay in the L2 cache while inputs pass by.
const PIECE_BYTES: usize = 5 << 18;

/// How long the parts of a product take, for each column: making a row of weights ready, and one of inputs, and multiplying
/// them.
pub(super) struct Times {
    pub(super) weight: usize,
    pub(super) input: usize,
    pub(super) product: usize,
}

/// Pieces of the weights of a product, at least, that stay in the L2 cache.
pub(super) const fn min_pieces(bytes: usize) -> usize {
    let pieces = bytes.div_ceil(PIECE_BYTES);
    if pieces == 0 { 1 } else { pieces }
}

/// Rows of weights, which take so many bytes in all, and rows of inputs of a piece of a product, that one thread makes ready
/// and multiplies.
pub(super) fn piece(bytes: usize, times: &Times, n: usize, m: usize) -> (usize, usize) {
    let (least, threads) = (min_pieces(bytes), pool::num_threads());
    let sizes = |of_inputs: usize| {
        let of_weights = least.max(threads.div_ceil(of_inputs)).next_multiple_of(threads.div_ceil(of_inputs));
        let rows = |all: usize, pieces: usize| all.div_ceil(pieces).next_multiple_of(UNIT).min(all);
        (rows(n, of_weights), rows(m, of_inputs))
    };
    let time = |(weights, inputs): (usize, usize)| {
        let rounds = (n.div_ceil(weights) * m.div_ceil(inputs)).div_ceil(threads);
        rounds * (weights * times.weight + inputs * times.input + weights * inputs * times.product)
    };
    let all = (0..=threads.ilog2()).map(|i| sizes(1 << i));
    all.min_by_key(|sizes| time(*sizes)).unwrap_or((n, m))
}
