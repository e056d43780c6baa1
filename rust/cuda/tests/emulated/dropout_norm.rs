//! Drop-out, sum and norm against the processor's: the same mask, the bits of the stream, and the rest within a bound.

use half::{bf16, f16};
use octavo_core::dropout_norm::{Given, Gradients, Mask, Results, Settings, backward, forward};
use octavo_core::{DType, Values, ValuesMut};
use octavo_cuda::dropout_norm::{DropoutNorm, How, Rows};

use crate::emulator::{Memory, available, emulate};
use crate::linear::normal;

const SEED: u64 = 0x9abc_def0_1234_5678;
const EPSILON: f32 = 1e-6;

/// Numbers of a dtype, as bytes.
fn bytes(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
    }
}

fn wide(bytes: &[u8], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        DType::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        DType::BF16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
    }
}

/// Numbers as the processor takes them.
enum Held {
    Single(Vec<f32>),
    Halves(Vec<u16>, DType),
}

impl Held {
    fn new(bytes: &[u8], dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::Single(wide(bytes, dtype)),
            _ => Self::Halves(bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect(), dtype),
        }
    }
    fn read(&self) -> Values<'_> {
        match self {
            Self::Single(x) => Values::F32(x),
            Self::Halves(x, DType::F16) => Values::F16(x),
            Self::Halves(x, _) => Values::BF16(x),
        }
    }
    fn write(&mut self) -> ValuesMut<'_> {
        match self {
            Self::Single(x) => ValuesMut::F32(x),
            Self::Halves(x, DType::F16) => ValuesMut::F16(x),
            Self::Halves(x, _) => ValuesMut::BF16(x),
        }
    }
    fn wide(&self) -> Vec<f32> {
        match self {
            Self::Single(x) => x.clone(),
            Self::Halves(x, dtype) => wide(&x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>(), *dtype),
        }
    }
}

/// Rows, their length, dtypes of x, branch and stream, chance of a 0, whether there are gains and a scale.
type Case = (usize, usize, [DType; 3], f64, bool);

