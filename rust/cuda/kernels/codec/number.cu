// Numbers of a format: what codes stand for. Twin of octavo-core's codec::grid.
//
// Macros (rust/cuda/src/codec/macros.rs writes them from octavo-core's description of the format):
// DTYPE 0 float32, 1 float16, 2 bfloat16; WIDTH bits of a code; GRID one of the kinds below; LOW, HIGH of integers;
// MANTISSA, EMIN, TOP (index of the largest magnitude), SPECIALS 0 none, 1 NaN, 2 IEEE, EXPLICIT_ONE of floats;
// BOOK of code books; LEVELS of binary; STEP kind of scale; SATURATES, from which scale code on a value may lie beyond
// the output's range (0 always, 256 never).

#define TWOS 0
#define SIGNED_MAGNITUDE 1
#define OFFSET 2
#define FLOAT 3
#define CODE_BOOK 4
#define SIGNED_LEVELS 5
#define AFFINE 6

#define STEP_NONE 0
#define STEP_F32 1
#define STEP_F16 2
#define STEP_E8M0 3
#define STEP_E4M3 4
#define STEP_FRACTION 5
#define STEP_NESTED 6
// The step is a power of two.
#define POWER (STEP == STEP_NONE || STEP == STEP_E8M0 || STEP == STEP_FRACTION)

#ifndef SPECIALS
#define SPECIALS 0
#endif
#define MASK (0xffffffffu >> (32 - WIDTH))
#define SIGN (1u << (WIDTH - 1))
#define INFINITE 0x7f800000u
#define LARGEST_F32 0x7f7fffffu
// Integers that float32 does not hold.
#define WIDE (GRID <= OFFSET && WIDTH > 24)
// The branch for what is rare.
#define RARE(condition) __builtin_expect(condition, 0)
// The exponent field fits a float32's, and so does every number.
#define PLAIN_FLOAT (GRID == FLOAT && !EXPLICIT_ONE && WIDTH - 1 - MANTISSA < 8 && EMIN >= -126 && EMIN <= 1)

#if DTYPE == 0
typedef u32 Word;
#define LARGEST float_of(LARGEST_F32)
#else
typedef u16 Word;
#define LARGEST (DTYPE == 1 ? 65504.0f : float_of(0x7f7f0000))
#endif

// Numbers that float32 rounds to by itself, with a power of two for them added and taken off again.
#define NARROW_FLOAT (GRID == FLOAT && !EXPLICIT_ONE && MANTISSA > 0 && WIDTH - 1 - MANTISSA < 7 && EMIN >= -62 && EMIN <= 1)

// A group's scale, ready for arithmetic; what a format does not use costs nothing.
struct Scale {
    float step;        // of scales that are no powers of two, and E8M0
    float factors[2];  // 2^exponent
    float inverse[3];  // 2^-exponent, or about 1 / step in the first
    i32 exponent, zero;
    bool exact;        // `inverse` may be used
    float offset;
    float levels[4];
#if GRID == SIGNED_LEVELS
    float sums[1 << LEVELS];
    u32 codes[1 << LEVELS];
#endif
};

// 2^n, n in -149..127.
DEVICE float power(i32 n) { return float_of(n >= -126 ? (u32)(n + 127) << 23 : 1u << (n + 149)); }
DEVICE i32 between(i32 v, i32 low, i32 high) { return v < low ? low : v > high ? high : v; }
DEVICE bool is_nan(float v) { return v != v; }
DEVICE u32 magnitude(float v) { return bits_of(v) & 0x7fffffff; }
// Within -m..m; NaN stays.
DEVICE float bound(float v, float m) {
#ifdef __CUDACC_RTC__
    asm("min.NaN.f32 %0, %0, %1;\n\tmax.NaN.f32 %0, %0, %2;" : "+f"(v) : "f"(m), "f"(-m));
    return v;
#else
    return v > m ? m : v < -m ? -m : v;
#endif
}
// Two values as 16-bit floats, each rounded to even.
DEVICE u32 pair(float low, float high) {
#ifdef __CUDACC_RTC__
    u32 r;
#if DTYPE == 1
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#endif
    return r;
#else
    return DTYPE == 1 ? to_f16(low) | (u32)to_f16(high) << 16 : to_bf16(low) | (u32)to_bf16(high) << 16;
#endif
}
DEVICE float widen(Word w) {
#if DTYPE == 0
    return float_of(w);
#else
    return DTYPE == 1 ? from_f16(w) : from_bf16(w);
#endif
}
// For values that were saturated.
DEVICE Word narrow(float v) {
#if DTYPE == 0
    return bits_of(v);
#else
    return DTYPE == 1 ? to_f16(v) : to_bf16(v);
#endif
}
// Finite values beyond the limit become the limit; an infinity that a code stands for stays.
DEVICE float saturate(float v, float number, float limit) {
#if SPECIALS == 2
    return magnitude(number) == INFINITE ? v : bound(v, limit);
#else
    (void)number;
    return bound(v, limit);
#endif
}
// v * 2^e rounded once, for v of at least 1 or 0.
DEVICE float times_power(float v, const Scale &s) { return v * s.factors[0] * s.factors[1]; }

