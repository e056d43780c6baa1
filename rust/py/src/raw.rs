//! Slices from the addresses that Python passes: the only place that makes memory out of an integer.
//!
//! Rust can see whether an address is null or not aligned, and whether two parts of a call share memory ([`apart`]). How
//! large the memory behind an address is, and of what type, it cannot see: the Python module that calls an exported
//! function checks dtype, device, layout and size of every tensor against the sizes it passes. The exported functions are
//! private to the package for that reason.

use octavo_core::{DType, Error, Result, Values, ValuesMut};

fn check(address: usize, count: usize, align: usize, what: &str) -> Result<()> {
    let bytes = count.checked_mul(align).filter(|&bytes| bytes <= isize::MAX as usize);
    if bytes.is_none_or(|bytes| address.checked_add(bytes).is_none()) {
        return Err(Error::shape(format!("{what}: {count} elements of {align} bytes overflow the address space")));
    }
    if address == 0 && count > 0 {
        return Err(Error::shape(format!("{what}: null pointer with {count} elements (a fake or meta tensor?)")));
    }
    if !address.is_multiple_of(align) {
        return Err(Error::shape(format!("{what}: address is not a multiple of {align} bytes; pass an aligned copy")));
    }
    Ok(())
}

/// Bytes at an address, and what messages call them.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    what: &'static str,
    address: usize,
    bytes: usize,
}

impl Memory {
    pub(crate) const fn new(what: &'static str, address: usize, bytes: usize) -> Self {
        Self { what, address, bytes }
    }

    /// `count` values of a type.
    pub(crate) const fn of<T>(what: &'static str, address: usize, count: usize) -> Self {
        Self::new(what, address, count.saturating_mul(size_of::<T>()))
    }

    /// `count` values of a dtype.
    pub(crate) const fn values(what: &'static str, address: usize, count: usize, dtype: DType) -> Self {
        Self::new(what, address, count.saturating_mul(dtype.bytes()))
    }

    /// True where a byte belongs to both; null has none.
    const fn shares(&self, other: &Self) -> bool {
        let (end, other_end) = (self.address.saturating_add(self.bytes), other.address.saturating_add(other.bytes));
        let empty = self.bytes == 0 || other.bytes == 0 || self.address == 0 || other.address == 0;
        !empty && self.address < other_end && other.address < end
    }
}

/// Refuses a call that writes to memory which it also reads, or writes as something else: the answer would be wrong, and
/// slices of it would break Rust's rules.
pub(crate) fn apart(written: &[Memory], read: &[Memory]) -> Result<()> {
    for (i, to) in written.iter().enumerate() {
        if let Some(other) = written[i + 1..].iter().chain(read).find(|other| to.shares(other)) {
            let text = format!("{} and {} share memory; pass memory of its own to write to", to.what, other.what);
            return Err(Error::shape(text));
        }
    }
    Ok(())
}

/// A read-only slice.
///
/// # Safety
/// The Python caller must keep the memory alive, `count` initialized values of `T`, and nobody may write to it for the
/// duration of the call: neither this call, as [`apart`] checks, nor other threads, which Python cannot rule out and its
/// users are told not to do.
pub(crate) unsafe fn slice<'a, T>(address: usize, count: usize, what: &str) -> Result<&'a [T]> {
    check(address, count, align_of::<T>(), what)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, aligned and not too long; the caller vouches for the memory.
    Ok(unsafe { std::slice::from_raw_parts(address as *const T, count) })
}

/// A writable slice.
///
/// # Safety
/// As for [`slice`]; nobody else may read the memory meanwhile, either.
pub(crate) unsafe fn slice_mut<'a, T>(address: usize, count: usize, what: &str) -> Result<&'a mut [T]> {
    check(address, count, align_of::<T>(), what)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, aligned and not too long; the caller vouches for the memory.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut T, count) })
}

/// Values to read.
///
/// # Safety
/// As for [`slice`].
pub(crate) unsafe fn values<'a>(address: usize, count: usize, dtype: DType, what: &str) -> Result<Values<'a>> {
    // SAFETY: as the caller promises.
    unsafe {
        Ok(match dtype {
            DType::F32 => Values::F32(slice(address, count, what)?),
            DType::F16 => Values::F16(slice(address, count, what)?),
            DType::BF16 => Values::BF16(slice(address, count, what)?),
        })
    }
}

/// Values to write.
///
/// # Safety
/// As for [`slice_mut`].
pub(crate) unsafe fn values_mut<'a>(address: usize, count: usize, dtype: DType, what: &str) -> Result<ValuesMut<'a>> {
    // SAFETY: as the caller promises.
    unsafe {
        Ok(match dtype {
            DType::F32 => ValuesMut::F32(slice_mut(address, count, what)?),
            DType::F16 => ValuesMut::F16(slice_mut(address, count, what)?),
            DType::BF16 => ValuesMut::BF16(slice_mut(address, count, what)?),
        })
    }
}
