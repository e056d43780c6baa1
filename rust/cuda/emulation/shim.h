// The host's twin of the device half of kernels/base.cu, included in its place.
//
// A kernel's threads are fibres of one OS thread, so its code runs as it is; what threads do together goes through
// `emulator::together`, where the lanes of a warp meet. emulator.cpp holds the fibres.

#pragma once

#define DEVICE static inline
#define __global__
#define __device__
#define __restrict__ __restrict
#define KERNEL(...) static void
#define SHARED_MEMORY(name) u8 *const name = emulator::dynamic_shared()
#define SHARED(type, name, count) \
    static type name##_store[count]; \
    static u64 name##_block; \
    type *const name = (type *)emulator::static_shared(name##_store, sizeof name##_store, &name##_block)

namespace emulator {

struct Index {
    u32 x, y, z;
};
// What a thread knows of itself.
struct Place {
    Index thread, block, block_size, grid_size;
    u32 lane;
};
extern const Place *place;

u8 *dynamic_shared();
void *static_shared(void *store, u64 bytes, u64 *block);
// Waits until all lanes of the warp are here with the same `act`; one of them then runs it on the `own` of all, by lane,
// with null where there is no lane.
void together(void (*act)(void **own), void *own);
void barrier();
void sync_warp();
void wait_for_predecessor();
// The copy itself is made by the wait that may rely on it.
void copy(void *to, const void *from, u32 bytes, u32 count);
void commit();
void wait(int left);
// Ends the process and says where and why.
[[noreturn]] void fail(const char *what);
void count_conflicts(u32 count);

template <class T> T *aligned(const void *p, u64 bytes) {
    if ((u64)p % bytes) fail("misaligned access");
    return (T *)p;
}
template <class To, class From> To cast(From v) {
    static_assert(sizeof(To) == sizeof(From));
    To r;
    __builtin_memcpy(&r, &v, sizeof r);
    return r;
}

template <class T> struct Exchange {
    T value;
    u32 lane;
    T result;
    static void act(void **own) {
        for (u32 i = 0; i < 32; i++) {
            if (!own[i]) continue;
            Exchange *to = (Exchange *)own[i], *from = (Exchange *)own[to->lane & 31];
            to->result = from ? from->value : to->value;
        }
    }
};

template <class T> T exchange(T v, u32 lane) {
    Exchange<T> own{v, lane, v};
    together(Exchange<T>::act, &own);
    return own.result;
}
// Blocks and threads take turns, so an atomic operation is an ordinary one, which nobody takes for a race.
template <class T, class Act> __attribute__((noinline, no_sanitize("thread"))) T replace(T *p, Act act) {
    T old = *aligned<T>(p, sizeof(T));
    *p = act(old);
    return old;
}

struct Matrices {
    u32 *r;
    const u8 *row;
    // The word of a lane, of eight rows.
    typedef u32 Word(const u8 *const (&rows)[8], int lane);
    static Word straight, transposed;
    template <Word word> static void act(void **own) { each(own, word); }
    static void each(void **own, Word *word);
};
// The factors of a product of matrices; `Layout` says what each register holds.
struct Product {
    void *d;
    const u32 *a, *b;
};
template <bool is_signed, int words> void multiply_bytes(void **own) {
    i32 a[16][16 * words], b[16 * words][8];
    for (int lane = 0; lane < 32; lane++) {
        Product *p = (Product *)own[lane];
        if (!p) fail("a product of matrices without all lanes of the warp");
        int g = lane >> 2, t = lane & 3;
        for (int half = 0; half < words; half++)
            for (int i = 0; i < 4; i++) {
                int k = 16 * half + 4 * t + i;
                for (int low = 0; low < 2; low++) {
                    u32 byte = p->a[2 * half + low] >> 8 * i & 255;
                    a[g + 8 * low][k] = is_signed ? (i32)(i8)byte : (i32)byte;
                }
                b[k][g] = (i8)(p->b[half] >> 8 * i);
            }
    }
    for (int lane = 0; lane < 32; lane++) {
        i32 *d = (i32 *)((Product *)own[lane])->d;
        for (int i = 0; i < 4; i++) {
            int row = (lane >> 2) + 8 * (i >> 1), column = 2 * (lane & 3) + (i & 1);
            u32 sum = (u32)d[i];
            for (int k = 0; k < 16 * words; k++) sum += (u32)(a[row][k] * b[k][column]);
            d[i] = (i32)sum;
        }
    }
}
// Sums are as exact as float64; the device's are not quite, in an order of its own.
template <float (*widen)(u16)> void multiply_halves(void **own) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        Product *p = (Product *)own[lane];
        if (!p) fail("a product of matrices without all lanes of the warp");
        int g = lane >> 2, t = lane & 3;
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 2; i++) {
                int k = 8 * half + 2 * t + i;
                for (int low = 0; low < 2; low++) a[g + 8 * low][k] = widen((u16)(p->a[2 * half + low] >> 16 * i));
                b[k][g] = widen((u16)(p->b[half] >> 16 * i));
            }
    }
    for (int lane = 0; lane < 32; lane++) {
        float *d = (float *)((Product *)own[lane])->d;
        for (int i = 0; i < 4; i++) {
            int row = (lane >> 2) + 8 * (i >> 1), column = 2 * (lane & 3) + (i & 1);
            double sum = d[i];
            for (int k = 0; k < 16; k++) sum += (double)a[row][k] * (double)b[k][column];
            d[i] = (float)sum;
        }
    }
}
static inline void multiply(void (*act)(void **), void *d, const u32 *a, const u32 *b) {
    Product own{d, a, b};
    together(act, &own);
}

} // namespace emulator

