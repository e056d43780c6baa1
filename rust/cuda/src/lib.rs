//! Octavo's kernels for NVIDIA GPUs.
//!
//! A [`Program`] is CUDA C++ that includes nothing, with the macros that specialize it; a [`Call`] is one launch of one of
//! its kernels. Rooms of kernels make calls; what runs them - a GPU, or the host in a test - sees nothing else.
//!
//! [`launch`] runs calls on a GPU: the driver and the compiler are found at run time, programs are compiled at their first
//! use and kept ([`cache`]), and nothing is linked, so that this crate builds and loads where there is no GPU.

pub mod arch;
pub mod attention;
pub mod cache;
pub mod catalogue;
mod check;
pub mod codec;
mod device;
mod driver;
pub mod dropout_norm;
mod error;
pub mod gemm;
mod images;
mod info;
mod launch;
pub mod linear;
mod modules;
pub mod nvrtc;
mod program;
pub mod seq2seq;
pub mod settings;
mod tensor_map;

pub use check::{blocks, check};
pub use device::{Properties, devices, properties};
pub use error::{Error, Result};
pub use images::prebuild;
pub use info::{CacheInfo, DriverInfo, Found, Info, NvrtcInfo, info};
pub use launch::{launch, warmup, warmup_programs};
pub use program::{Argument, Call, Program, TensorMap};
