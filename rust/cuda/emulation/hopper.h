// The host's twin of the device half of kernels/hopper.cu, included in its place. hopper.cpp holds what computes.

#pragma once

#define MAP const TensorMap

namespace emulator {

// What a `TensorMap` holds here.
struct Matrix {
    const u8 *address;
    u64 rows, columns, pitch, box_rows, box_columns;
};

u32 shared_address(const void *p);
void init_barrier(u64 *at, u32 count);
void publish_barriers();
// Expects `bytes` more, then counts one arrival.
void arrive(u64 *at, u32 bytes);
void wait_barrier(u64 *at, u32 parity);
void copy_box(void *to, const TensorMap &map, u64 *barrier, i32 column, i32 row);
void keep_registers(u32 count);
void take_registers(u32 count);
void begin_products();
void multiply(i32 *d, u64 a, u64 b, bool add);
void commit_products();
void wait_products(int left);

template <> struct Taken<TensorMap> {
    static const TensorMap &from(const Value &v) {
        if (v.kind != 'm' || (u64)v.address % alignof(TensorMap)) fail("an argument is no tensor map");
        return *(const TensorMap *)v.address;
    }
};

} // namespace emulator

DEVICE u32 shared_address(const void *p) { return emulator::shared_address(p); }
DEVICE void init_barrier(u64 *barrier, u32 count) { emulator::init_barrier(barrier, count); }
DEVICE void publish_barriers() { emulator::publish_barriers(); }
DEVICE void arrive(u64 *barrier) { emulator::arrive(barrier, 0); }
DEVICE void arrive_expecting(u64 *barrier, u32 bytes) { emulator::arrive(barrier, bytes); }
DEVICE void wait_barrier(u64 *barrier, u32 parity) { emulator::wait_barrier(barrier, parity); }
DEVICE void copy_box(void *to, const TensorMap &map, u64 *barrier, i32 column, i32 row) {
    emulator::copy_box(to, map, barrier, column, row);
}
template <int count> void keep_registers() {
    static_assert(count % 8 == 0 && count >= 24 && count <= 256);
    emulator::keep_registers(count);
}
template <int count> void take_registers() {
    static_assert(count % 8 == 0 && count >= 24 && count <= 256);
    emulator::take_registers(count);
}
DEVICE u64 factor_of(const void *rows) {
    return (u64)(shared_address(rows) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
DEVICE void begin_products() { emulator::begin_products(); }
DEVICE void commit_products() { emulator::commit_products(); }
DEVICE void multiply_s8(i32 (&d)[128], u64 a, u64 b, bool add) { emulator::multiply(d, a, b, add); }
template <int left> void wait_products(i32 (&)[128]) { emulator::wait_products(left); }
