// What all kernels stand on: types, and every instruction that C++ has no word for, each in one small function.
//
// NVRTC sees the PTX below; on the host emulation/shim.h supplies a twin of each function that computes the same bits.
// There are no headers. Kernels are compiled without fast math and with --fmad=false: a product and a sum become one
// operation only where `fused` says so. Kernels are declared with KERNEL(threads) and take their shared memory from
// SHARED_MEMORY or SHARED; all else is ordinary C++.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

// Words that are loaded and stored together.
struct alignas(8) Pair {
    u32 x, y;
};
struct alignas(16) Quad {
    u32 x, y, z, w;
};

#ifndef __CUDACC_RTC__
#include "shim.h"
#else

#define DEVICE __device__ __forceinline__
// At most so many threads a block, and at least so many blocks an SM.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
// Dynamic shared memory; `call.shared` bytes.
#define SHARED_MEMORY(name) extern __shared__ __align__(128) u8 name[]
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]

// --- bits and floats ---

DEVICE u32 bits_of(float v) { return __float_as_uint(v); }
DEVICE float float_of(u32 v) { return __uint_as_float(v); }
DEVICE u64 bits_of(double v) { return (u64)__double_as_longlong(v); }
DEVICE double double_of(u64 v) { return __longlong_as_double((i64)v); }
// a * b + c, rounded once.
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float round_even(float v) { return rintf(v); }
DEVICE double round_even(double v) { return rint(v); }
// Rounded to even; saturates, and NaN is 0.
DEVICE i32 to_int(float v) { return __float2int_rn(v); }
DEVICE float smaller(float a, float b) { return fminf(a, b); }
DEVICE float larger(float a, float b) { return fmaxf(a, b); }
DEVICE u16 to_f16(float v) {
    u16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
    return r;
}
DEVICE float from_f16(u16 v) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
    return r;
}
// Rounded to even, `low` in the lower half.
DEVICE u32 to_bf16x2(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// The units' own approximations, some 2^-22 of the value beside it; what is below the smallest normal number is 0.
DEVICE float near_exp2(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
DEVICE float near_reciprocal(float v) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
DEVICE float near_reciprocal_root(float v) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
// Byte i of the result is the byte of (b, a) that nibble i of `selector` names: 0 is the lowest of a, 4 of b. 8 more, and it
// is eight times the sign bit of that byte.
DEVICE u32 bytes_of(u32 a, u32 b, u32 selector) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}
// The low word of (high, low) >> (n & 31).
DEVICE u32 funnel_right(u32 low, u32 high, u32 n) { return __funnelshift_r(low, high, n); }
DEVICE int leading_zeros(u32 v) { return __clz((int)v); }
DEVICE int count_ones(u32 v) { return __popc(v); }
// `v` stays in a register: where it is used the compiler may not compute it anew.
DEVICE u32 kept(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}
template <class T> DEVICE T *kept(T *p) {
    asm volatile("" : "+l"(p));
    return p;
}
// Sum of the products of four signed bytes, and c.
DEVICE i32 dot4(u32 a, u32 b, i32 c) {
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}
// A word's two bfloat16 each times one of b; exact where the product is. Before sm_90 there is only the fused form.
DEVICE u32 multiply_bf16x2(u32 a, u32 b) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
    return r;
}
DEVICE u32 subtract_bf16x2(u32 a, u32 b) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return r;
}

// --- threads ---

DEVICE u32 lane_id() { return threadIdx.x & 31; }
DEVICE void sync_threads() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
// Collectives of a warp take all its lanes.
DEVICE u32 ballot(bool v) { return __ballot_sync(0xffffffff, v); }
DEVICE u32 shuffle(u32 v, u32 lane) { return __shfl_sync(0xffffffff, v, lane); }
DEVICE float shuffle(float v, u32 lane) { return __shfl_sync(0xffffffff, v, lane); }
DEVICE u32 shuffle_xor(u32 v, u32 mask) { return __shfl_xor_sync(0xffffffff, v, mask); }
DEVICE i32 shuffle_xor(i32 v, u32 mask) { return __shfl_xor_sync(0xffffffff, v, mask); }
DEVICE float shuffle_xor(float v, u32 mask) { return __shfl_xor_sync(0xffffffff, v, mask); }
DEVICE double shuffle_xor(double v, u32 mask) { return __shfl_xor_sync(0xffffffff, v, mask); }
DEVICE u32 atomic_min(u32 *p, u32 v) { return atomicMin(p, v); }
DEVICE u64 atomic_min(u64 *p, u64 v) { return atomicMin(p, v); }
DEVICE u32 atomic_max(u32 *p, u32 v) { return atomicMax(p, v); }
DEVICE u32 atomic_add(u32 *p, u32 v) { return atomicAdd(p, v); }
// What a kernel of the same stream wrote before may be read from here on; its successor may begin.
DEVICE void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void release_successor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// --- global memory ---

