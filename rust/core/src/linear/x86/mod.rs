//! Kernels of x86-64: a file for a method and an instruction set, and what they share.

mod bf16_codes_vbmi;
pub(super) mod bf16_limbs;
mod code_tables;
mod encoded_inputs;
pub(super) mod f32_codes_avx2;
pub(super) mod f32_codes_vbmi;
pub(super) mod f32_float8;
pub(super) mod f32_lookup_avx512;
pub(super) mod f32_tiles;
mod group_scales_avx2;
pub(super) mod int8_avx2;
pub(super) mod int8_group_tiles;
pub(super) mod int8_groups_avx2;
pub(super) mod int8_limbs_vnni;
pub(super) mod int8_pairs_avx2;
pub(super) mod int8_rows;
mod int8_scaling;
pub(super) mod int8_tiles;
mod level_sums_avx2;
mod nibble_rows_avx2;
mod nibble_sums_avx2;
mod nibbles_avx2;
mod numbers_avx2;
mod output_lanes;
mod pieces;
mod sums_avx2;
