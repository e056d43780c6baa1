//! The emulation itself: what it computes and what it catches.

use std::sync::Arc;

use octavo_cuda::{Argument, Call, Program};

use crate::emulator::{Memory, available, emulate, try_emulate};

const BASE: (&str, &str) = ("base.cu", include_str!("../../kernels/base.cu"));

const EXAMPLE: &[(&str, &str)] = &[
    BASE,
    (
        "example.cu",
        r#"
// Adds neighbours of each block through shared memory; `mistake` says which rule to break.
KERNEL(64) add(const u32 *x, u32 *out, i32 mistake) {
    SHARED_MEMORY(shared);
    u32 *own = (u32 *)shared, i = blockIdx.x * 64 + threadIdx.x;
    u32 v = x[mistake == 1 && i == 127 ? 128 : i];
    if (mistake == 2 && threadIdx.x == 3) return;
    if (mistake == 3) v = load16(x + 1).x;
    if (mistake == 4 && i == 0) out[-1] = 1;
    if (mistake == 5 && threadIdx.x == 5) shuffle(v, 1);
    own[threadIdx.x] = v;
    if (mistake != 6) sync_threads();
    out[i] = v + own[threadIdx.x ^ 1];
}
KERNEL(32) background(const u8 *x, u8 *out, i32 waits) {
    SHARED_MEMORY(shared);
    copy16(shared + 16 * threadIdx.x, x + 16 * threadIdx.x, threadIdx.x < 31 ? 16 : 5);
    commit_copies();
    if (waits) wait_copies<0>();
    sync_threads();
    store16(out + 16 * threadIdx.x, *(Quad *)(shared + 16 * (31 - threadIdx.x)));
}
// d[16][8] = a[16][32] b[8][32]^T in bytes, loaded by matrices and by hand.
KERNEL(32) product(const u8 *a, const u8 *b, i32 *d) {
    SHARED_MEMORY(shared);
    u32 lane = lane_id(), g = lane >> 2, t = lane & 3;
    *(Quad *)(shared + 16 * lane) = load16(a + 16 * lane);
    sync_warp();
    u32 r[4], words[2] = {*(const u32 *)(b + 32 * g + 4 * t), *(const u32 *)(b + 32 * g + 16 + 4 * t)};
    load_matrices(r, shared + 32 * (lane & 15) + 16 * (lane >> 4));
    i32 sums[4] = {};
    multiply_s8(sums, r, words);
    for (int i = 0; i < 4; i++) d[8 * (g + 8 * (i >> 1)) + 2 * t + (i & 1)] = sums[i];
}
KERNEL(1) halves(const float *x, u32 *out, i32 count) {
    for (int i = 0; i < count; i++) out[i] = to_f16(x[i]) | (u32)to_bf16(x[i]) << 16;
}
"#,
    ),
];

fn call(entry: &'static str, grid: u32, block: u32, shared: u32, arguments: Vec<Argument>) -> Call {
    let entries = &["add", "background", "product", "halves"];
    let program = Program { name: "example".into(), files: EXAMPLE, defines: vec![], entries };
    Call {
        program: Arc::new(program),
        entry,
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared,
        arguments,
        early: false,
    }
}

fn bytes<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| to(v)).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

#[test]
fn threads_share_memory_and_mistakes_are_caught() {
    if !available() {
        return;
    }
    let x: Vec<u32> = (0..128).map(|i| i * i).collect();
    let run = |mistake, backwards| {
        let mut memory = Memory::default();
        memory.backwards = backwards;
        let (from, to) = (memory.add(&bytes(&x, u32::to_le_bytes), 16), memory.add(&[0; 512], 0));
        let arguments = vec![Argument::Address(from), Argument::Address(to), Argument::I32(mistake)];
        try_emulate(&[call("add", 2, 64, 256, arguments)], &mut memory).map(|()| words(memory.bytes(to)))
    };
    let expected: Vec<u32> = (0..128).map(|i| x[i] + x[i ^ 1]).collect();
    assert_eq!(run(0, false).unwrap(), expected);
    assert_eq!(run(0, true).unwrap(), expected);
    for (mistake, words) in
        [(1, "AddressSanitizer"), (2, "barrier"), (3, "misaligned"), (4, "AddressSanitizer"), (5, "reach")]
    {
        let message = run(mistake, false).unwrap_err();
        assert!(message.contains(words), "{mistake}: {message}");
    }
}

