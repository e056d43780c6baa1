//! The layers of a model folder that encoders and decoders share, loaded by the names of their weights.

mod activation;
mod dense;
mod source;

pub(crate) use activation::{Activation, activate, gated_pairs};
#[cfg(feature = "candle")]
pub(crate) use dense::Added;
pub(crate) use dense::Dense;
pub(crate) use source::{Demand, Source};
