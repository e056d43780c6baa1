//! [`Expander`]: the contract between the engine and hand-written kernels, which expand whole tiles of lines.

use std::any::Any;

/// Greedy expansion of tiles of rows by hand-written kernels.
///
/// The result of a row depends on that row alone: not on the other rows of its tile, nor on the thread. Implementations
/// start no threads.
pub(crate) trait Expander: Send + Sync {
    /// Most rows that [`Expander::expand`] takes at once, 1 or more.
    fn tile(&self) -> usize;

    /// Bytes of the weights as they were prepared when the model was loaded.
    fn nbytes(&self) -> usize;

    /// Memory for one call of [`Expander::expand`] at a time, to be used again by later calls.
    fn new_scratch(&self) -> Box<dyn Any + Send>;

    /// Appends to `out[i]` the target ids of `source[i]`, at most `max_target` of them, without the end token.
    ///
    /// `source`: 1 to [`Expander::tile`] rows of similar length in no particular order, each of 1 to `max_source` ids
    /// from 3 (no special tokens, no padding) to below the vocabulary. `out` has as many rows. `scratch` comes from
    /// [`Expander::new_scratch`] of the same object. No target token is pad or start.
    fn expand(&self, source: &[&[u8]], out: &mut [Vec<u8>], scratch: &mut (dyn Any + Send));
}
