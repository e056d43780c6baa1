//! The fused route: the shipped architecture, `hybrid`, with kernels of our own, in float32 and in static int8.

mod attention;
mod decode;
mod encode;
mod expand;
mod lanes;
mod linear;
mod math;
mod model;
mod norm;
mod products;
#[cfg(test)]
mod reference;
mod shape;
mod source;
#[cfg(test)]
mod tests;

use std::any::Any;

use octavo_core::Level;

use crate::config::{Architecture, Config};
use crate::decoder::Expander;
use crate::error::Result;
use crate::integer_weights::IntegerWeights;
use crate::weights::Weights;
use expand::{Expand, Tile};
use lanes::Scalar;
#[cfg(target_arch = "x86_64")]
use lanes::{Avx2, Avx512};
use model::Model;
#[cfg(target_arch = "x86_64")]
use products::{Amx, Vnni};
use products::{Arithmetic, ByteWeights, Float, FloatWeights, Integer};
use shape::Shape;
use source::{FloatSource, IntegerSource};

/// Fused kernels in float; `None` where the configuration is not supported.
pub(crate) fn float(config: &Config, weights: &Weights) -> Result<Option<Box<dyn Expander>>> {
    if config.architecture != Architecture::Hybrid {
        return Ok(None);
    }
    let model = Model::new(Shape::new(config), &FloatSource { config, weights })?;
    Ok(Some(Box::new(FloatExpander { model })))
}

/// Fused kernels in int8; `None` where the configuration is not supported.
pub(crate) fn integer(config: &Config, weights: &IntegerWeights) -> Result<Option<Box<dyn Expander>>> {
    if config.architecture != Architecture::Hybrid {
        return Ok(None);
    }
    Ok(Some(Box::new(IntegerExpander { model: Model::new(Shape::new(config), &IntegerSource(weights))? })))
}

struct FloatExpander {
    model: Model<FloatWeights>,
}
struct IntegerExpander {
    model: Model<ByteWeights>,
}

struct Scratch(Box<dyn Any + Send>);

fn expand<A: Arithmetic>(
    a: A,
    model: &Model<A::Weights>,
    source: &[&[u8]],
    out: &mut [Vec<u8>],
    scratch: &mut (dyn Any + Send),
    rows: usize,
) {
    let Some(scratch) = scratch.downcast_mut::<Scratch>() else { return };
    if !scratch.0.is::<Tile<A>>() {
        scratch.0 = Box::new(Tile::<A>::new(model, rows));
    }
    if let Some(tile) = scratch.0.downcast_mut::<Tile<A>>() {
        a.run(Expand { arithmetic: a, model, source, out, tile });
    }
}

fn rows() -> usize {
    std::env::var("ROWS").ok().and_then(|r| r.parse().ok()).unwrap_or(32)
}

impl Expander for FloatExpander {
    fn tile(&self) -> usize {
        256
    }
    fn new_scratch(&self) -> Box<dyn Any + Send> {
        Box::new(Scratch(Box::new(())))
    }
    fn expand(&self, source: &[&[u8]], out: &mut [Vec<u8>], scratch: &mut (dyn Any + Send)) {
        match Level::current() {
            Level::Avx512 => {
                if let Some(l) = Avx512::new() {
                    expand(Float(l), &self.model, source, out, scratch, rows())
                }
            }
            Level::Avx2 => {
                if let Some(l) = Avx2::new() {
                    expand(Float(l), &self.model, source, out, scratch, rows())
                }
            }
            _ => expand(Float(Scalar), &self.model, source, out, scratch, rows()),
        }
    }
}
impl Expander for IntegerExpander {
    fn tile(&self) -> usize {
        256
    }
    fn new_scratch(&self) -> Box<dyn Any + Send> {
        Box::new(Scratch(Box::new(())))
    }
    fn expand(&self, source: &[&[u8]], out: &mut [Vec<u8>], scratch: &mut (dyn Any + Send)) {
        let amx = std::env::var("AMX").is_ok();
        match Level::current() {
            Level::Avx512 if amx => {
                if let Some(l) = Amx::new() {
                    expand(Integer(l), &self.model, source, out, scratch, rows())
                }
            }
            Level::Avx512 => {
                if let Some(l) = Vnni::new() {
                    expand(Integer(l), &self.model, source, out, scratch, rows())
                }
            }
            Level::Avx2 => {
                if let Some(l) = Avx2::new() {
                    expand(Integer(l), &self.model, source, out, scratch, rows())
                }
            }
            _ => expand(Integer(Scalar), &self.model, source, out, scratch, rows()),
        }
    }
}
