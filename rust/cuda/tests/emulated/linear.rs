//! Products with packed weights against float64 sums of the decoded weights.

use octavo_core::{DType, Format, Layout, Options, PackedMut, Sizes, Values, ValuesMut, codec};
use octavo_cuda::arch::Arch;
use octavo_cuda::linear::{Bf16Limbs, Device, Int8Limbs, Linear, Numbers};

use crate::emulator::{Memory, available, emulate};

const DEVICE: Device = Device { multiprocessors: 4, arch: Arch { capability: 80, specific: false } };

/// Numbers that look normal, with an outlier here and there.
pub(crate) fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    (0..count).map(|_| (0..6).map(|_| uniform()).sum::<f32>() - 3.0).collect()
}

/// Rounded to a dtype, as float32 and as bytes.
pub(crate) fn rounded(values: &[f32], dtype: DType) -> (Vec<f32>, Vec<u8>) {
    let f16 = |v: f32| half::f16::from_f32(v);
    let bf16 = |v: f32| half::bf16::from_f32(v);
    match dtype {
        DType::F32 => (values.to_vec(), values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        DType::F16 => (
            values.iter().map(|&v| f16(v).to_f32()).collect(),
            values.iter().flat_map(|&v| f16(v).to_le_bytes()).collect(),
        ),
        DType::BF16 => (
            values.iter().map(|&v| bf16(v).to_f32()).collect(),
            values.iter().flat_map(|&v| bf16(v).to_le_bytes()).collect(),
        ),
    }
}

fn read(bytes: &[u8], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        DType::F16 => bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
        DType::BF16 => bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
    }
}

/// A product, its numbers and its exact result.
pub(crate) struct Case {
    pub(crate) memory: Memory,
    linear: Linear,
    exact: Vec<f64>,
}

/// `misaligned` moves codes by a byte and other buffers by one number.
pub(crate) fn case(format: &str, shape: (usize, usize, usize), dtype: DType, bias: bool, misaligned: bool) -> Case {
    case_with(format, shape, dtype, bias, misaligned, |_| {})
}

/// The same with scales that `change` has changed.
fn case_with(
    format: &str,
    (m, n, k): (usize, usize, usize),
    dtype: DType,
    bias: bool,
    misaligned: bool,
    change: impl FnOnce(&mut [u8]),
) -> Case {
    let format = Format::parse(format).unwrap();
    let layout = Layout::new(&[n, k], -1, format).unwrap();
    let sizes = Sizes::new(format, &layout).unwrap();
    let weights = normal(n * k, 1 + n as u64);
    let mut parts = [vec![0; sizes.codes], vec![0; sizes.scales], vec![0; sizes.zeros], vec![0; sizes.levels]];
    let [codes, scales, zeros, levels] = &mut parts;
    let to = PackedMut { codes, scales, zeros, levels };
    codec::encode(Values::F32(&weights), layout, format, &Options::default(), to).unwrap();
    change(&mut parts[1]);
    let [codes, scales, zeros, levels] = &parts;
    let packed = octavo_core::Packed { codes, scales, zeros, levels };
    let mut decoded = vec![0.0; n * k];
    codec::decode(packed, layout, format, ValuesMut::F32(&mut decoded)).unwrap();

    let (x, x_bytes) = rounded(&normal(m * k, 7), dtype);
    let (added, bias_bytes) = rounded(&normal(n, 9), DType::F16);
    let dot = |row: usize, of: usize| -> f64 {
        let products = (0..k).map(|c| f64::from(x[row * k + c]) * f64::from(decoded[of * k + c]));
        products.sum::<f64>() + if bias { f64::from(added[of]) } else { 0.0 }
    };
    let exact = (0..m * n).map(|i| dot(i / n, i % n)).collect();

    let mut memory = Memory::default();
    let mut at = |bytes: &[u8], size: u32| memory.add(bytes, if misaligned { size } else { 0 });
    let scale = format.scale_type().map_or(1, |scale| scale.bytes()) as u32;
    let size = dtype.bytes() as u32;
    let addresses = [at(codes, 1), at(scales, scale), at(zeros, 1), at(levels, 4)];
    let linear = Linear {
        format,
        m,
        n,
        k,
        x: Numbers { address: at(&x_bytes, size), dtype },
        parts: addresses,
        bias: bias.then(|| Numbers { address: at(&bias_bytes, 2), dtype: DType::F16 }),
        out: at(&vec![0xff; m * n * size as usize], size),
    };
    Case { memory, linear, exact }
}

