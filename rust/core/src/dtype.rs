//! [`DType`]: what numbers are outside formats.

/// Logical dtype of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// Upper half of a binary32.
    BF16,
}

impl DType {
    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        if matches!(self, Self::F32) { 4 } else { 2 }
    }
    /// Largest finite value; what an infinity counts as.
    pub const fn largest(self) -> f32 {
        match self {
            Self::F32 => f32::MAX,
            Self::F16 => 65_504.0,
            Self::BF16 => f32::from_bits(0x7f7f_0000),
        }
    }
    /// Name used in files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
        }
    }
}
