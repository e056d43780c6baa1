//! Kernels of products under a real compiler: registers, and nothing spilled.

mod common;

use octavo_core::{DType, Format};
use octavo_cuda::Program;
use octavo_cuda::arch::Target;
use octavo_cuda::linear::{Device, Limbs, Linear, Numbers};
use octavo_cuda::nvrtc::{Nvrtc, usage};

use common::nvrtc;

/// Compiles for all architectures, every kernel within `registers`.
fn within(nvrtc: &Nvrtc, program: &Program, registers: u32) {
    for arch in nvrtc.archs() {
        let image = nvrtc.compile(program, Target::Cubin(arch)).unwrap();
        for used in usage(&image.log) {
            println!("{} {arch} {used:?}", program.name);
            assert_eq!(
                (used.stack, used.spill_stores, used.spill_loads),
                (0, 0, 0),
                "{} for {arch}: {used:?}",
                program.name
            );
            assert!(used.registers <= registers, "{} for {arch}: {used:?}, at most {registers}", program.name);
        }
    }
}

#[test]
fn limbs_stay_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    for (format, m, registers) in [
        ("int8:channel", 1, 80),
        ("int8:channel", 16, 80),
        ("mxint8", 1, 80),
        ("mxint8", 16, 100),
        ("int4:g32", 1, 80),
        ("int4:g128", 4, 80),
        ("mxfp4", 8, 90),
        ("mxint8/8", 4, 128),
        ("uint4:g64", 2, 80),
        ("int3:g32", 1, 80),
        ("nvfp4", 1, 96),
    ] {
        let numbers = Numbers { address: 0, dtype: DType::BF16 };
        let format = Format::parse(format).unwrap();
        let linear = Linear { format, m, n: 4096, k: 4096, x: numbers, parts: [0; 4], bias: None, out: 0 };
        let limbs = Limbs::new(&linear, Device { multiprocessors: 132 }).unwrap().unwrap();
        within(&nvrtc, limbs.program(), registers);
    }
}
