//! Products in fixed point: weights as int8 limbs, inputs as three or four int8 limbs, sums of a block exact in int32.
//!
//! Weights: a format can be multiplied so if its values, up to a power of two, are integers of at most three limbs. The
//! levels of code books are rounded to 2^-22 of the largest level.
//!
//! Inputs: each chunk of 256 columns has a power of two, the largest that is not above the chunk's absmax. Inputs round to
//! multiples of 2^-22 times it (the last bit but one of a float32 of that size), or of 2^-30 times it where the absmax is
//! more than 16 times the mean magnitude.
//!
//! Inputs that are rounded to a format of one limb are multiplied by their codes, with the scale of their group as unit.
//!
//! Everything else is exact or float32: `y = sum of (exact sum of a block) * scale`.

mod arrange;
mod inputs;
mod plan;
mod product;
mod run;
mod scales;
mod sparse;
mod sum;

pub(super) use inputs::FixedInputs;
pub(super) use plan::{Plan, Scale, grouping};
pub(in crate::linear) use run::{run, run_codes, run_sparse, takes, takes_codes, takes_sparse};
pub(super) use scales::{Scales, is_moderate, zeros, zeros_vbmi};

/// Limbs of an input, at most.
const MAX_LIMBS: usize = 4;
/// Columns of inputs that share a power of two.
const CHUNK: usize = 256;
