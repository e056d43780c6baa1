//! Kernels of products under a real compiler: registers, and nothing spilled.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops where its set-up fails, and says why it is skipped"
)]

mod common;

use octavo_core::{DType, Format};
use octavo_cuda::Program;
use octavo_cuda::arch::{Arch, Target};
use octavo_cuda::attention::{self, Attention, Shape};
use octavo_cuda::dropout_norm::{DropoutNorm, Rows};
use octavo_cuda::gemm::{Bias, Gemm, Kernel, Output, Product, Scales};
use octavo_cuda::linear::{Bf16Limbs, Device, Int8Limbs, Linear, Numbers};
use octavo_cuda::nvrtc::{Nvrtc, usage};

use common::{disassembled, nvrtc};

/// Large devices, of any architecture and Hopper.
const ANY: Device = Device { multiprocessors: 132, arch: Arch { capability: 80, specific: false } };
const HOPPER: Device = Device { multiprocessors: 132, arch: Arch::native(90) };

/// A large product of bytes.
const SQUARE: Product = Product {
    m: 4096,
    n: 4096,
    k: 4096,
    x: 0,
    stride: 4096,
    codes: 0,
    width: 8,
    row_scales: Scales { address: 0, each: false },
    column_scales: Scales { address: 0, each: false },
    bias: Bias::None,
    out: 0,
    output: Output::Sum,
};

/// Compiles for sm_80, sm_90 and two more, so that a few programs see all architectures, every kernel within `registers`.
fn within(nvrtc: &Nvrtc, program: &Program, registers: u32, i: usize) {
    let others = [86, 89, 100, 120];
    let chosen = [80, 90, others[i % 4], others[(i + 2) % 4]];
    for arch in nvrtc.archs().into_iter().filter(|arch| chosen.contains(&arch.capability)) {
        let image = nvrtc.compile(program, Target::Cubin(arch)).unwrap();
        for used in usage(&image.log) {
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
fn int8_limbs_stay_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    // Three blocks on a multiprocessor have 80 registers a thread, two 128, one 255.
    for (i, (format, m, dtype, registers)) in [
        ("int8:channel", 1, DType::BF16, 80),
        ("int8:channel", 16, DType::F32, 192),
        ("mxint8", 1, DType::BF16, 80),
        ("mxint8", 16, DType::BF16, 255),
        ("mxint8/8", 4, DType::BF16, 192),
        ("int4:g32", 1, DType::BF16, 80),
        ("int4:g128", 4, DType::F16, 80),
        ("uint4:g64", 2, DType::BF16, 80),
        ("int3:g32", 1, DType::BF16, 80),
        ("mxfp4", 8, DType::BF16, 192),
        ("nvfp4", 1, DType::F32, 128),
    ]
    .into_iter()
    .enumerate()
    {
        let format = Format::parse(format).unwrap();
        let linear =
            Linear { format, m, n: 4096, k: 4096, x: Numbers { address: 0, dtype }, parts: [0; 4], bias: None, out: 0 };
        let limbs = Int8Limbs::new(&linear, ANY).unwrap().unwrap();
        within(&nvrtc, limbs.program(), registers, i);
    }
}

#[test]
fn bf16_limbs_stay_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    for (i, (format, m, dtype)) in [
        ("mxfp8e4m3", 64, DType::BF16),
        ("int8:channel", 64, DType::BF16),
        ("int4:g128", 64, DType::BF16),
        ("nf4", 32, DType::F16),
        ("mxint8", 16, DType::F32),
        ("int8:g12", 16, DType::F32),
        ("mxfp6e3m2", 8, DType::BF16),
    ]
    .into_iter()
    .enumerate()
    {
        let format = Format::parse(format).unwrap();
        let linear =
            Linear { format, m, n: 4096, k: 4096, x: Numbers { address: 0, dtype }, parts: [0; 4], bias: None, out: 0 };
        let limbs = Bf16Limbs::new(&linear, ANY).unwrap().unwrap();
        within(&nvrtc, limbs.program(), 224, i);
    }
}

#[test]
fn integer_products_stay_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    for (i, (m, k, width, output)) in [
        (4096, 4096, 8, Output::Sum),
        (4096, 4096, 8, Output::Byte(0)),
        (4096, 4096, 8, Output::Float(DType::BF16)),
        (100, 36, 8, Output::Float(DType::F32)),
        (100, 33, 8, Output::Float(DType::F32)),
        (100, 64, 4, Output::Float(DType::BF16)),
        (16, 4096, 8, Output::Float(DType::BF16)),
        (1, 4096, 4, Output::Sum),
    ]
    .into_iter()
    .enumerate()
    {
        let product = Product { m, k, stride: k, width, bias: Bias::Integer(0), output, ..SQUARE };
        let gemm = Gemm::new(&product, ANY).unwrap();
        // Rows that 16 bytes do not divide, and codes to unpack, leave room for one block on a multiprocessor.
        let registers = if k % 16 == 0 && width == 8 { 128 } else { 160 };
        within(&nvrtc, gemm.program(), registers, i);
    }
}

