//! Kernels on the host: their sources under g++, a CUDA thread a fibre. Skipped where there is no g++.

#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test stops where its set-up fails")]

mod attention;
mod base;
mod codec;
mod dropout_norm;
mod emulator;
mod hopper;
mod integer;
mod linear;
mod races;
mod seq2seq;
mod warpgroups;
