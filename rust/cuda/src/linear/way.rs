//! Choice of the kernel for a product. Plans are cached, since a layer asks for the same product in every call.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use octavo_core::Format;

use super::{Bf16Limbs, Device, Int8Limbs, Linear, code};
use crate::{Call, Program, Result};

/// Plans that are kept, at most; beyond, all are made anew.
const MOST: usize = 4096;

/// A kernel that takes a product.
#[derive(Clone, Debug)]
pub enum Way {
    /// Bytes on the int8 tensor cores.
    Int8Limbs(Int8Limbs),
    /// Decoded weights on the bfloat16 tensor cores.
    Bf16Limbs(Bf16Limbs),
}

/// Key of a plan: everything that it depends on.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    format: Format,
    sizes: [usize; 3],
    x: i32,
    /// Of the codes: what is left of the address after the widest load.
    offset: u64,
    device: Device,
}

/// The kernel for a product; `None` where multiplying decoded weights is faster, or the only way.
///
/// # Errors
/// [`crate::Error::Core`] for sizes and addresses that cannot be.
pub fn way(linear: &Linear, device: Device) -> Result<Option<Arc<Way>>> {
    static KEPT: LazyLock<RwLock<HashMap<Key, Option<Arc<Way>>>>> = LazyLock::new(RwLock::default);
    linear.check()?;
    let key = Key {
        format: linear.format,
        sizes: [linear.m, linear.n, linear.k],
        x: code(linear.x.dtype),
        offset: linear.parts[0] % 16,
        device,
    };
    if let Some(way) = KEPT.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(way.clone());
    }
    let found = match Int8Limbs::new(linear, device)? {
        Some(limbs) => Some(Way::Int8Limbs(limbs)),
        None => Bf16Limbs::new(linear, device)?.map(Way::Bf16Limbs),
    };
    let found = found.map(Arc::new);
    let mut kept = KEPT.write().unwrap_or_else(PoisonError::into_inner);
    if kept.len() >= MOST {
        kept.clear();
    }
    kept.insert(key, found.clone());
    Ok(found)
}

impl Way {
    /// Name for people.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Int8Limbs(_) => "int8 limbs imma",
            Self::Bf16Limbs(_) => "bfloat16 limbs mma",
        }
    }

    /// The kernels.
    pub fn program(&self) -> &Program {
        match self {
            Self::Int8Limbs(limbs) => limbs.program(),
            Self::Bf16Limbs(limbs) => limbs.program(),
        }
    }

    /// Bytes of scratch memory, at a multiple of 16.
    pub fn scratch(&self, linear: &Linear) -> usize {
        match self {
            Self::Int8Limbs(limbs) => limbs.scratch(linear),
            Self::Bf16Limbs(limbs) => limbs.scratch(linear),
        }
    }

    /// The calls, in order.
    ///
    /// # Errors
    /// [`crate::Error::Launch`] for more blocks than a grid has.
    pub fn calls(&self, linear: &Linear, scratch: u64) -> Result<Vec<Call>> {
        match self {
            Self::Int8Limbs(limbs) => limbs.calls(linear, scratch),
            Self::Bf16Limbs(limbs) => limbs.calls(linear, scratch),
        }
    }
}