#[test]
fn warpgroups_compile_for_hopper_alone_and_stay_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    for output in
        [Output::Sum, Output::Byte(0), Output::Float(DType::F32), Output::Float(DType::F16), Output::Float(DType::BF16)]
    {
        let gemm = Gemm::new(&Product { output, ..SQUARE }, HOPPER).unwrap();
        assert_eq!(gemm.kernel(), Kernel::Warpgroups);
        let image = nvrtc.compile(gemm.program(), Target::Cubin(HOPPER.arch)).unwrap();
        // C7508: registers cannot be moved between warpgroups. C7510 and its like: products wait for one another.
        let complaint = ["C75", "warning"].into_iter().find(|word| image.log.contains(word));
        assert_eq!(complaint, None, "{output:?}: {}", image.log);
        for used in usage(&image.log) {
            assert_eq!((used.stack, used.spill_stores, used.spill_loads), (0, 0, 0), "{output:?}: {used:?}");
            // What 384 threads begin with; those that multiply take 232 each.
            assert!(used.registers <= 168, "{output:?}: {used:?}");
        }
        let Some(lines) = disassembled(&image.code, "warpgroups") else { return };
        let count = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
        assert_eq!((count("IGMMA.64x256x32.S8.S8"), count("UTMALDG.2D"), count("USETMAXREG")), (4, 2, 2));
        assert_eq!(count("LDL") + count("STL"), 0);
        let words = lines.iter().flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()));
        let registers = words.filter_map(|word| word.strip_prefix('R')?.parse::<u32>().ok());
        assert!(registers.max() < Some(232), "{output:?}");
    }
    let Some(lines) = hot_loop(&image_of_sums(&nvrtc), "warpgroups") else { return };
    assert!(lines.len() <= 80, "{} instructions a step", lines.len());
}

fn image_of_sums(nvrtc: &Nvrtc) -> Vec<u8> {
    let gemm = Gemm::new(&SQUARE, HOPPER).unwrap();
    nvrtc.compile(gemm.program(), Target::Cubin(HOPPER.arch)).unwrap().code
}

/// Instructions of the loop with the most products of matrices, by `nvdisasm`; none where it is not found.
fn hot_loop(cubin: &[u8], entry: &str) -> Option<Vec<String>> {
    let own = disassembled(cubin, entry)?;
    let products = |lines: &[String]| lines.iter().filter(|line| line.contains("MMA.")).count();
    let mut found: Vec<String> = Vec::new();
    for (end, line) in own.iter().enumerate() {
        let label = line.split_once("BRA `(").and_then(|(_, rest)| rest.split_once(')')).map(|(label, _)| label);
        let Some(begin) = label.and_then(|label| own[..end].iter().position(|l| l.trim_end_matches(':') == label))
        else {
            continue;
        };
        let body = own[begin..=end].iter().filter_map(|line| line.split("*/").nth(1));
        let body: Vec<String> = body.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect();
        if products(&body) > products(&found) {
            found = body;
        }
    }
    Some(found)
}

