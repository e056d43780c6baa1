//! Choice of the kernel for a product. Plans are cached, since a layer asks for the same product in every call.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use octavo_core::{DType, Format};

use super::{Bf16Limbs, Device, Int8Limbs, Integer, Linear, Numbers, code};
use crate::gemm::Bias;
use crate::{Call, Program, Result};

/// Plans in memory, at most; beyond, all are made anew.
const MAX_PLANS: usize = 4096;

/// A kernel that takes a product.
#[derive(Clone, Debug)]
pub enum Kernel {
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
pub fn choose(linear: &Linear, device: Device) -> Result<Option<Arc<Kernel>>> {
    static PLANS: LazyLock<RwLock<HashMap<Key, Option<Arc<Kernel>>>>> = LazyLock::new(RwLock::default);
    linear.check()?;
    let key = Key {
        format: linear.format,
        sizes: [linear.m, linear.n, linear.k],
        x: code(linear.x.dtype),
        offset: linear.parts[0] % 16,
        device,
    };
    if let Some(kernel) = PLANS.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(kernel.clone());
    }
    let kernel = match Int8Limbs::new(linear, device)? {
        Some(limbs) => Some(Kernel::Int8Limbs(limbs)),
        None => Bf16Limbs::new(linear, device)?.map(Kernel::Bf16Limbs),
    };
    let kernel = kernel.map(Arc::new);
    let mut plans = PLANS.write().unwrap_or_else(PoisonError::into_inner);
    if plans.len() >= MAX_PLANS {
        plans.clear();
    }
    plans.insert(key, kernel.clone());
    Ok(kernel)
}

/// Name of the kernel that multiplies `m` rows of a dtype with `n` rows of `k` weights; with `input`, that of [`Integer`]. `None`
/// where weights are decoded.
///
/// # Errors
/// [`crate::Error::Core`] for sizes that cannot be, and formats that integer products do not take.
pub fn kernel(
    format: Format,
    input: Option<Format>,
    [m, n, k]: [usize; 3],
    dtype: DType,
    device: Device,
) -> Result<Option<&'static str>> {
    let x = Numbers { address: 0, dtype };
    let Some(input) = input else {
        let linear = Linear { format, m, n, k, x, parts: [0; 4], bias: None, out: 0 };
        return Ok(choose(&linear, device)?.map(|kernel| kernel.name()));
    };
    let (bias, codes, scales, input_scales, out) = (Bias::None, 0, 0, 0, 0);
    let integer = Integer { format, input, m, n, k, x, codes, scales, input_scales, bias, out };
    Ok(Some(integer.plan(0, device)?.kernel().name()))
}

impl Kernel {
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
