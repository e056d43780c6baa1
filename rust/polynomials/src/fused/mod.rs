//! The fused route: the shipped architecture, `hybrid`, with kernels of our own, in float32 and in static int8.

mod attention;
mod cell;
mod decode;
mod encode;
mod expand;
mod kept;
#[cfg(test)]
mod kernel_tests;
mod lanes;
mod linear;
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
use octavo_engine::Result;

use crate::config::{Architecture, Config};
use crate::expander::Expander;
use crate::integer_weights::IntegerWeights;
use crate::weights::Weights;
use expand::{Expand, Tile};
use lanes::Scalar;
#[cfg(target_arch = "x86_64")]
use lanes::{Avx2, Avx512};
use model::Model;
#[cfg(target_arch = "x86_64")]
use products::{Amx, Bf16, Half, Limbs, Vnni};
use products::{Arithmetic, Float, Integer, NumberOf, Weights as Packed};
use shape::Shape;
use source::{FloatSource, IntegerSource, Source};

/// Most rows that a tile may have: enough that the few which end last cost little.
const TILE: usize = 256;

type Found = Result<Option<Box<dyn Expander>>>;

/// Fused kernels in float, for the instructions in use; `None` where the configuration is not supported.
pub(crate) fn float(config: &Config, weights: &Weights) -> Found {
    let source = FloatSource { config, weights };
    match Level::current() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => match (Limbs::new(), Avx512::new()) {
            (Some(a), _) => kernels(a, config, &source),
            (None, Some(l)) => kernels(Float(l), config, &source),
            (None, None) => kernels(Float(Scalar), config, &source),
        },
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => match Avx2::new() {
            Some(l) => kernels(Float(l), config, &source),
            None => kernels(Float(Scalar), config, &source),
        },
        _ => kernels(Float(Scalar), config, &source),
    }
}

/// Fused kernels in bfloat16, for the instructions in use: float where there are none for bfloat16; `None` where the
/// configuration is not supported.
pub(crate) fn bfloat16(config: &Config, weights: &Weights) -> Found {
    match Level::current() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if let Some(p) = Amx::new() => kernels(Half(p), config, &FloatSource { config, weights }),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if let Some(p) = Bf16::new() => kernels(Half(p), config, &FloatSource { config, weights }),
        _ => float(config, weights),
    }
}

/// Fused kernels in int8, for the instructions in use; `None` where the configuration is not supported.
pub(crate) fn integer(config: &Config, weights: &IntegerWeights) -> Found {
    let source = IntegerSource(weights);
    match Level::current() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => match (Amx::new(), Vnni::new(), Avx2::new()) {
            (Some(p), _, _) => kernels(Integer(p), config, &source),
            (None, Some(p), _) => kernels(Integer(p), config, &source),
            (None, None, Some(p)) => kernels(Integer(p), config, &source),
            (None, None, None) => kernels(Integer(Scalar), config, &source),
        },
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => match Avx2::new() {
            Some(p) => kernels(Integer(p), config, &source),
            None => kernels(Integer(Scalar), config, &source),
        },
        _ => kernels(Integer(Scalar), config, &source),
    }
}

fn kernels<A, S>(arithmetic: A, config: &Config, source: &S) -> Found
where
    A: Arithmetic,
    S: Source<Code = <A::Weights as Packed>::Code, Number = NumberOf<A>>,
{
    if config.architecture != Architecture::Hybrid {
        return Ok(None);
    }
    Ok(Some(Box::new(Fused { arithmetic, model: Model::<A::Weights>::new(Shape::new(config), source)? })))
}

/// A model and how it is computed.
struct Fused<A: Arithmetic> {
    arithmetic: A,
    model: Model<A::Weights>,
}

impl<A: Arithmetic> Expander for Fused<A> {
    fn tile(&self) -> usize {
        TILE
    }

    fn nbytes(&self) -> usize {
        self.model.nbytes()
    }

    fn new_scratch(&self) -> Box<dyn Any + Send> {
        Box::new(Tile::<A>::new(&self.model, A::TOGETHER))
    }

    fn expand(&self, source: &[&[u8]], out: &mut [Vec<u8>], scratch: &mut (dyn Any + Send)) {
        if let Some(tile) = scratch.downcast_mut::<Tile<A>>() {
            self.arithmetic.run(Expand { arithmetic: self.arithmetic, model: &self.model, source, out, tile });
        }
    }
}
