//! Kernels of 64-bit Arm: a file for a method.

pub(super) mod int8_dot;
