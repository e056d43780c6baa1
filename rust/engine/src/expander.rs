//! The contract between the engine and kernels of crates above it: [`Kernels`] are offered when a model is loaded, an
//! [`Expander`] expands whole tiles of lines.

use std::any::Any;
use std::path::Path;

use crate::config::Config;
use crate::error::Result;
use crate::weights::Weights;

/// Hand-written kernels for some architectures. Each method answers `None` where it has none for the configuration.
pub trait Kernels: Sync {
    /// Kernels in float32.
    ///
    /// # Errors
    /// [`octavo_core::Error::Container`] for weights that are refused.
    fn float(&self, _config: &Config, _weights: &Weights) -> Result<Option<Box<dyn Expander>>> {
        Ok(None)
    }

    /// Kernels in bfloat16, or in float32 where the processor has no products of bfloat16.
    ///
    /// # Errors
    /// As [`Kernels::float`].
    fn bfloat16(&self, _config: &Config, _weights: &Weights) -> Result<Option<Box<dyn Expander>>> {
        Ok(None)
    }

    /// Kernels in static int8, whose weights stand in a file of their own in the folder.
    ///
    /// # Errors
    /// As [`Kernels::float`], for that file; [`octavo_core::Error::Io`] where it cannot be read.
    fn integer(&self, _folder: &Path, _config: &Config) -> Result<Option<Box<dyn Expander>>> {
        Ok(None)
    }
}

/// No kernels: every model takes the general route.
pub(crate) struct NoKernels;

impl Kernels for NoKernels {}

/// Greedy expansion of tiles of rows by hand-written kernels.
///
/// The result of a row depends on that row alone: not on the other rows of its tile, nor on the thread. Implementations
/// start no threads.
pub trait Expander: Send + Sync {
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
