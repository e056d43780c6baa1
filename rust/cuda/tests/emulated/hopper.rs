//! The emulation of what a Hopper does beside its threads: what it computes and what it catches.

use std::sync::Arc;

use octavo_cuda::{Argument, Call, Program, TensorMap};

use crate::emulator::{Memory, available, try_emulate};

const EXAMPLE: &[(&str, &str)] = &[
    ("base.cu", include_str!("../../kernels/base.cu")),
    ("hopper.cu", include_str!("../../kernels/hopper.cu")),
    (
        "example.cu",
        r#"
// out[64][256] = a[64][128 steps] b[256][128 steps]^T with two stages; `mistake` says which rule to break.
KERNEL(384, 1) multiply(MAP a, MAP b, i32 *out, i32 steps, i32 mistake) {
    SHARED_MEMORY(memory);
    u8 *stages = memory + (mistake == 1 ? 0 : (0u - shared_address(memory)) % 1024);
    u64 *full = (u64 *)(stages + 2 * 40960), *empty = full + 2;
    const u32 threads = 4;
    if (threadIdx.x == 0 && mistake != 2) {
        for (u32 i = 0; i < 2; i++) init_barrier(full + i, 1), init_barrier(empty + i, mistake == 3 ? threads + 1 : threads);
        if (mistake != 4) publish_barriers();
    }
    sync_threads();
    if (threadIdx.x >= 256) return;
    if (threadIdx.x >= 128) {
        if (mistake != 8) keep_registers<40>();
        if (threadIdx.x == 128)
            for (u32 i = 0; i < (u32)steps; i++) {
                u8 *stage = stages + i % 2 * 40960;
                if (mistake != 5) wait_barrier(empty + i % 2, i / 2 % 2 ^ 1);
                arrive_expecting(full + i % 2, mistake == 6 ? 40960 + 1 : 40960);
                copy_box(stage, a, full + i % 2, 128 * i, mistake == 7 ? 8 : 0);
                copy_box(stage + 8192, b, full + i % 2, 128 * i, 0);
            }
        return;
    }
    take_registers<240>();
    i32 d[128] = {};
    for (u32 i = 0; i < (u32)steps; i++) {
        u8 *stage = stages + i % 2 * 40960;
        u64 of_a = factor_of(stage), of_b = factor_of(stage + 8192);
        if (mistake != 9) wait_barrier(full + i % 2, i / 2 % 2);
        if (mistake != 10) begin_products();
        for (u32 k = 0; k < 4; k++) multiply_s8(d, of_a + 2 * k, mistake == 11 ? of_b + lane_id() / 31 : of_b + 2 * k, i + k > 0);
        commit_products();
        if (mistake != 12) wait_products<0>(d);
        if (lane_id() == 0) arrive(empty + i % 2);
        if (mistake == 13 && lane_id() == 1) arrive(empty + i % 2);
    }
    wait_products<0>(d);
    for (u32 i = 0; i < 128; i++) {
        u32 row = threadIdx.x / 32 * 16 + lane_id() / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane_id() % 4 * 2 + i % 2;
        out[256 * row + column] = d[i];
    }
}
"#,
    ),
];

/// The outputs of the example and those that it should have, or what it did wrong.
fn run(steps: usize, mistake: i32, backwards: bool) -> Result<(Vec<i32>, Vec<i32>), String> {
    let (rows, columns, k, pitch) = (50, 250, 128 * steps - 40, 128 * steps);
    let code = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
    let bytes: Vec<u8> = (0..256 * pitch).map(code).collect();
    let mut memory = Memory::default();
    memory.backwards = backwards;
    let (a, b, out) =
        (memory.add(&bytes[..rows * pitch], 0), memory.add(&bytes, 16), memory.add(&[0; 4 * 64 * 256], 0));
    let map = |address, rows: usize, box_rows| {
        let [rows, columns, pitch] = [rows, k, pitch].map(|side| side as u64);
        Argument::Map(TensorMap { address, rows, columns, pitch, box_rows })
    };
    let arguments = vec![
        map(a, rows, 64),
        map(b, columns, 256),
        Argument::Address(out),
        Argument::I32(steps as i32),
        Argument::I32(mistake),
    ];
    let program = Program { name: "hopper".into(), files: EXAMPLE, defines: vec![], entries: &["multiply"] };
    let (grid, block, shared) = ([1, 1, 1], [384, 1, 1], 2 * 40960 + 32 + 1024);
    let call = Call { program: Arc::new(program), entry: "multiply", grid, block, shared, arguments, early: false };
    try_emulate(&[call], &mut memory)?;
    let found = memory.bytes(out).as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
    let at = |row: usize, rows: usize, i: usize| if row < rows { i32::from(bytes[row * pitch + i] as i8) } else { 0 };
    let sum = |i: usize| (0..k).map(|c| at(i / 256, rows, c) * at(i % 256, columns, c)).sum();
    Ok((found, (0..64 * 256).map(sum).collect()))
}

#[test]
fn boxes_arrive_and_products_are_exact() {
    if !available() {
        return;
    }
    for (steps, backwards) in [(1, false), (5, false), (5, true)] {
        let (found, expected) = run(steps, 0, backwards).unwrap();
        assert!(found == expected, "{steps} steps, backwards {backwards}");
    }
}

#[test]
fn mistakes_with_barriers_copies_and_products_are_caught() {
    if !available() {
        return;
    }
    for (mistake, backwards, words) in [
        (1, false, "no multiple of 1024"),
        (2, false, "no barrier is here"),
        (3, false, "never comes"),
        (4, false, "may not see"),
        (5, true, "never comes"),
        (6, false, "never comes"),
        (8, false, "never comes"),
        (10, false, "nothing was begun"),
        (11, false, "different products"),
        (12, true, "changed while"),
        (13, false, "never comes"),
    ] {
        let message = run(5, mistake, backwards).err().unwrap_or_default();
        assert!(message.contains(words), "{mistake}: {message}");
    }
    // Nothing is wrong with the first of these but the rows; the second multiplies what is not there yet.
    for mistake in [7, 9] {
        assert!(run(1, mistake, false).map_or(true, |(found, expected)| found != expected), "{mistake}");
    }
}