/// Largest difference relative to the largest number.
fn difference(found: &[f32], wanted: &[f32]) -> f32 {
    let largest = wanted.iter().fold(1e-6f32, |most, v| most.max(v.abs()));
    found.iter().zip(wanted).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

pub(crate) fn check((count, width, dtypes, chance, with_gain): Case, mut memory: Memory) {
    let what = format!("{count} x {width}, {dtypes:?}, {chance}, gains: {with_gain}");
    let [x_type, branch_type, type_of_stream] = dtypes;
    let all = count * width;
    let random = |seed, dtype| bytes(&normal(all, seed), dtype);
    let (x, branch) = (random(1, x_type), random(2, branch_type));
    let given = [random(3, type_of_stream), random(4, type_of_stream)];
    let gains = normal(width, 5);
    let gain = with_gain.then_some(&gains[..]);
    let factor = if with_gain { 0.75f32 } else { 1.0 };
    let weight = (1.0 / (1.0 - chance)) as f32;

    let settings = Settings { weight: weight * factor, mask: Mask::new(SEED, chance), epsilon: EPSILON };
    let empty = |dtype: DType| Held::new(&vec![0; all * dtype.bytes()], dtype);
    let (mut stream, mut normed, mut rates) = (empty(type_of_stream), empty(type_of_stream), vec![0.0; count]);
    let results = Results { stream: stream.write(), normed: normed.write(), rates: &mut rates };
    let (x_held, branch_held) = (Held::new(&x, x_type), Held::new(&branch, branch_type));
    forward(x_held.read(), branch_held.read(), gain, width, settings, results).unwrap();
    let (mut of_x, mut of_branch) = (empty(x_type), empty(branch_type));
    let mut of_gain = vec![0.0; gain.map_or(0, <[f32]>::len)];
    let slopes = Gradients { x: of_x.write(), branch: of_branch.write(), gain: &mut of_gain };
    let held = given.each_ref().map(|bytes| Held::new(bytes, type_of_stream));
    let read = Given { of_stream: held[0].read(), of_normed: held[1].read(), stream: stream.read(), rates: &rates };
    backward(read, gain, width, settings, slopes).unwrap();

    let rows = Rows { rows: count, width, x: x_type, branch: branch_type, stream: type_of_stream };
    let made = DropoutNorm::new(rows, 1).unwrap();
    let single = |values: &[f32]| bytes(values, DType::F32);
    let how = How {
        gain: gain.map_or(0, |gain| memory.add(&single(gain), 4)),
        scale: if with_gain { memory.add(&single(&[factor]), 4) } else { 0 },
        seed: if chance > 0.0 { memory.add(&SEED.to_le_bytes(), 8) } else { 0 },
        weight,
        chance,
        epsilon: EPSILON,
    };
    let room = |memory: &mut Memory, dtype: DType| memory.add(&vec![0xff; all * dtype.bytes()], 4);
    let (x_at, branch_at) = (memory.add(&x, 4), memory.add(&branch, 4));
    let [stream_at, normed_at] = [(); 2].map(|()| room(&mut memory, type_of_stream));
    let rates_at = memory.add(&vec![0xff; 4 * count], 0);
    let given_at = given.each_ref().map(|bytes| memory.add(bytes, 4));
    let (of_x_at, of_branch_at) = (room(&mut memory, x_type), room(&mut memory, branch_type));
    let parts_at = if with_gain { memory.add(&vec![0xff; 4 * made.parts() * width], 0) } else { 0 };
    let calls = [
        made.forward(x_at, branch_at, &how, [stream_at, normed_at, rates_at]).unwrap(),
        made.backward([given_at[0], given_at[1], stream_at, rates_at], &how, of_x_at, of_branch_at, parts_at).unwrap(),
    ];
    emulate(&calls, &mut memory);

    let found = |address, dtype| wide(memory.bytes(address), dtype);
    assert_eq!(found(stream_at, type_of_stream), stream.wide(), "stream: {what}");
    // One step of the dtype where a number falls to the other side.
    let near = |dtype| if dtype == DType::F32 { 2e-6 } else { 1e-2 };
    let by_rate = difference(&found(rates_at, DType::F32), &rates);
    assert!(by_rate < 1e-6, "rates differ by {by_rate}: {what}");
    for (name, address, dtype, wanted) in [
        ("normed", normed_at, type_of_stream, normed.wide()),
        ("gradient of x", of_x_at, x_type, of_x.wide()),
        ("gradient of branch", of_branch_at, branch_type, of_branch.wide()),
    ] {
        let found = found(address, dtype);
        let apart = difference(&found, &wanted);
        assert!(apart < near(dtype), "{name} differs by {apart}: {what}");
        if name == "gradient of branch" {
            assert!(found.iter().zip(&wanted).all(|(a, b)| (*a == 0.0) == (*b == 0.0)), "another mask: {what}");
        }
    }
    if with_gain {
        let mut sums = vec![0.0f32; width];
        let parts = found(parts_at, DType::F32);
        parts.chunks(width).for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v));
        let apart = difference(&sums, &of_gain);
        assert!(apart < 5e-6, "gradients of gains differ by {apart}: {what}");
    }
}

pub(crate) fn cases() -> Vec<Case> {
    use DType::{BF16, F16, F32};
    vec![
        (1, 1, [F32; 3], 0.5, true),
        (1, 768, [F32; 3], 0.1, false),
        (37, 63, [F32; 3], 0.3, true),
        (70, 130, [F32, BF16, F32], 0.0, true),
        (9, 1500, [BF16; 3], 0.9, true),
        (3, 65, [F16; 3], 0.999_999, false),
        (2, 8000, [F32; 3], 0.25, true),
    ]
}

#[test]
fn rows_are_those_of_the_processor() {
    if !available() {
        return;
    }
    for (i, case) in cases().into_iter().enumerate() {
        let mut memory = Memory::default();
        memory.backwards = i % 2 == 1;
        check(case, memory);
    }
}

#[test]
fn rows_that_no_kernel_takes_are_refused() {
    let rows = |rows, width| Rows { rows, width, x: DType::F32, branch: DType::F32, stream: DType::F32 };
    for (count, width) in [(0, 4), (4, 0), (1, 8_193), (usize::MAX, 2)] {
        assert!(DropoutNorm::new(rows(count, width), 132).is_err(), "{count} x {width}");
    }
    let made = DropoutNorm::new(rows(4, 8), 132).unwrap();
    let how = How { gain: 0, scale: 0, seed: 0, weight: 1.0, chance: 0.0, epsilon: 0.0 };
    assert!(made.forward(16, 16, &how, [16, 16, 16]).is_ok());
    for (x, how) in [(0, how), (2, how), (16, How { chance: 0.5, ..how }), (16, How { chance: 1.0, seed: 16, ..how })] {
        assert!(made.forward(x, 16, &how, [16, 16, 16]).is_err(), "{x} {how:?}");
    }
    assert!(made.backward([16; 4], &How { gain: 16, ..how }, 16, 16, 0).is_err());
}
