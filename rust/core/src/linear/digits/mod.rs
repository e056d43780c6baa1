//! Products in fixed point: weights as int8 digits, inputs as three int8 digits, sums of 256 columns exact in int32.
//!
//! A format takes part if the numbers its codes stand for are, up to a power of two, integers of at most two digits.
//! Inputs round to multiples of 2^-22 times the power of two that is not above the largest of their 256 columns: the last
//! bit but one of a float32 of that size. All else is exact or float32: `y = sum of (exact sum of a group) * scale`.

mod dot;
mod inputs;
mod plan;
mod rows;
mod scales;

pub(super) use dot::{Dot, TOGETHER};
pub(super) use inputs::FixedInputs;
pub(super) use plan::Plan;
pub(super) use rows::{Digits, upper};

/// Digits of an input.
const DIGITS: usize = 3;
/// Columns of inputs that share a power of two.
const CHUNK: usize = 256;