#[derive(Clone, Copy)]
pub(crate) enum Way {
    Int8Limbs,
    Bf16Limbs,
}

/// The exact result, and that of a kernel.
fn results(mut case: Case, way: Way) -> (Vec<f64>, Vec<f32>) {
    let linear = case.linear;
    let calls = match way {
        Way::Int8Limbs => {
            let limbs = Int8Limbs::new(&linear, DEVICE).unwrap().unwrap();
            let scratch = case.memory.add(&vec![0xff; limbs.scratch(&linear)], 0);
            limbs.calls(&linear, scratch)
        }
        Way::Bf16Limbs => {
            let limbs = Bf16Limbs::new(&linear, DEVICE).unwrap().unwrap();
            let scratch = case.memory.add(&vec![0xff; limbs.scratch(&linear)], 0);
            limbs.calls(&linear, scratch)
        }
    };
    emulate(&calls.unwrap(), &mut case.memory);
    let y = read(case.memory.bytes(case.linear.out), case.linear.x.dtype);
    (case.exact, y)
}

pub(crate) fn error_of(case: Case, way: Way) -> f64 {
    let (exact, y) = results(case, way);
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut y.iter().zip(&exact).map(|(y, exact)| f64::from(*y) - exact));
    difference / norm(&mut exact.iter().copied())
}

/// What rounding the outputs costs, and the limbs.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-6,
        DType::F16 => 4e-4,
        DType::BF16 => 3e-3,
    }
}

#[test]
fn int8_limbs_multiply_every_family_of_formats() {
    if !available() {
        return;
    }
    let formats = [
        "int8:channel",
        "int8:tensor",
        "int8:g64",
        "int4:g32",
        "int4:g128",
        "int3:g32",
        "int6:g16",
        "uint4:g64",
        "uint8:channel",
        "uint5:g8",
        "mxint8",
        "mxint8/8",
        "mxint8/16",
        "mxint8/64",
        "mxint4",
        "mxint4/16",
        "mxint4/8",
        "mxfp4",
        "mxfp6e2m3",
        "nvfp4",
        "bfp8/16",
        "bfp5/256",
        "ternary",
        "binary",
        "fixed6.3",
        "fixed8:channel",
        "ufixed8.4",
        "int7:tensor",
    ];
    for (i, format) in formats.into_iter().enumerate() {
        let dtype = [DType::F32, DType::BF16, DType::F16][i % 3];
        let m = [1, 3, 4, 2][i % 4];
        let error = error_of(case(format, (m, 19, 288), dtype, i % 2 == 0, false), Way::Int8Limbs);
        assert!(error < tolerance(dtype), "{format}, {m} rows of {}: {error:e}", dtype.name());
    }
}

#[test]
fn int8_limbs_take_odd_shapes_and_addresses() {
    if !available() {
        return;
    }
    for (i, (format, shape)) in [
        ("int8:channel", (1, 33, 145)),
        ("int4:g32", (1, 17, 33)),
        ("mxint8", (8, 33, 144)),
        ("int3:g32", (5, 5, 100)),
        ("int8:channel", (2, 40, 1)),
        ("uint4:channel", (7, 16, 1291)),
        ("mxfp4", (4, 1, 2048)),
        ("int8:tensor", (1, 16, 4100)),
    ]
    .into_iter()
    .enumerate()
    {
        for misaligned in [false, true] {
            let error = error_of(case(format, shape, DType::F32, i % 2 == 0, misaligned), Way::Int8Limbs);
            assert!(error < 1e-6, "{format} {shape:?}, misaligned {misaligned}: {error:e}");
        }
    }
}

