//! Launches of products with packed weights: the twins of `octavo_core::linear`.

mod bf16_limbs;
mod choose;
mod elements;
mod int8_limbs;
mod integer;
mod programs;

pub use bf16_limbs::{Bf16Limbs, MAX_ROWS};
pub use choose::{Kernel, choose, kernel};
pub(crate) use elements::load;
pub use int8_limbs::Int8Limbs;
pub use integer::{Integer, Plan};
pub use programs::programs;

use octavo_core::{DType, Format, Layout, Sizes};

use crate::arch::{Arch, OLDEST};
use crate::{Argument, Error, Properties, Result, properties, settings};

/// Properties of a device that decide how a product is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The architecture that its programs are compiled for.
    pub arch: Arch,
}

impl Device {
    /// Device `ordinal`; with `OCTAVO_CUDA_PLAIN=1` as if it were one of the oldest, whose kernels run on all.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] where it is not there.
    pub fn get(ordinal: i32) -> Result<Self> {
        let &Properties { multiprocessors, capability, .. } = properties(ordinal)?;
        let oldest = Arch { capability: OLDEST, specific: false };
        Ok(Self { multiprocessors, arch: if settings::plain() { oldest } else { Arch::native(capability) } })
    }
}

/// Numbers on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Where they are.
    pub address: u64,
    /// What they are.
    pub dtype: DType,
}

/// `y = x W^T + bias` with packed W, by addresses.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Format of the weights.
    pub format: Format,
    /// Rows of x, and of y.
    pub m: usize,
    /// Rows of W.
    pub n: usize,
    /// Columns of W and of x.
    pub k: usize,
    /// `[m, k]`, dense.
    pub x: Numbers,
    /// Codes, scales, zeros and levels of W.
    pub parts: [u64; 4],
    /// `[n]`.
    pub bias: Option<Numbers>,
    /// `[m, n]`, dense, of the dtype of x.
    pub out: u64,
}

impl Linear {
    /// Sizes of the parts of W; an error where they, or addresses, cannot be.
    fn check(&self) -> Result<Sizes> {
        let sizes = Sizes::new(self.format, &Layout::new(&[self.n, self.k], -1, self.format)?)?;
        let scale = self.format.scale_type().map_or(1, |scale| scale.bytes());
        let bias = self.bias.map_or((0, 1), |bias| (bias.address, bias.dtype.bytes()));
        let size = self.x.dtype.bytes();
        for (what, address, size) in [
            ("x", self.x.address, size),
            ("scales", self.parts[1], scale),
            ("levels", self.parts[3], if self.format.has_levels() { 4 } else { 1 }),
            ("bias", bias.0, bias.1),
            ("y", self.out, size),
        ] {
            if !address.is_multiple_of(size as u64) {
                return Err(refused(format!(
                    "product with a '{}' weight: the address of {what} is no multiple of the {size} bytes of a number",
                    self.format
                )));
            }
        }
        let (n, m) = (i32::try_from(self.n), i32::try_from(self.m));
        if n.is_err() || m.is_err() {
            return Err(refused(format!("{} x {} outputs; kernels take up to 2^31 - 1 of each", self.m, self.n)));
        }
        Ok(sizes)
    }
}

fn refused(text: String) -> Error {
    Error::Core(octavo_core::Error::shape(text))
}

/// The number by which kernels know a dtype.
pub(crate) const fn code(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
    }
}

/// An `int` argument; sizes that passed [`Linear::check`] fit.
pub(crate) const fn int(v: usize) -> Argument {
    Argument::I32(v as i32)
}
