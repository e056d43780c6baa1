//! Limits of a container. Each only bounds what is looked at: every number is compared with the length of the file,
//! too, before anything is allocated for it.

/// Bytes of the JSON header; the limit of the safetensors library.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Tensors in one file, parts counted one by one.
pub const MAX_TENSORS: usize = 1 << 20;
/// Bytes of the name under which a tensor is stored, suffix included.
pub const MAX_NAME_BYTES: usize = 1024;
/// Dimensions of a tensor.
pub const MAX_RANK: usize = 8;
/// Elements along one dimension. Flat parameters of large models exceed 2^31; nothing real comes near this.
pub const MAX_DIMENSION: u64 = 1 << 40;
/// Bytes of the JSON text that describes one packed tensor; eight dimensions and the longest format need half of it.
pub const MAX_PACKING_BYTES: usize = 512;
/// Characters of a foreign text that an error message repeats.
pub const MAX_SHOWN: usize = 80;