#[test]
fn loops_take_few_instructions() {
    let Some(nvrtc) = nvrtc() else { return };
    // Products of matrices for 128 columns; instructions a weight, in hundredths: a multiprocessor has 990 for bytes and 530
    // for nibbles while memory brings one; registers.
    for (format, m, products, most, registers) in [
        ("int8:channel", 1, 4, 78, 80),
        ("mxint8", 1, 4, 90, 80),
        ("int8:g128", 1, 4, 90, 80),
        ("int4:g32", 1, 4, 100, 80),
        ("int4:g128", 1, 4, 100, 80),
        ("uint4:g64", 1, 4, 125, 80),
        ("mxfp4", 1, 4, 215, 80),
        ("nvfp4", 1, 4, 240, 96),
        ("mxint8", 4, 16, 178, 112),
        ("int4:g128", 4, 4, 102, 80),
        ("mxint8", 8, 32, 330, 192),
        ("int8:channel", 16, 16, 138, 128),
    ] {
        let (format, x) = (Format::parse(format).unwrap(), Numbers { address: 0, dtype: DType::BF16 });
        let linear = Linear { format, m, n: 4096, k: 4096, x, parts: [0; 4], bias: None, out: 0 };
        let limbs = Int8Limbs::new(&linear, ANY).unwrap().unwrap();
        let image = nvrtc.compile(limbs.program(), Target::Cubin(Arch::native(90))).unwrap();
        let used = usage(&image.log).into_iter().map(|used| used.registers).max();
        assert!(used <= Some(registers), "'{format}', {m} rows: {used:?} registers");
        let Some(lines) = hot_loop(&image.code, "multiply") else { return };
        let count = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
        // 32 lanes, 16 rows of 128 weights, of which a warp has two under way.
        assert_eq!(count("IMMA.16832"), 2 * products, "'{format}', {m} rows");
        assert_eq!(count("LDG.E.NA.128"), format.width() as usize, "'{format}', {m} rows");
        let each = lines.len() * 3200 / 2048 / 2;
        assert!((1..=most).contains(&each), "'{format}', {m} rows: {each} hundredths an instruction a weight");
    }
    // The same for decoded weights and 64 rows of inputs, with a chunk a loop: conversion, and products of eight tiles.
    for (format, most) in
        [("int8:channel", 790), ("mxint8", 1000), ("int4:g128", 1280), ("mxfp4", 970), ("mxfp8e4m3", 1510)]
    {
        let (format, x) = (Format::parse(format).unwrap(), Numbers { address: 0, dtype: DType::BF16 });
        let linear = Linear { format, m: 64, n: 4096, k: 4096, x, parts: [0; 4], bias: None, out: 0 };
        let limbs = Bf16Limbs::new(&linear, ANY).unwrap().unwrap();
        let image = nvrtc.compile(limbs.program(), Target::Cubin(Arch::native(90))).unwrap();
        let Some(lines) = hot_loop(&image.code, "multiply") else { return };
        let each = lines.len() * 3200 / 2048;
        assert!((1..=most).contains(&each), "'{format}', 64 rows: {each} hundredths an instruction a weight");
    }
    let gemm = Gemm::new(&SQUARE, ANY).unwrap();
    let image = nvrtc.compile(gemm.program(), Target::Cubin(Arch::native(90))).unwrap();
    let Some(lines) = hot_loop(&image.code, "gemm") else { return };
    let count = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
    assert_eq!((count("IMMA.16832.S8.S8"), count("LDSM.16.M88.4"), count("LDL") + count("STL")), (32, 12, 0));
    assert!(lines.len() <= 180, "{} instructions a step", lines.len());
}

#[test]
fn drop_out_and_norm_stay_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    for (i, (width, dtypes)) in
        [(768, [DType::F32; 3]), (1024, [DType::F32, DType::BF16, DType::F32]), (4096, [DType::BF16; 3])]
            .into_iter()
            .enumerate()
    {
        let [x, branch, stream] = dtypes;
        let made = DropoutNorm::new(Rows { rows: 4096, width, x, branch, stream }, 132).unwrap();
        within(&nvrtc, made.program(), 128, i);
    }
}

#[test]
fn attention_over_pages_stays_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let shape = Shape {
        sequences: 1,
        heads: 12,
        key_heads: 3,
        depth: 64,
        values: 64,
        latent: false,
        longest: 256,
        window: 0,
        dtype: DType::BF16,
        format: None,
    };
    let latent = Shape { key_heads: 1, depth: 576, values: 512, latent: true, ..shape };
    let format = |text: &str| Some(octavo_core::Format::parse(text).unwrap());
    let device = attention::Device { multiprocessors: 132, shared: 99 << 10 };
    for (i, shape) in [
        shape,
        Shape { dtype: DType::F16, ..latent },
        Shape { format: format("mxint8"), ..shape },
        Shape { format: format("int8:g32"), ..latent },
        Shape { format: format("mxfp4"), depth: 160, values: 128, ..latent },
    ]
    .into_iter()
    .enumerate()
    {
        within(&nvrtc, Attention::new(shape, device).unwrap().program(), 168, i);
    }
}
