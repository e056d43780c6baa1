//! Codecs on the GPU: launches that decode, encode and quantize tensors in every format, bit for bit as octavo-core does.
//!
//! Tensors are rows along the last dimension; the caller moves another axis there. Given scales are in the parts before
//! the launch; chosen scales are written there by it.

mod calls;
mod gradient;
mod macros;
mod programs;
mod scales;
mod scratch;
mod shape;

pub use calls::{Encoding, decode, encode, quantize};
pub use gradient::{gradient, scale_gradient};
pub(crate) use macros::of as macros_of;
pub use programs::programs;
pub use scratch::scratch_bytes;

use octavo_core::{Error, Format, Sizes};

use crate::Result;

/// Memory on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Its address; 0 for none.
    pub address: u64,
    /// Its length.
    pub bytes: usize,
}

/// The parts of an encoded tensor. Lengths are those of [`Sizes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Codes, dense per row.
    pub codes: Buffer,
    /// Scales in their storage type.
    pub scales: Buffer,
    /// Packed zero points (`uintW`).
    pub zeros: Buffer,
    /// Second-level scale (`nvfp4`).
    pub levels: Buffer,
}

impl Parts {
    fn check(&self, format: Format, sizes: &Sizes, with_codes: bool) -> Result<()> {
        if with_codes {
            self.codes.check(format, "codes", sizes.codes, 1)?;
        }
        let scale_bytes = format.scale_type().map_or(1, octavo_core::format::ScaleType::bytes);
        self.scales.check(format, "scales", sizes.scales, scale_bytes)?;
        self.zeros.check(format, "zeros", sizes.zeros, 1)?;
        self.levels.check(format, "levels", sizes.levels, 4)
    }
}

impl Buffer {
    fn check(self, format: Format, what: &str, wanted: usize, align: usize) -> Result<()> {
        let wrong = |text: String| Err(Error::shape(format!("'{format}': {what} {text}")).into());
        if self.bytes != wanted {
            return wrong(format!("(bytes) holds {}, expected {wanted}", self.bytes));
        }
        if self.address == 0 && wanted > 0 {
            return wrong(format!("is a null pointer with {wanted} bytes (a fake or meta tensor?)"));
        }
        if !self.address.is_multiple_of(align as u64) {
            return wrong(format!("lies at an address that is not a multiple of {align} bytes; pass an aligned copy"));
        }
        Ok(())
    }

    /// Whether the address and, where there are several rows, their distance are multiples of `align`.
    const fn is_aligned(self, align: usize, rows: usize, row_bytes: usize) -> bool {
        self.address.is_multiple_of(align as u64) && (rows <= 1 || row_bytes.is_multiple_of(align))
    }
}
