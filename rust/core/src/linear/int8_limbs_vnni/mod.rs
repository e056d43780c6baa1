//! Products in fixed point: weights as int8 limbs, inputs as three or four int8 limbs, sums of a block exact in int32.
//!
//! A format takes part if the numbers its codes stand for are, up to a power of two, integers of at most three limbs;
//! the levels of code books are rounded to 2^-22 of their largest. Inputs round to multiples of 2^-22 of the power of two
//! that is not above the largest of their 256 columns, the last bit but one of a float32 of that size; where that is more
//! than 16 times the mean, of 2^-30. All else is exact or float32: `y = sum of (exact sum of a block) * scale`.

mod inputs;
mod plan;
mod product;
mod scales;

pub(super) use inputs::FixedInputs;
pub(super) use plan::{Plan, Scale, grouping};
pub(super) use product::{Dot, TOGETHER};
pub(super) use scales::{Scales, is_moderate};

/// Limbs of an input, at most.
const MOST_LIMBS: usize = 4;
/// Columns of inputs that share a power of two.
const CHUNK: usize = 256;