#if GRID == FLOAT
// The number at scale 1, which float32 holds (PLAIN_FLOAT), or else its integer; `exponent` is to be added to it.
DEVICE float float_number(u32 code, i32 &exponent) {
    u32 m = code & (SIGN - 1), sign = (code & SIGN) << (32 - WIDTH);
    exponent = 0;
#if EXPLICIT_ONE
    exponent = EMIN - MANTISSA + (i32)(m >> (MANTISSA + 1));
    return float_of(bits_of((float)(m & ((2u << MANTISSA) - 1))) | sign);
#else
    const u32 top = (SIGN - 1) >> MANTISSA << MANTISSA;
    if (SPECIALS == 1 && m == SIGN - 1) return float_of(0x7fc00000);
    if (SPECIALS == 2 && m >= top) return float_of(sign | INFINITE | (m & ~top ? 0x400000 : 0));
#if PLAIN_FLOAT
    return float_of(m << (23 - MANTISSA) | sign) * power(EMIN + 126);
#else
    u32 field = m >> MANTISSA, fraction = m & ((1u << MANTISSA) - 1);
    exponent = EMIN - MANTISSA + (field ? (i32)field - 1 : 0);
    return float_of(bits_of((float)(field ? fraction | 1u << MANTISSA : fraction)) | sign);
#endif
#endif
}
#endif

#if GRID == CODE_BOOK
DEVICE void fill_book(float *book) {
    const float levels[] = {BOOK};
    if (threadIdx.x < 1u << WIDTH) {
        float own = 0;
#pragma unroll
        for (u32 i = 0; i < 1u << WIDTH; i++) own = threadIdx.x == i ? levels[i] : own;
        book[threadIdx.x] = own;
    }
    sync_threads();
}
// The book of a kernel's block.
#define BOOK_OF_BLOCK \
    SHARED(float, book, 1 << WIDTH); \
    fill_book(book)
#else
#define BOOK_OF_BLOCK const float *book = nullptr
#endif

#if GRID != SIGNED_LEVELS && !WIDE
// The number of a code at scale 1; `exponent` is to be added to it (float grids that float32 does not hold).
DEVICE float number_of(u32 code, const Scale &s, const float *book, i32 &exponent) {
    (void)s, (void)book;
    exponent = 0;
#if (GRID == TWOS || GRID == AFFINE) && LOW < 0 && WIDTH <= 22
    return float_of(code ^ (0x4b000000 | SIGN)) - (8388608.0f + (float)SIGN);
#elif GRID == TWOS && LOW < 0
    return (float)((i32)(code << (32 - WIDTH)) >> (32 - WIDTH));
#elif GRID == TWOS || GRID == AFFINE
    return (float)code;
#elif GRID == SIGNED_MAGNITUDE
    return float_of(bits_of((float)(code & (SIGN - 1))) | (code & SIGN) << (32 - WIDTH));
#elif GRID == OFFSET
    return (float)((i32)code - s.zero);
#elif GRID == FLOAT
    return float_number(code, exponent);
#else
    return book[code];
#endif
}

// A number times the scale, rounded once to float32; within -limit..limit unless that is 0.
DEVICE float scaled(float number, i32 exponent, const Scale &s, float limit) {
#if GRID == FLOAT && !PLAIN_FLOAT
    i32 e = between(exponent + s.exponent, -253, 254), first = between(e, -126, 127);
    float v = number * power(first) * power(e - first);
    if (STEP == STEP_E8M0 && is_nan(s.step)) v = s.step;
#elif GRID == AFFINE
    // The product is exact: one rounding, and +0 where both are zero.
    float v = number * s.step + s.offset;
    (void)exponent;
#elif STEP == STEP_NONE || STEP == STEP_FRACTION
    float v = times_power(number, s);
    (void)exponent;
#else
    float v = number * s.step;
    (void)exponent;
#endif
    return limit > 0 ? saturate(v, number, limit) : v;
}
#endif

// Value of a code of WIDTH bits, rounded once to float32; within -limit..limit unless that is 0.
DEVICE float value_of(u32 code, const Scale &s, const float *book, float limit) {
#if GRID == SIGNED_LEVELS
    (void)book;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < LEVELS; i++) {
        float level = code >> (LEVELS - 1 - i) & 1 ? -s.levels[i] : s.levels[i];
        sum = i == 0 ? level : bound(sum + level, float_of(LARGEST_F32));
    }
    return limit > 0 ? bound(sum, limit) : sum;
#elif WIDE
    (void)book;
    double number = GRID == TWOS && LOW < 0 ? (double)((i32)(code << (32 - WIDTH)) >> (32 - WIDTH)) : (double)code;
    float v = (float)(number * double_of((u64)(s.exponent + 1023) << 52));
    return limit > 0 ? bound(v, limit) : v;
#else
    i32 exponent;
    float number = number_of(code, s, book, exponent);
    return scaled(number, exponent, s, limit);
#endif
}
