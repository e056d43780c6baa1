//! Octavo on CUDA. `octavo/cuda/device.py` and the ops are the only callers; the names are private.

pub(crate) mod attention;
pub(crate) mod codec;
pub(crate) mod dropout_norm;
pub(crate) mod linear;
pub(crate) mod runtime;
pub(crate) mod seq2seq;
