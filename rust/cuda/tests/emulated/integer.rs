//! Products in integers against octavo-core's, bit for bit.

use octavo_core::linear::{self, Matrix};
use octavo_core::{DType, Format, Layout, Options, Packed, PackedMut, Sizes, Values, ValuesMut, codec};
use octavo_cuda::arch::Arch;
use octavo_cuda::gemm::{Bias, Gemm, Kernel, Output, Product, Scales};
use octavo_cuda::linear::{Device, Integer, Numbers};

use crate::emulator::{Memory, available, emulate};
use crate::linear::{normal, rounded};

/// Small devices, of any architecture and a Hopper.
pub(crate) const DEVICE: Device = Device { multiprocessors: 4, arch: Arch { capability: 80, specific: false } };
pub(crate) const HOPPER: Device = Device { multiprocessors: 4, arch: Arch::native(90) };

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Added {
    Nothing,
    Floats,
    Integers,
}

pub(crate) struct Asked {
    pub(crate) format: &'static str,
    pub(crate) input: &'static str,
    pub(crate) shape: (usize, usize, usize),
    pub(crate) dtype: DType,
    pub(crate) added: Added,
    pub(crate) given: bool,
}

fn le<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| to(v)).collect()
}

/// Checks one product on a device, aligned or not, in a memory of this kind.
pub(crate) fn check(asked: &Asked, misaligned: bool, mut memory: Memory, device: Device) -> Kernel {
    let (m, n, k) = asked.shape;
    let (format, input) = (Format::parse(asked.format).unwrap(), Format::parse(asked.input).unwrap());
    let layout = Layout::new(&[n, k], -1, format).unwrap();
    let sizes = Sizes::new(format, &layout).unwrap();
    let (mut codes, mut scales) = (vec![0; sizes.codes], vec![0; sizes.scales]);
    let to = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut [], levels: &mut [] };
    codec::encode(Values::F32(&normal(n * k, 3)), layout, format, &Options::default(), to).unwrap();

    let (x, x_bytes) = rounded(&normal(m * k, 5), asked.dtype);
    let halves: Vec<u16> = x_bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
    let values = match asked.dtype {
        DType::F32 => Values::F32(&x),
        DType::F16 => Values::F16(&halves),
        DType::BF16 => Values::BF16(&halves),
    };
    let count = if asked.input.contains("channel") { m } else { 1 };
    let given: Vec<f32> = (0..count).map(|i| 0.011 + 0.003 * i as f32).collect();
    let floats = normal(n, 11);
    let integers: Vec<i32> = floats.iter().map(|v| (v * 1e4) as i32).collect();
    let matrix = Matrix {
        format,
        packed: Packed { codes: &codes, scales: &scales, zeros: &[], levels: &[] },
        rows: n,
        columns: k,
    };
    let bias = match asked.added {
        Added::Nothing => linear::Bias::None,
        Added::Floats => linear::Bias::Float(Values::F32(&floats)),
        Added::Integers => linear::Bias::Integer(&integers),
    };
    let (mut single, mut half) = (vec![0.0f32; m * n], vec![0u16; m * n]);
    let out = match asked.dtype {
        DType::F32 => ValuesMut::F32(&mut single),
        DType::F16 => ValuesMut::F16(&mut half),
        DType::BF16 => ValuesMut::BF16(&mut half),
    };
    linear::multiply_integer(values, m, input, asked.given.then_some(&given[..]), &matrix, bias, out).unwrap();
    let expected = if asked.dtype == DType::F32 { le(&single, f32::to_le_bytes) } else { le(&half, u16::to_le_bytes) };

    let mut at = |bytes: &[u8], size: u32| memory.add(bytes, if misaligned { size } else { 0 });
    let size = asked.dtype.bytes() as u32;
    let integer = Integer {
        format,
        input,
        m,
        n,
        k,
        x: Numbers { address: at(&x_bytes, size), dtype: asked.dtype },
        codes: at(&codes, 1),
        scales: at(&scales, 4),
        input_scales: if asked.given { at(&le(&given, f32::to_le_bytes), 4) } else { 0 },
        bias: match asked.added {
            Added::Nothing => Bias::None,
            Added::Floats => Bias::Float(at(&le(&floats, f32::to_le_bytes), 4), DType::F32),
            Added::Integers => Bias::Integer(at(&le(&integers, i32::to_le_bytes), 4)),
        },
        out: at(&vec![0xff; expected.len()], size),
    };
    let scratch = memory.add(&vec![0xff; integer.plan(0, device).unwrap().scratch()], 0);
    let plan = integer.plan(scratch, device).unwrap();
    emulate(&integer.calls(&plan).unwrap(), &mut memory);
    assert!(
        memory.bytes(integer.out) == expected,
        "{} x {} {:?} {}, misaligned {misaligned}",
        asked.input,
        asked.format,
        asked.shape,
        asked.dtype.name()
    );
    assert_eq!(memory.conflicts, 0, "rows of matrices share banks");
    plan.kernel()
}