#[test]
fn int8_limbs_take_rows_of_whole_chunks() {
    if !available() {
        return;
    }
    for (i, (format, shape)) in [
        // Warps with three and four chunks: they wrap around what they have under way, to an end in between.
        ("int8:channel", (1, 130, 27 * 128)),
        ("int4:g32", (3, 130, 27 * 128)),
        ("mxint8", (8, 130, 25 * 128)),
        ("int8:g128", (2, 130, 17 * 128 + 57)),
        // Slices of unequal length.
        ("mxint8", (1, 20, 9 * 128)),
        ("uint4:g64", (2, 37, 17 * 128)),
        ("nvfp4", (1, 37, 17 * 128)),
        ("mxfp4", (5, 19, 27 * 128)),
        // Groups that share a byte of zero points, and groups of several chunks, the last of them short.
        ("uint4:g128", (8, 16, 10 * 128)),
        ("int8:g256", (1, 16, 9 * 128)),
        ("uint8:g384", (4, 16, 10 * 128)),
        ("mxfp6e2m3", (1, 18, 10 * 128)),
        ("mxint8/8", (2, 18, 10 * 128)),
        ("int3:g32", (1, 17, 10 * 128)),
    ]
    .into_iter()
    .enumerate()
    {
        for misaligned in [false, true] {
            let dtype = [DType::BF16, DType::F16, DType::F32][i % 3];
            let error = error_of(case(format, shape, dtype, i % 2 == 0, misaligned), Way::Int8Limbs);
            assert!(error < tolerance(dtype), "{format} {shape:?}, misaligned {misaligned}: {error:e}");
        }
    }
}

#[test]
fn a_scale_that_is_no_number_stays_in_its_row() {
    if !available() {
        return;
    }
    for (format, shape) in [("mxint8", (2, 19, 288)), ("mxfp4", (1, 19, 1024)), ("nvfp4", (3, 33, 272))] {
        let code = if format == "nvfp4" { 0x7f } else { 0xff };
        for way in [Way::Int8Limbs, Way::Bf16Limbs] {
            // Of the last block of row 17.
            let change = |scales: &mut [u8]| {
                let blocks = scales.len() / shape.1;
                scales[18 * blocks - 1] = code;
            };
            let (exact, y) = results(case_with(format, shape, DType::F32, false, false, change), way);
            for (at, (exact, y)) in exact.iter().zip(&y).enumerate() {
                assert_eq!(y.is_nan(), at % shape.1 == 17, "{format}: {y} at {at}");
                assert!(y.is_nan() == exact.is_nan(), "{format}: {y}, not {exact}, at {at}");
            }
        }
    }
}

#[test]
fn bf16_limbs_multiply_every_family_of_formats() {
    if !available() {
        return;
    }
    for (i, format) in [
        "mxfp8e4m3",
        "mxfp8e5m2",
        "e4m3",
        "e5m2",
        "nf4",
        "nf3/32",
        "mxfp6e3m2",
        "log8",
        "denorm8e3",
        "bm8e4/16",
        "blog6/32",
        "int8:channel",
        "int8:g12",
        "int4:g32",
        "uint8:g100",
        "uint3:tensor",
        "mxint8",
        "mxint5/20",
        "nvfp4",
        "mxfp4",
        "binary",
        "ufixed8.4",
    ]
    .into_iter()
    .enumerate()
    {
        let dtype = [DType::F32, DType::BF16, DType::F16][i % 3];
        let m = [17, 3, 40, 64, 9][i % 5];
        let error = error_of(case(format, (m, 35, 288), dtype, i % 2 == 0, false), Way::Bf16Limbs);
        assert!(error < tolerance(dtype), "{format}, {m} rows of {}: {error:e}", dtype.name());
    }
}

#[test]
fn bf16_limbs_take_odd_shapes_and_addresses() {
    if !available() {
        return;
    }
    for (i, (format, shape)) in [
        ("mxfp8e4m3", (17, 33, 145)),
        ("nf4", (1, 130, 33)),
        ("int8:channel", (33, 5, 1)),
        ("mxfp6e3m2", (64, 17, 1030)),
    ]
    .into_iter()
    .enumerate()
    {
        for misaligned in [false, true] {
            let error = error_of(case(format, shape, DType::F32, i % 2 == 0, misaligned), Way::Bf16Limbs);
            assert!(error < 1e-6, "{format} {shape:?}, misaligned {misaligned}: {error:e}");
        }
    }
}
