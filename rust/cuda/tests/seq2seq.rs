//! Kernels of generation under a real compiler: registers, nothing spilled, tensor cores.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops where its set-up fails, and says why it is skipped"
)]

mod common;

use octavo_cuda::arch::{Arch, Target};
use octavo_cuda::nvrtc::usage;
use octavo_cuda::seq2seq::{Device, Generation, Sizes};

use common::{disassembled, nvrtc};

const SHIPPED: Sizes = Sizes {
    vocabulary: 31,
    encoder: 64,
    hidden: 128,
    heads: 4,
    layers: 2,
    feedforward: 256,
    max_source: 32,
    max_target: 32,
};
/// Capabilities of GPUs that are common.
const COMMON: [u32; 6] = [80, 86, 89, 90, 100, 120];
const DEVICE: Device = Device { multiprocessors: 132, shared: 227 << 10 };

#[test]
fn wide_encoders_stay_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    for encoder in [128, 192] {
        let made = Generation::new(Sizes { encoder, ..SHIPPED }, 16_384, DEVICE).unwrap();
        let image = nvrtc.compile(made.program(), Target::Cubin(Arch::native(90))).unwrap();
        for used in usage(&image.log) {
            let wasted = (used.stack, used.spill_stores, used.spill_loads);
            assert_eq!(wasted, (0, 0, 0), "encoder of {encoder}: {used:?}");
        }
    }
}

#[test]
fn generation_stays_in_registers_and_on_tensor_cores() {
    let Some(nvrtc) = nvrtc() else { return };
    for rows in [1, 16_384] {
        let made = Generation::new(SHIPPED, rows, DEVICE).unwrap();
        let asked = |arch: &Arch| if rows == 1 { arch.capability == 90 } else { COMMON.contains(&arch.capability) };
        for arch in nvrtc.archs().into_iter().filter(asked) {
            let image = nvrtc.compile(made.program(), Target::Cubin(arch)).unwrap();
            for used in usage(&image.log) {
                let wasted = (used.stack, used.spill_stores, used.spill_loads);
                assert_eq!(wasted, (0, 0, 0), "{} for {arch}: {used:?}", made.program().name);
                // Two blocks of many rows that are decoded share a multiprocessor, and those of the encoder are small.
                let most = if rows > 1 && used.entry == "decode" { 128 } else { 224 };
                assert!(used.registers <= most, "{} for {arch}: {used:?}", made.program().name);
            }
            let Some(lines) = disassembled(&image.code, "decode").filter(|_| arch.capability == 90) else { continue };
            let count = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
            assert!(count("HMMA.16816.F32.BF16") > 100 && count("LDSM.16.M88.4") > 50, "{}", made.program().name);
        }
    }
}
