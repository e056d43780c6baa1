//! Octavo's kernels for NVIDIA GPUs.
//!
//! A [`Program`] is CUDA C++ that includes nothing, with the macros that specialise it; a [`Call`] is one launch of one of
//! its kernels. Rooms of kernels make calls; what runs them - a GPU, or the host in a test - sees nothing else.

pub mod catalogue;
mod error;
mod launch;
mod program;

pub use error::{Error, Result};
pub use launch::launch;
pub use program::{Argument, Call, Program};
