//! Products in fixed point: weights as int8 digits, inputs as three int8 digits, sums of 256 columns exact in int32.
//!
//! A format takes part if the numbers its codes stand for are, up to a power of two, integers of at most four digits;
//! the levels of code books are rounded to 2^-30. Inputs round to 2^-22 of the power of two below the largest of
//! their 256 columns, which is how far apart float32 numbers of that size lie. All else is exact or float32:
//! `y = sum over groups of (exact sum of products) * scale`.

mod inputs;
mod plan;
mod scales;
mod single;
mod unpack;
mod wide;

pub(super) use inputs::FixedInputs;
pub(super) use plan::Plan;
pub(super) use single::Single;
pub(super) use wide::{PANELS, Wide};

/// Digits of an input.
const DIGITS: usize = 3;
/// Columns of inputs that share a power of two.
const CHUNK: usize = 256;
