//! Launches of the kernel for large integer products on Hopper (`wgmma`): `kernels/linear/warpgroups.cu`.

use super::Product;
use crate::arch::Arch;
use crate::linear::{Device, int};
use crate::{Argument, TensorMap};

pub(super) const FILES: &[(&str, &str)] = &[
    ("base.cu", include_str!("../../kernels/base.cu")),
    ("hopper.cu", include_str!("../../kernels/hopper.cu")),
    ("values.cu", include_str!("../../kernels/linear/values.cu")),
    ("epilogue.cu", include_str!("../../kernels/linear/epilogue.cu")),
    ("warpgroups.cu", include_str!("../../kernels/linear/warpgroups.cu")),
];
/// The one architecture that has the kernel's instructions.
const ARCH: Arch = Arch::native(90);
/// Sides of a tile of outputs, columns of a step.
const TILE: [usize; 2] = [128, 256];
pub(super) const STEP: usize = 128;
/// Fewest rows and columns of outputs for which this kernel is chosen.
const LEAST: usize = 128;
/// Two warpgroups that multiply, one that copies.
pub(super) const THREADS: u32 = 384;
/// Bytes of shared memory: four stages, a transpose buffer of 4 KB for each of eight warps, eight barriers, and padding to
/// a multiple of 1024.
pub(super) const SHARED: u32 = 4 * (128 + 256) * 128 + 8 * 4096 + 8 * 8 + 1024;

/// Whether the kernel takes a product: boxes begin at multiples of 16 bytes, and are copied as they are.
pub(super) fn takes(product: &Product, device: Device) -> bool {
    let sides = product.m >= LEAST && product.n >= LEAST && product.width == 8;
    let rows = product.k.is_multiple_of(16) && product.stride.is_multiple_of(16);
    let begins = (product.x | product.codes).is_multiple_of(16);
    device.arch == ARCH && sides && rows && begins
}

/// Tiles of the outputs.
pub(super) fn tiles(product: &Product) -> usize {
    product.m.div_ceil(TILE[0]) * product.n.div_ceil(TILE[1])
}

/// The kernel's own arguments before those of the outputs.
pub(super) fn arguments(product: &Product, sums: Argument, slice: usize, slices: usize) -> Vec<Argument> {
    let &Product { m, n, k, x, stride, codes, .. } = product;
    let map = |address, rows, pitch, box_rows| {
        let [rows, columns, pitch] = [rows, k, pitch].map(|side| side as u64);
        Argument::Map(TensorMap { address, rows, columns, pitch, box_rows })
    };
    let maps = [map(x, m, stride, TILE[0] as u32), map(codes, n, k, TILE[1] as u32)];
    let [steps, works] = [k.div_ceil(STEP), tiles(product) * slices].map(int);
    maps.into_iter().chain([sums, int(m), int(n), steps, int(slice), works]).collect()
}
