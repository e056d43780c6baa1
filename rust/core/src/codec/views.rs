//! Operands of the codecs: typed slices, their float32 view, and the shape seen from one axis.

use crate::dtype::DType;
use crate::error::{Error, FormatError, Result, ShapeError};
use crate::format::{Format, Granularity, packed_bytes};

impl std::str::FromStr for DType {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "float32" => Ok(Self::F32),
            "float16" => Ok(Self::F16),
            "bfloat16" => Ok(Self::BF16),
            _ => Err(FormatError::UnknownDtype { name: text.to_owned() }.into()),
        }
    }
}

/// Values to read. Sixteen-bit floats are given as their bits.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// float32.
    F32(&'a [f32]),
    /// float16 bits.
    F16(&'a [u16]),
    /// bfloat16 bits.
    BF16(&'a [u16]),
}

/// Values to write.
#[derive(Debug)]
pub enum ValuesMut<'a> {
    /// float32.
    F32(&'a mut [f32]),
    /// float16 bits.
    F16(&'a mut [u16]),
    /// bfloat16 bits.
    BF16(&'a mut [u16]),
}

/// A read pointer with its dtype. Pieces of one buffer go to several threads, and in-place work reads and writes the
/// same memory, so the drivers use pointers; bounds are checked once, where they are made from slices.
#[derive(Clone, Copy)]
pub(crate) struct Src {
    ptr: *const u8,
    pub(crate) dtype: DType,
}

/// A write pointer with its dtype.
#[derive(Clone, Copy)]
pub(crate) struct Dst {
    ptr: *mut u8,
    pub(crate) dtype: DType,
}

// SAFETY: values are plain numbers, and only unsafe functions, whose callers vouch for the memory, read them.
unsafe impl Send for Src {}
// SAFETY: as above.
unsafe impl Sync for Src {}
// SAFETY: as above; of what is written, callers give every thread its own range of elements.
unsafe impl Send for Dst {}
// SAFETY: as above.
unsafe impl Sync for Dst {}

impl Values<'_> {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F16(x) | Self::BF16(x) => x.len(),
        }
    }
    /// Some of the values.
    pub(crate) fn range(&self, range: std::ops::Range<usize>) -> Self {
        match self {
            Self::F32(x) => Self::F32(&x[range]),
            Self::F16(x) => Self::F16(&x[range]),
            Self::BF16(x) => Self::BF16(&x[range]),
        }
    }
    pub(crate) const fn src(&self) -> Src {
        match self {
            Self::F32(x) => Src { ptr: x.as_ptr().cast(), dtype: DType::F32 },
            Self::F16(x) => Src { ptr: x.as_ptr().cast(), dtype: DType::F16 },
            Self::BF16(x) => Src { ptr: x.as_ptr().cast(), dtype: DType::BF16 },
        }
    }
}

impl ValuesMut<'_> {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F16(x) | Self::BF16(x) => x.len(),
        }
    }
    pub(crate) const fn dst(&mut self) -> Dst {
        match self {
            Self::F32(x) => Dst { ptr: x.as_mut_ptr().cast(), dtype: DType::F32 },
            Self::F16(x) => Dst { ptr: x.as_mut_ptr().cast(), dtype: DType::F16 },
            Self::BF16(x) => Dst { ptr: x.as_mut_ptr().cast(), dtype: DType::BF16 },
        }
    }
}

impl Src {
    pub(crate) const fn raw(self) -> *const u8 {
        self.ptr
    }
    pub(crate) const fn new(ptr: *const u8, dtype: DType) -> Self {
        Self { ptr, dtype }
    }
    /// Pointer to element `at` where the values are float32; elsewhere it means nothing.
    pub(crate) const fn f32_at(self, at: usize) -> *const f32 {
        self.ptr.cast::<f32>().wrapping_add(at)
    }
    /// Widens `to.len()` values from element `at` on.
    ///
    /// # Safety
    /// The range must lie inside the buffer, which must be alive and which nobody may write to meanwhile; `level` must be
    /// one that this processor has.
    pub(crate) unsafe fn widen(self, at: usize, to: &mut [f32], level: crate::simd::Level) {
        // SAFETY: as the caller promises; 16-bit floats may be unaligned.
        unsafe {
            let from = self.ptr.add(at * self.dtype.bytes());
            match self.dtype {
                DType::F32 => std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast(), to.len() * 4),
                DType::F16 | DType::BF16 => {
                    super::lanes::widen(level, from.cast(), self.dtype == DType::F16, to);
                }
            }
        }
    }
    /// The element at `at`.
    ///
    /// # Safety
    /// `at` must lie inside the buffer, which must be alive and which nobody may write to meanwhile.
    pub(crate) unsafe fn get(self, at: usize) -> f32 {
        // SAFETY: as the caller promises; reads are unaligned.
        unsafe {
            let from = self.ptr.add(at * self.dtype.bytes());
            match self.dtype {
                DType::F32 => from.cast::<f32>().read_unaligned(),
                DType::F16 => half::f16::from_bits(from.cast::<u16>().read_unaligned()).to_f32(),
                DType::BF16 => half::bf16::from_bits(from.cast::<u16>().read_unaligned()).to_f32(),
            }
        }
    }
}