#[test]
fn integer_products_have_the_processors_bits() {
    if !available() {
        return;
    }
    use Added::{Floats, Integers, Nothing};
    for (i, (format, input, shape, added, given)) in [
        ("int8:channel", "int8", (1, 33, 144), Floats, false),
        ("int8:tensor", "int8:channel", (16, 17, 1155), Integers, false),
        ("int4:channel", "int8", (3, 20, 64), Nothing, true),
        ("int3:channel", "int4:channel", (9, 16, 131), Floats, true),
        ("int8:channel", "int8:channel", (17, 33, 144), Floats, false),
        ("int8:channel", "int8", (130, 131, 77), Integers, false),
        ("int4:tensor", "int8", (33, 9, 100), Nothing, false),
        ("int5:channel", "int7", (20, 40, 64), Floats, true),
        ("int8:channel", "int8", (18, 16, 1028), Nothing, false),
        ("int2:channel", "int2", (2, 5, 1), Floats, false),
    ]
    .into_iter()
    .enumerate()
    {
        let dtype = [DType::F32, DType::BF16, DType::F16][i % 3];
        check(&Asked { format, input, shape, dtype, added, given }, i % 4 == 3, Memory::default(), DEVICE);
    }
}

#[test]
fn large_products_on_hopper_have_the_processors_bits() {
    if !available() {
        return;
    }
    use Added::{Floats, Integers, Nothing};
    for (format, input, shape, dtype, added) in [
        ("int8:channel", "int8:channel", (130, 257, 144), DType::BF16, Floats),
        ("int8:tensor", "int8", (128, 130, 272), DType::F32, Integers),
        ("int8:channel", "int8", (129, 128, 64), DType::F16, Nothing),
    ] {
        let kernel =
            check(&Asked { format, input, shape, dtype, added, given: false }, false, Memory::default(), HOPPER);
        assert_eq!(kernel, Kernel::Warpgroups);
    }
}

#[test]
fn sums_and_requantized_bytes_are_exact() {
    if !available() {
        return;
    }
    // Every length of a row that a copy can have, and addresses that allow only bytes.
    for (m, n, k, offset) in [(17, 33, 144, 0), (5, 9, 20, 4), (40, 130, 67, 1), (3, 3, 16, 0), (129, 5, 16, 4)] {
        let bytes =
            |count: usize, seed: u64| -> Vec<i8> { normal(count, seed).iter().map(|v| (v * 60.0) as i8).collect() };
        let (x, w) = (bytes(m * k, 1), bytes(n * k, 2));
        let bias: Vec<i32> = (0..n as i32).map(|i| i * 997 - 5000).collect();
        let mut scales: Vec<f32> = (0..n).map(|i| 1e-4 * (1.0 + i as f32)).collect();
        scales[n - 1] = f32::NAN; // 0 as a byte
        let sum = |i: usize| -> i32 {
            let products = (0..k).map(|c| i32::from(x[i / n * k + c]) * i32::from(w[i % n * k + c]));
            products.sum::<i32>() + bias[i % n]
        };
        let to_bytes = |v: &[i8]| v.iter().map(|v| v.cast_unsigned()).collect::<Vec<u8>>();
        for output in [Output::Sum, Output::Byte(-3)] {
            let size = if output == Output::Sum { 4 } else { 1 };
            let mut memory = Memory::default();
            let product = Product {
                m,
                n,
                k,
                x: memory.add(&to_bytes(&x), offset),
                stride: k,
                codes: memory.add(&to_bytes(&w), offset),
                width: 8,
                row_scales: Scales::default(),
                column_scales: Scales { address: memory.add(&le(&scales, f32::to_le_bytes), 4), each: true },
                bias: Bias::Integer(memory.add(&le(&bias, i32::to_le_bytes), 4)),
                out: memory.add(&vec![0x55; m * n * size], 4),
                output,
            };
            let gemm = Gemm::new(&product, DEVICE).unwrap();
            let scratch = memory.add(&vec![0xff; gemm.scratch(&product)], 0);
            emulate(&gemm.calls(&product, scratch).unwrap(), &mut memory);
            let expected: Vec<u8> = (0..m * n)
                .flat_map(|i| match output {
                    Output::Sum => sum(i).to_le_bytes().to_vec(),
                    _ => {
                        let rounded = (sum(i) as f32 * scales[i % n]).round_ties_even() - 3.0;
                        vec![(rounded.clamp(-128.0, 127.0) as i8).cast_unsigned()]
                    }
                })
                .collect();
            assert!(memory.bytes(product.out) == expected, "{m} x {n} x {k}, offset {offset}, {output:?}");
        }
    }
}

#[test]
fn sums_beyond_int32_are_refused() {
    let product = Product {
        m: 1,
        n: 1,
        k: 131_072,
        x: 0,
        stride: 131_072,
        codes: 0,
        width: 8,
        row_scales: Scales::default(),
        column_scales: Scales::default(),
        bias: Bias::None,
        out: 0,
        output: Output::Sum,
    };
    let error = Gemm::new(&product, DEVICE).unwrap_err().to_string();
    assert!(error.contains("131071"), "{error}");
}