#[test]
fn an_early_kernel_must_wait() {
    if !available() {
        return;
    }
    let mut memory = Memory::default();
    let out = memory.add(&[0; 4], 0);
    let arguments = vec![Argument::Address(out), Argument::Address(out), Argument::I32(0)];
    let early = Call { early: true, ..call("halves", 1, 1, 0, arguments) };
    let message = try_emulate(&[early], &mut memory).unwrap_err();
    assert!(message.contains("never waits"), "{message}");
}

#[test]
fn threads_without_a_barrier_between_them_race() {
    if !available() {
        return;
    }
    let run = |mistake| {
        let mut memory = Memory::default();
        memory.races = true;
        let (from, to) = (memory.add(&[7; 512], 0), memory.add(&[0; 512], 0));
        let arguments = vec![Argument::Address(from), Argument::Address(to), Argument::I32(mistake)];
        try_emulate(&[call("add", 2, 64, 256, arguments)], &mut memory).map(|()| words(memory.bytes(to)))
    };
    assert_eq!(run(0).unwrap(), [0x0e0e_0e0e; 128]);
    let message = run(6).unwrap_err();
    assert!(message.contains("data race") && message.contains("add"), "{message}");
}

#[test]
fn copies_arrive_when_they_are_waited_for() {
    if !available() {
        return;
    }
    let x: Vec<u8> = (0..512).map(|i| (i % 251) as u8).collect();
    let run = |waits| {
        let mut memory = Memory::default();
        let (from, to) = (memory.add(&x[..501], 0), memory.add(&[0; 512], 0));
        let arguments = vec![Argument::Address(from), Argument::Address(to), Argument::I32(waits)];
        emulate(&[call("background", 1, 32, 512, arguments)], &mut memory);
        memory.bytes(to).to_vec()
    };
    let filled: Vec<u8> = x[..501].iter().copied().chain([0; 11]).collect();
    let expected: Vec<u8> = filled.chunks(16).rev().flatten().copied().collect();
    assert_eq!(run(1), expected);
    assert_ne!(run(0), expected);
}

#[test]
fn matrices_lie_as_on_the_device() {
    if !available() {
        return;
    }
    let code = |i: usize| (i * 37 % 251) as u8;
    let (a, b): (Vec<u8>, Vec<u8>) = ((0..512).map(code).collect(), (0..256).map(|i| code(i + 99)).collect());
    let mut memory = Memory::default();
    let (x, y, d) = (memory.add(&a, 0), memory.add(&b, 0), memory.add(&[0; 512], 0));
    emulate(&[call("product", 1, 32, 512, [x, y, d].map(Argument::Address).to_vec())], &mut memory);
    for (i, sum) in words(memory.bytes(d)).into_iter().enumerate() {
        let products = (0..32).map(|k| i32::from(a[i / 8 * 32 + k] as i8) * i32::from(b[i % 8 * 32 + k] as i8));
        assert_eq!(sum as i32, products.sum::<i32>());
    }
    // Rows of 32 bytes begin in four places of eight.
    assert_eq!(memory.conflicts, 4 * 4);
}

#[test]
fn halves_round_to_even() {
    if !available() {
        return;
    }
    let mut state = 1u32;
    let bits = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    });
    let corners =
        [0x477f_efff, 0x477f_f000, 0x3380_0000, 0x3300_0000, 0x3300_0001, 0x387f_f000, 0x7f7f_ffff, 0x7f80_0000, 1];
    let x: Vec<f32> = bits.take(4000).chain(corners).map(f32::from_bits).filter(|v| !v.is_nan()).collect();
    let mut memory = Memory::default();
    let (from, to) = (memory.add(&bytes(&x, f32::to_le_bytes), 0), memory.add(&vec![0; 4 * x.len()], 0));
    let arguments = vec![Argument::Address(from), Argument::Address(to), Argument::I32(x.len() as i32)];
    emulate(&[call("halves", 1, 1, 0, arguments)], &mut memory);
    for (v, out) in x.iter().zip(words(memory.bytes(to))) {
        let expected =
            u32::from(half::f16::from_f32(*v).to_bits()) | u32::from(half::bf16::from_f32(*v).to_bits()) << 16;
        assert_eq!(out, expected, "{v}");
    }
}
