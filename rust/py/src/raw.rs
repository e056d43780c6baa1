//! Slices from the addresses that Python passes: the only place that makes memory out of an integer.

use octavo_core::{DType, Error, Result, Values, ValuesMut};

fn check(address: usize, count: usize, align: usize, what: &str) -> Result<()> {
    let bytes = count.checked_mul(align).filter(|&bytes| bytes <= isize::MAX as usize);
    if bytes.is_none() {
        return Err(Error::Shape(format!("{what}: {count} elements of {align} bytes overflow the address space")));
    }
    if address == 0 && count > 0 {
        return Err(Error::Shape(format!("{what}: null pointer with {count} elements (a fake or meta tensor?)")));
    }
    if !address.is_multiple_of(align) {
        return Err(Error::Shape(format!("{what}: address is not a multiple of {align} bytes; pass an aligned copy")));
    }
    Ok(())
}

/// A read-only slice. Safety: see [`slice_mut`].
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
/// The Python caller keeps the memory alive and unshared for the duration of the call; `ops.py` checks dtype, device,
/// layout and size of the tensor it came from.
pub(crate) unsafe fn slice_mut<'a, T>(address: usize, count: usize, what: &str) -> Result<&'a mut [T]> {
    check(address, count, align_of::<T>(), what)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, aligned and not too long; the caller vouches for the memory.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut T, count) })
}

/// Values to read. Safety: see [`slice_mut`].
pub(crate) unsafe fn values<'a>(address: usize, count: usize, dtype: DType, what: &str) -> Result<Values<'a>> {
    // SAFETY: forwarded.
    unsafe {
        Ok(match dtype {
            DType::F32 => Values::F32(slice(address, count, what)?),
            DType::F16 => Values::F16(slice(address, count, what)?),
            DType::BF16 => Values::BF16(slice(address, count, what)?),
        })
    }
}

/// Values to write. Safety: see [`slice_mut`].
pub(crate) unsafe fn values_mut<'a>(address: usize, count: usize, dtype: DType, what: &str) -> Result<ValuesMut<'a>> {
    // SAFETY: forwarded.
    unsafe {
        Ok(match dtype {
            DType::F32 => ValuesMut::F32(slice_mut(address, count, what)?),
            DType::F16 => ValuesMut::F16(slice_mut(address, count, what)?),
            DType::BF16 => ValuesMut::BF16(slice_mut(address, count, what)?),
        })
    }
}