DEVICE Quad load16(const void *p) {
    Quad r;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
    return r;
}
// For what is read once and by this kernel only.
DEVICE Quad stream16(const void *p) {
    Quad r;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
        : "l"(p));
    return r;
}
DEVICE Pair stream8(const void *p) {
    Pair r;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p));
    return r;
}
DEVICE u32 stream4(const void *p) {
    u32 r;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(r) : "l"(p));
    return r;
}
// The same in place, where `there`; else nothing changes. Without a branch, so that loops need no copies.
DEVICE void stream16(u32 *to, const void *p, bool there) {
    asm("{.reg .pred q; setp.ne.u32 q, %5, 0; @q ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];}"
        : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
        : "l"(p), "r"((u32)there));
}
DEVICE void stream8(u32 *to, const void *p, bool there) {
    asm("{.reg .pred q; setp.ne.u32 q, %3, 0; @q ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];}"
        : "+r"(to[0]), "+r"(to[1])
        : "l"(p), "r"((u32)there));
}
DEVICE void stream4(u32 *to, const void *p, bool there) {
    asm("{.reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.nc.L1::no_allocate.u32 %0, [%1];}" : "+r"(*to) : "l"(p), "r"((u32)there));
}
// Of what no kernel writes in the meantime, and neighbours read too.
DEVICE void constant2(u32 *to, const void *p, bool there) {
    asm("{.reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.nc.u16 %0, [%1];}" : "+r"(*to) : "l"(p), "r"((u32)there));
}
DEVICE void constant1(u32 *to, const void *p, bool there) {
    asm("{.reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.nc.u8 %0, [%1];}" : "+r"(*to) : "l"(p), "r"((u32)there));
}
DEVICE void store16(void *p, Quad v) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// For what will not be read again soon.
DEVICE void evict16(void *p, Quad v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE void store8(void *p, Pair v) { asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory"); }

// --- copies from global to shared memory, in the background ---

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
// `count` of 16 bytes, then zeros.
DEVICE void copy16(void *to, const void *from, u32 count) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(count) : "memory");
}
DEVICE void copy4(void *to, const void *from, u32 count) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(count) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `left` of this thread's groups are under way.
template <int left> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory"); }

// --- matrices of a warp ---

// Four matrices of 8 rows of 16 bytes; lane l names row l & 7 of matrix l >> 3 and gets word l & 3 of row l >> 2 of each.
DEVICE void load_matrices(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// The same of 16-bit numbers, transposed: lane l gets numbers l >> 2 of rows 2 (l & 3) and 2 (l & 3) + 1 of each.
DEVICE void load_matrices_transposed(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// d += a b for 16 rows of a, 8 columns of b and 32 bytes of k. With g = lane >> 2 and t = lane & 3: a[0] is row g and
// k = 4t.., a[1] row g + 8, a[2] and a[3] the same at k = 16 + 4t..; b[0] and b[1] are column g at k = 4t.. and 16 + 4t..;
// d[0] and d[1] are row g, columns 2t and 2t + 1, d[2] and d[3] row g + 8.
DEVICE void multiply_s8(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same with unsigned a.
DEVICE void multiply_u8(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Half as many k: a[0] row g, a[1] row g + 8, b column g, all at k = 4t...
DEVICE void multiply_s8(i32 (&d)[4], const u32 (&a)[2], u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}
DEVICE void multiply_u8(i32 (&d)[4], const u32 (&a)[2], u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}
// d += a b for 16 bfloat16 of k, two a word: a[0] row g, k = 2t..; a[1] row g + 8; a[2], a[3] the same at k = 8 + 2t..;
// b[0] and b[1] column g at k = 2t.. and 8 + 2t...
DEVICE void multiply_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void multiply_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

// --- 16-bit floats ---

// Rounds to even; NaN stays NaN, and what is beyond the range becomes infinite.
DEVICE u16 to_bf16(float v) {
    u32 b = bits_of(v);
    if ((b & 0x7fffffff) > 0x7f800000) return (u16)(b >> 16 | 0x40);
    return (u16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
DEVICE float from_bf16(u16 v) { return float_of((u32)v << 16); }