impl Dst {
    pub(crate) const fn raw(self) -> *mut u8 {
        self.ptr
    }
    pub(crate) const fn new(ptr: *mut u8, dtype: DType) -> Self {
        Self { ptr, dtype }
    }
    /// Pointer to element `at` where the values are float32; elsewhere it means nothing.
    pub(crate) const fn f32_at(self, at: usize) -> *mut f32 {
        self.ptr.cast::<f32>().wrapping_add(at)
    }
    /// Narrows values into elements from `at` on: one rounding, saturating.
    ///
    /// # Safety
    /// The range must lie inside the buffer, which must be alive, and nobody else may use it meanwhile; `level` must be one
    /// that this processor has.
    pub(crate) unsafe fn narrow(self, at: usize, from: &[f32], level: crate::simd::Level) {
        // SAFETY: as the caller promises; 16-bit floats may be unaligned.
        unsafe {
            let to = self.ptr.add(at * self.dtype.bytes());
            match self.dtype {
                DType::F32 => std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to, from.len() * 4),
                DType::F16 | DType::BF16 => super::lanes::narrow(level, from, self.dtype == DType::F16, to.cast()),
            }
        }
    }
}

/// A shape seen from one axis: `[outer, k, inner]`, groups along `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Product of the dimensions before the axis.
    pub outer: usize,
    /// Length of the axis.
    pub k: usize,
    /// Product of the dimensions after the axis.
    pub inner: usize,
}

impl Layout {
    /// Splits `shape` at `axis` (negative counts from the end). A 0-d tensor is one row of one element for formats
    /// that do not divide rows.
    ///
    /// # Errors
    /// [`Error::Shape`] for an axis outside the shape, a 0-d tensor with a format that groups along rows, or a number of
    /// elements that overflows.
    pub fn new(shape: &[usize], axis: isize, format: Format) -> Result<Self> {
        if shape.is_empty() {
            if matches!(format.granularity(), Granularity::Block(_) | Granularity::Channel) {
                return Err(ShapeError::NoDimension { format }.into());
            }
            if axis != -1 && axis != 0 {
                return Err(ShapeError::Axis { axis, shape: Vec::new() }.into());
            }
            return Ok(Self { outer: 1, k: 1, inner: 1 });
        }
        let rank = shape.len() as isize;
        let index = if axis < 0 { axis + rank } else { axis };
        if !(0..rank).contains(&index) {
            return Err(ShapeError::Axis { axis, shape: shape.to_vec() }.into());
        }
        let product = |dims: &[usize]| {
            dims.iter().try_fold(1usize, |all, &dim| all.checked_mul(dim)).filter(|&all| all <= isize::MAX as usize / 8)
        };
        let index = index as usize;
        let overflow = || ShapeError::TooManyElements { shape: shape.to_vec() };
        let layout = Self {
            outer: product(&shape[..index]).ok_or_else(overflow)?,
            k: shape[index],
            inner: product(&shape[index + 1..]).ok_or_else(overflow)?,
        };
        product(&[layout.outer, layout.k, layout.inner]).ok_or_else(overflow)?;
        Ok(layout)
    }
    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.outer * self.k * self.inner
    }
    /// True for tensors without elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Rows of `k` elements, the axis moved last.
    pub const fn rows(&self) -> usize {
        self.outer * self.inner
    }
}

/// Sizes of the parts of an encoded tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of a row of codes.
    pub row_bytes: usize,
    /// Bytes of all codes.
    pub codes: usize,
    /// Groups that share a scale.
    pub groups: usize,
    /// Groups in a row of scales; 1 for `:tensor`.
    pub groups_per_row: usize,
    /// Bytes of the scales.
    pub scales: usize,
    /// Bytes of a row of packed zero points.
    pub zeros_row: usize,
    /// Bytes of the zero points (`uintW`).
    pub zeros: usize,
    /// Bytes of the second-level scale (`nvfp4`).
    pub levels: usize,
}

impl Sizes {
    /// Sizes for a tensor of this layout.
    ///
    /// # Errors
    /// [`Error::Shape`] where a size overflows.
    pub fn new(format: Format, layout: &Layout) -> Result<Self> {
        let too_large = || ShapeError::TooManyBytes { format, elements: layout.len() };
        let rows = layout.rows();
        let row_bytes = format.row_bytes(layout.k)?;
        let (rows_of_groups, per_row) = match format.granularity() {
            Granularity::None => (0, 0),
            Granularity::Tensor => (1, 1),
            _ => (rows, format.groups_per_row(layout.k)),
        };
        let groups = rows_of_groups.checked_mul(per_row).ok_or_else(too_large)?;
        let scale_bytes = format.scale_type().map_or(0, crate::format::ScaleType::bytes) * format.scales_per_group();
        let zeros_row = if format.has_zeros() { packed_bytes(per_row, format.width())? } else { 0 };
        Ok(Self {
            row_bytes,
            codes: rows.checked_mul(row_bytes).ok_or_else(too_large)?,
            groups,
            groups_per_row: per_row,
            scales: groups.checked_mul(scale_bytes).ok_or_else(too_large)?,
            zeros_row,
            zeros: rows_of_groups.checked_mul(zeros_row).ok_or_else(too_large)?,
            levels: if format.has_levels() { 4 } else { 0 },
        })
    }
    /// Bytes of all parts together.
    pub const fn total(&self) -> usize {
        self.codes + self.scales + self.zeros + self.levels
    }
}