#define threadIdx (emulator::place->thread)
#define blockIdx (emulator::place->block)
#define blockDim (emulator::place->block_size)
#define gridDim (emulator::place->grid_size)

// --- bits and floats ---

DEVICE u32 bits_of(float v) { return emulator::cast<u32>(v); }
DEVICE float float_of(u32 v) { return emulator::cast<float>(v); }
DEVICE u64 bits_of(double v) { return emulator::cast<u64>(v); }
DEVICE double double_of(u64 v) { return emulator::cast<double>(v); }
DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float round_even(float v) { return __builtin_rintf(v); }
DEVICE double round_even(double v) { return __builtin_rint(v); }
DEVICE i32 to_int(float v) {
    if (v != v) return 0;
    float r = __builtin_rintf(v);
    return r >= 2147483648.f ? 0x7fffffff : r < -2147483648.f ? (i32)0x80000000 : (i32)r;
}
DEVICE float smaller(float a, float b) { return __builtin_fminf(a, b); }
DEVICE float larger(float a, float b) { return __builtin_fmaxf(a, b); }
DEVICE u16 to_f16(float v) {
    u32 b = bits_of(v), sign = b >> 16 & 0x8000, magnitude = b & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7fff;
    if (magnitude >= 0x477ff000) return (u16)(sign | 0x7c00);
    if (magnitude < 0x38800000) { // below 2^-14: steps of 2^-24
        float steps = __builtin_rintf(float_of(magnitude) * 16777216.f);
        return (u16)(sign | (u32)steps);
    }
    return (u16)(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
}
DEVICE float from_f16(u16 v) {
    u32 exponent = v >> 10 & 31, mantissa = v & 0x3ff;
    float r = exponent == 31 ? float_of(0x7f800000 | mantissa << 13)
            : exponent       ? float_of((exponent + 112) << 23 | mantissa << 13)
                             : (float)mantissa / 16777216.f;
    return v & 0x8000 ? -r : r;
}
static inline u16 to_bf16(float v);
static inline float from_bf16(u16 v);
DEVICE u32 to_bf16x2(float low, float high) { return to_bf16(low) | (u32)to_bf16(high) << 16; }
DEVICE float near_exp2(float v) { return __builtin_exp2f(v); }
DEVICE float near_reciprocal(float v) { return 1 / v; }
DEVICE float near_reciprocal_root(float v) { return 1 / __builtin_sqrtf(v); }
DEVICE u32 bytes_of(u32 a, u32 b, u32 selector) {
    u64 all = (u64)b << 32 | a;
    u32 r = 0;
    for (int i = 0; i < 4; i++) {
        u32 byte = (u32)(all >> 8 * (selector >> 4 * i & 7)) & 255;
        r |= (selector >> 4 * i & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return r;
}
DEVICE u32 funnel_right(u32 low, u32 high, u32 n) { return (u32)(((u64)high << 32 | low) >> (n & 31)); }
DEVICE int leading_zeros(u32 v) { return v ? __builtin_clz(v) : 32; }
DEVICE int count_ones(u32 v) { return __builtin_popcount(v); }
DEVICE u32 kept(u32 v) { return v; }
template <class T> T *kept(T *p) { return p; }
DEVICE i32 dot4(u32 a, u32 b, i32 c) {
    for (int i = 0; i < 4; i++) c = (i32)((u32)c + (u32)((i8)(a >> 8 * i) * (i8)(b >> 8 * i)));
    return c;
}
DEVICE u32 multiply_bf16x2(u32 a, u32 b) {
    return to_bf16(from_bf16((u16)a) * from_bf16((u16)b)) | (u32)to_bf16(from_bf16(a >> 16) * from_bf16(b >> 16)) << 16;
}
DEVICE u32 subtract_bf16x2(u32 a, u32 b) {
    return to_bf16(from_bf16((u16)a) - from_bf16((u16)b)) | (u32)to_bf16(from_bf16(a >> 16) - from_bf16(b >> 16)) << 16;
}

// --- threads ---

DEVICE u32 lane_id() { return emulator::place->lane; }
DEVICE void sync_threads() { emulator::barrier(); }
DEVICE void sync_warp() { emulator::sync_warp(); }
DEVICE u32 ballot(bool v) {
    struct Own {
        bool v;
        u32 votes;
    } own{v, 0};
    emulator::together(
        [](void **own) {
            u32 votes = 0;
            for (u32 i = 0; i < 32; i++) votes |= (u32)(own[i] && ((Own *)own[i])->v) << i;
            for (u32 i = 0; i < 32; i++)
                if (own[i]) ((Own *)own[i])->votes = votes;
        },
        &own);
    return own.votes;
}
DEVICE u32 shuffle(u32 v, u32 lane) { return emulator::exchange(v, lane); }
DEVICE float shuffle(float v, u32 lane) { return emulator::exchange(v, lane); }
DEVICE u32 shuffle_xor(u32 v, u32 mask) { return emulator::exchange(v, lane_id() ^ mask); }
DEVICE i32 shuffle_xor(i32 v, u32 mask) { return emulator::exchange(v, lane_id() ^ mask); }
DEVICE float shuffle_xor(float v, u32 mask) { return emulator::exchange(v, lane_id() ^ mask); }
DEVICE double shuffle_xor(double v, u32 mask) { return emulator::exchange(v, lane_id() ^ mask); }
DEVICE u32 atomic_min(u32 *p, u32 v) { return emulator::replace(p, [=](u32 old) { return v < old ? v : old; }); }
DEVICE u64 atomic_min(u64 *p, u64 v) { return emulator::replace(p, [=](u64 old) { return v < old ? v : old; }); }
DEVICE u32 atomic_max(u32 *p, u32 v) { return emulator::replace(p, [=](u32 old) { return v > old ? v : old; }); }
DEVICE u32 atomic_add(u32 *p, u32 v) { return emulator::replace(p, [=](u32 old) { return old + v; }); }
DEVICE void wait_for_predecessor() { emulator::wait_for_predecessor(); }
DEVICE void release_successor() {}

// --- global memory ---

DEVICE Quad load16(const void *p) { return *emulator::aligned<Quad>(p, 16); }
DEVICE Quad stream16(const void *p) { return *emulator::aligned<Quad>(p, 16); }
DEVICE Pair stream8(const void *p) { return *emulator::aligned<Pair>(p, 8); }
DEVICE u32 stream4(const void *p) { return *emulator::aligned<u32>(p, 4); }
DEVICE void stream16(u32 *to, const void *p, bool there) {
    if (!there) return;
    Quad v = stream16(p);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
DEVICE void stream8(u32 *to, const void *p, bool there) {
    if (!there) return;
    Pair v = stream8(p);
    to[0] = v.x, to[1] = v.y;
}
DEVICE void stream4(u32 *to, const void *p, bool there) {
    if (there) *to = stream4(p);
}
DEVICE void constant2(u32 *to, const void *p, bool there) {
    if (there) *to = *emulator::aligned<u16>(p, 2);
}
DEVICE void constant1(u32 *to, const void *p, bool there) {
    if (there) *to = *(const u8 *)p;
}
DEVICE void store16(void *p, Quad v) { *emulator::aligned<Quad>(p, 16) = v; }
DEVICE void evict16(void *p, Quad v) { *emulator::aligned<Quad>(p, 16) = v; }
DEVICE void store8(void *p, Pair v) { *emulator::aligned<Pair>(p, 8) = v; }

// --- copies from global to shared memory ---

DEVICE void copy16(void *to, const void *from, u32 count) { emulator::copy(to, from, 16, count); }
DEVICE void copy4(void *to, const void *from, u32 count) { emulator::copy(to, from, 4, count); }
DEVICE void commit_copies() { emulator::commit(); }
template <int left> void wait_copies() { emulator::wait(left); }

// --- matrices of a warp ---

template <emulator::Matrices::Word word> void load_any_matrices(u32 (&r)[4], const void *row) {
    for (int i = 0; i < 16; i += 8) (void)*((const volatile u64 *)row + i / 8); // a race is this lane's
    emulator::Matrices own{r, emulator::aligned<const u8>(row, 16)};
    emulator::together(emulator::Matrices::act<word>, &own);
}
DEVICE void load_matrices(u32 (&r)[4], const void *row) { load_any_matrices<emulator::Matrices::straight>(r, row); }
DEVICE void load_matrices_transposed(u32 (&r)[4], const void *row) { load_any_matrices<emulator::Matrices::transposed>(r, row); }
DEVICE void multiply_s8(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulator::multiply(emulator::multiply_bytes<true, 2>, d, a, b);
}
DEVICE void multiply_u8(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulator::multiply(emulator::multiply_bytes<false, 2>, d, a, b);
}
DEVICE void multiply_s8(i32 (&d)[4], const u32 (&a)[2], u32 b) { emulator::multiply(emulator::multiply_bytes<true, 1>, d, a, &b); }
DEVICE void multiply_u8(i32 (&d)[4], const u32 (&a)[2], u32 b) { emulator::multiply(emulator::multiply_bytes<false, 1>, d, a, &b); }
DEVICE void multiply_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulator::multiply(emulator::multiply_halves<from_bf16>, d, a, b);
}
DEVICE void multiply_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulator::multiply(emulator::multiply_halves<from_f16>, d, a, b);
}

// --- entries ---

namespace emulator {

struct Value {
    u8 kind; // 'a' address, 'm' address of a tensor map, 'i' int, 'l' long long, 'f' float
    union {
        void *address;
        i32 i;
        i64 l;
        float f;
    };
};
template <class T> struct Taken;
template <class T> struct Taken<T *> {
    static T *from(const Value &v) { return v.kind == 'a' ? (T *)v.address : (fail("an argument is no address"), nullptr); }
};
template <> struct Taken<i32> {
    static i32 from(const Value &v) { return v.kind == 'i' ? v.i : (fail("an argument is no int"), 0); }
};
template <> struct Taken<i64> {
    static i64 from(const Value &v) { return v.kind == 'l' ? v.l : (fail("an argument is no long long"), 0); }
};
template <> struct Taken<float> {
    static float from(const Value &v) { return v.kind == 'f' ? v.f : (fail("an argument is no float"), 0.f); }
};
template <int... i> struct Places {};
template <int n, int... i> struct UpTo : UpTo<n - 1, n - 1, i...> {};
template <int... i> struct UpTo<0, i...> {
    typedef Places<i...> Type;
};
template <class... A, int... i> void call(void (*kernel)(A...), const Value *values, Places<i...>) {
    kernel(Taken<A>::from(values[i])...);
}
template <class... A> void enter(void (*kernel)(A...), const Value *values, int count) {
    if (count != sizeof...(A)) fail("the kernel takes another number of arguments");
    call(kernel, values, typename UpTo<sizeof...(A)>::Type());
}

} // namespace emulator

// What follows a program's source: how each of its entries is called.
#define ENTRY(name) \
    extern "C" void octavo_##name(const emulator::Value *values, int count) { emulator::enter(name, values, count); }
