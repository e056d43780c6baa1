//! Kernels on the host: their sources under g++, a CUDA thread a fibre. Skipped where there is no g++.

mod base;
mod emulator;
