//! Large products on an emulated Hopper against plain sums, bit for bit.

use octavo_core::DType;
use octavo_cuda::arch::Arch;
use octavo_cuda::gemm::{Bias, Gemm, Kernel, Output, Product, Scales};
use octavo_cuda::linear::Device;

use crate::emulator::{Memory, available, emulate};
use crate::linear::normal;

/// So few multiprocessors that blocks take several tiles.
const HOPPER: Device = Device { multiprocessors: 3, arch: Arch::native(90) };

fn le<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| to(v)).collect()
}

/// Bytes of all values, the extremes among them.
fn bytes(count: usize, seed: u64) -> Vec<i8> {
    normal(count, seed).iter().map(|v| (v * 60.0) as i8).collect()
}

/// `(m, n, k)`, bytes between rows of x beyond k, what is added, what comes out.
struct Asked {
    shape: (usize, usize, usize),
    gap: usize,
    bias: fn(u64) -> Bias,
    scaled: bool,
    output: Output,
    backwards: bool,
}

/// The output of an exact sum, as FORMATS.md has it; the kernel for any device is compared with octavo-core elsewhere.
fn expected(asked: &Asked, sum: i64, added: f32, scale: f32) -> Vec<u8> {
    let integer = matches!((asked.bias)(0), Bias::Integer(_));
    let sum = if integer { sum + added as i64 } else { sum };
    if asked.output == Output::Sum {
        return (sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32).to_le_bytes().to_vec();
    }
    let scaled = sum as f32 * scale;
    let y = if matches!((asked.bias)(0), Bias::Float(..)) { scaled + added } else { scaled };
    match asked.output {
        Output::Float(DType::F32) => y.to_le_bytes().to_vec(),
        Output::Float(DType::F16) => half::f16::from_f32(y).to_le_bytes().to_vec(),
        Output::Float(DType::BF16) => half::bf16::from_f32(y).to_le_bytes().to_vec(),
        Output::Byte(zero) => {
            vec![((y.round_ties_even() + zero as f32).clamp(-128.0, 127.0) as i8).cast_unsigned()]
        }
        Output::Sum => Vec::new(),
    }
}

fn check(asked: &Asked) {
    let (m, n, k) = asked.shape;
    let stride = k + asked.gap;
    // What lies between the rows is no zero: a copy that reads it shows.
    let (x, w) = (bytes(m * stride, 1), bytes(n * k, 2));
    let added: Vec<f32> = (0..n).map(|i| (i as f32) * 997.0 - 50_000.0).collect();
    let (by_row, by_column) = if asked.scaled {
        ((0..m).map(|i| 1e-3 + 1e-5 * i as f32).collect(), (0..n).map(|i| 2e-2 + 1e-4 * i as f32).collect())
    } else {
        (vec![1.0_f32; m], vec![1.0_f32; n])
    };
    let unsigned = |v: &[i8]| v.iter().map(|v| v.cast_unsigned()).collect::<Vec<u8>>();
    let mut out = Vec::new();
    for row in 0..m {
        for column in 0..n {
            let pairs = x[row * stride..][..k].iter().zip(&w[column * k..][..k]);
            let sum = pairs.map(|(&a, &b)| i32::from(a) * i32::from(b)).sum::<i32>();
            out.extend(expected(asked, i64::from(sum), added[column], by_row[row] * by_column[column]));
        }
    }

    let mut memory = Memory::default();
    memory.backwards = asked.backwards;
    let integers: Vec<i32> = added.iter().map(|&v| v as i32).collect();
    let bias = match (asked.bias)(0) {
        Bias::Integer(_) => memory.add(&le(&integers, i32::to_le_bytes), 4),
        _ => memory.add(&le(&added, f32::to_le_bytes), 4),
    };
    let mut scales = |values: &[f32]| match asked.scaled {
        true => Scales { address: memory.add(&le(values, f32::to_le_bytes), 4), each: true },
        false => Scales::default(),
    };
    let (row_scales, column_scales) = (scales(&by_row), scales(&by_column));
    let product = Product {
        m,
        n,
        k,
        x: memory.add(&unsigned(&x), 16),
        stride,
        codes: memory.add(&unsigned(&w), 0),
        width: 8,
        row_scales,
        column_scales,
        bias: (asked.bias)(bias),
        out: memory.add(&vec![0x55; out.len()], 16),
        output: asked.output,
    };
    let gemm = Gemm::new(&product, HOPPER).unwrap();
    assert_eq!(gemm.kernel(), Kernel::Warpgroups);
    let scratch = memory.add(&vec![0xff; gemm.scratch(&product)], 0);
    emulate(&gemm.calls(&product, scratch).unwrap(), &mut memory);
    let found = memory.bytes(product.out);
    let size = out.len() / (m * n);
    if let Some(at) = (0..m * n).find(|i| found[i * size..][..size] != out[i * size..][..size]) {
        panic!("{m} x {n} x {k}, {:?}: row {}, column {}", asked.output, at / n, at % n);
    }
}

const NONE: fn(u64) -> Bias = |_| Bias::None;
const FLOATS: fn(u64) -> Bias = |at| Bias::Float(at, DType::F32);
const INTEGERS: fn(u64) -> Bias = Bias::Integer;

#[test]
fn warpgroups_have_the_bits_of_plain_sums() {
    if !available() {
        return;
    }
    for (shape, gap, bias, scaled, output) in [
        ((128, 128, 128), 0, NONE, false, Output::Sum),
        ((130, 257, 144), 16, INTEGERS, false, Output::Sum),
        ((300, 520, 400), 0, INTEGERS, true, Output::Byte(-3)),
        ((300, 520, 400), 112, FLOATS, true, Output::Float(DType::BF16)),
        ((129, 131, 16), 0, FLOATS, true, Output::Float(DType::F32)),
        ((256, 512, 1040), 0, NONE, true, Output::Float(DType::F16)),
        ((128, 130, 2064), 0, INTEGERS, true, Output::Byte(5)),
        ((200, 128, 3072), 0, NONE, false, Output::Sum),
    ] {
        for backwards in [false, true] {
            check(&Asked { shape, gap, bias, scaled, output, backwards });
        }
    }
}

#[test]
fn warpgroups_sum_as_many_columns_as_int32_holds() {
    if available() {
        let shape = (128, 128, 131_056);
        check(&Asked { shape, gap: 0, bias: NONE, scaled: false, output: Output::Sum, backwards: false });
    }
}

#[test]
fn other_products_and_devices_keep_the_kernel_for_all() {
    let product = Product {
        m: 128,
        n: 128,
        k: 16,
        x: 16,
        stride: 32,
        codes: 32,
        width: 8,
        row_scales: Scales::default(),
        column_scales: Scales::default(),
        bias: Bias::None,
        out: 0,
        output: Output::Sum,
    };
    let kernel = |product: Product, device: Device| Gemm::new(&product, device).unwrap().kernel();
    assert_eq!(kernel(product, HOPPER), Kernel::Warpgroups);
    for other in [
        Product { m: 127, ..product },
        Product { n: 127, ..product },
        Product { k: 24, ..product },
        Product { stride: 40, ..product },
        Product { x: 8, ..product },
        Product { codes: 4, ..product },
        Product { width: 4, ..product },
    ] {
        assert_eq!(kernel(other, HOPPER), Kernel::Tiles, "{other:?}");
    }
    for arch in ["sm_80", "sm_89", "sm_90", "sm_100a", "sm_103a", "sm_120a"] {
        let arch = arch.parse().unwrap();
        assert_eq!(kernel(product, Device { arch, ..HOPPER }), Kernel::Tiles, "{arch}");
    }
}
