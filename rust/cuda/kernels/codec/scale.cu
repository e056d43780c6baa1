// Stored scales: where they lie and what they mean. Twin of octavo-core's codec::scale and codec::work.
//
// Macros: GROUPS 0 none, 1 a tensor, 2 a row, 3 BLOCK elements of a row; SHIFT of E8M0 steps, UNIT exponent of formats
// without scales; PER_GROUP scales of a group, of GRID AFFINE a step and an offset; ZEROS 1 with zero points.

#define GROUPS_NONE 0
#define GROUPS_TENSOR 1
#define GROUPS_ROW 2
#define GROUPS_BLOCK 3

// What all kernels of codecs know about a tensor; lengths in elements, bytes where so named.
struct Parts {
    const u8 *scales, *zeros;
    const float *levels;
    i64 rows, k, groups_per_row, zeros_row;
};

DEVICE float e4m3(u32 code) {
    u32 m = code & 0x7f;
    float v = float_of(m << 20 | (code & 0x80) << 24) * power(120);
    return m == 0x7f ? float_of(0x7fc00000) : v;
}

// `count` (at most 32) bits from a bit of a stream on, byte by byte.
DEVICE u32 bits_at(const u8 *stream, i64 bit, u32 count) {
    const u8 *from = stream + (bit >> 3);
    u32 skip = (u32)bit & 7;
    u64 held = 0;
    for (u32 i = 0; 8 * i < skip + count; i++) held |= (u64)from[i] << 8 * i;
    return (u32)(held >> skip) & (0xffffffffu >> (32 - count));
}

DEVICE i64 group_of(const Parts &p, i64 row, i64 column) {
#if GROUPS == GROUPS_BLOCK
    return row * p.groups_per_row + column / BLOCK;
#elif GROUPS == GROUPS_ROW
    return row;
#else
    return 0;
#endif
}

// Bits of the i-th scale of a group.
DEVICE u32 raw_scale(const u8 *scales, i64 group, int i) {
#if STEP == STEP_F32
    return ((const u32 *)scales)[group * PER_GROUP + i];
#elif STEP == STEP_F16
    return ((const u16 *)scales)[group * PER_GROUP + i];
#elif STEP == STEP_NONE
    return 0;
#else
    return scales[group];
#endif
}
DEVICE void keep_scale(u8 *scales, i64 group, int i, u32 bits) {
#if STEP == STEP_F32
    ((u32 *)scales)[group * PER_GROUP + i] = bits;
#elif STEP == STEP_F16
    ((u16 *)scales)[group * PER_GROUP + i] = (u16)bits;
#elif STEP != STEP_NONE
    scales[group] = (u8)bits;
#endif
}

// A scale of float32 or float16 bits.
DEVICE float real_scale(u32 bits) { return STEP == STEP_F16 ? from_f16((u16)bits) : float_of(bits); }

// The arithmetic form of stored bits; `tensor` is nvfp4's tensor scale.
DEVICE Scale resolve(u32 bits, float tensor) {
    Scale s = {};
#if STEP == STEP_E8M0
    s.exponent = (i32)bits - 127 - SHIFT;
    s.step = bits == 255 ? float_of(0x7fc00000) : power(s.exponent);
    i32 first = SHIFT ? between(-s.exponent, -126, 127) : -s.exponent;
    s.inverse[0] = power(first < -127 ? -127 : first);
    s.inverse[1] = SHIFT ? power(-s.exponent - first) : 1.0f;
#elif POWER
    s.exponent = STEP == STEP_FRACTION ? -(i32)(i8)bits : UNIT;
    i32 e = between(s.exponent, -252, 254), first = between(e, -126, 127);
    s.factors[0] = power(first);
    s.factors[1] = power(e - first);
    i32 n = between(-s.exponent, -280, 280);
#pragma unroll
    for (int i = 0; i < 3; i++) {
        first = between(n, -126, 127);
        s.inverse[i] = power(first);
        n -= first;
    }
#else
    s.step = STEP == STEP_E4M3 ? tensor * e4m3(bits) : real_scale(bits);
    if (STEP == STEP_E4M3) s.step = bound(s.step, float_of(LARGEST_F32));
    s.exact = s.step >= 8.6736174e-19f && s.step <= 1.1529215e18f; // 2^-60 to 2^60
    s.inverse[0] = s.exact ? 1.0f / s.step : 0.0f;
#endif
    return s;
}

// Gives a scale the offset of its group, where groups have one. Zero has no sign.
DEVICE void add_offset(Scale &s, const u8 *scales, i64 group) {
#if GRID == AFFINE && PER_GROUP == 2
    s.offset = real_scale(raw_scale(scales, group, 1)) + 0.0f;
#else
    (void)s, (void)scales, (void)group;
#endif
}

#if STEP == STEP_NESTED
// Step and offset of a group of a K-quant's block, from its bytes that are no codes. NESTED: bits of a code. Twin of
// octavo-core's codec::kquants.
DEVICE Scale nested_scale(const u8 *block, i32 group) {
    Scale s = {};
    const i32 last = NESTED == 4 || NESTED == 5 ? 0 : PER_GROUP - (NESTED == 2 ? 4 : 2);
    float d = from_f16((u16)(block[last] | block[last + 1] << 8)), least = 0;
    if (NESTED != 3 && NESTED != 6) least = from_f16((u16)(block[last + 2] | block[last + 3] << 8));
    i32 scale = 0, low = 0;
#if NESTED == 2
    scale = block[group] & 15, low = block[group] >> 4;
#elif NESTED == 3
    scale = (i32)(block[group % 8] >> 4 * (group / 8) & 15 | (block[8 + group % 4] >> 2 * (group / 4) & 3) << 4) - 32;
#elif NESTED == 6
    scale = (i8)block[group];
#else
    const u8 *six = block + 4;
    scale = group < 4 ? six[group] & 63 : six[group + 4] & 15 | six[group - 4] >> 6 << 4;
    low = group < 4 ? six[group + 4] & 63 : six[group + 4] >> 4 | six[group] >> 6 << 4;
#endif
    // Exact products.
    s.step = d * (float)scale;
    s.offset = -(least * (float)low) + 0.0f;
    return s;
}
#endif

DEVICE float tensor_scale(const Parts &p) { return STEP == STEP_E4M3 ? *p.levels : 0.0f; }

#if ZEROS
DEVICE i32 zero_point(const Parts &p, i64 row, i64 column) {
    i64 line = GROUPS == GROUPS_TENSOR ? 0 : row;
    return (i32)bits_at(p.zeros + line * p.zeros_row, (GROUPS == GROUPS_BLOCK ? column / BLOCK : 0) * WIDTH, WIDTH);
}
#endif

DEVICE Scale load_scale(const Parts &p, i64 row, i64 column, float tensor) {
    i64 group = group_of(p, row, column);
#if STEP == STEP_NESTED
    (void)tensor;
    return nested_scale(p.scales + group * PER_GROUP, (i32)(column % BLOCK) / SUBGROUP);
#elif GRID == SIGNED_LEVELS
    Scale s = {};
#pragma unroll
    for (int i = 0; i < LEVELS; i++) s.levels[i] = STEP == STEP_NONE ? 1.0f : float_of(raw_scale(p.scales, group, i));
    return s;
#else
    Scale s = resolve(raw_scale(p.scales, group, 0), tensor);
    add_offset(s, p.scales, group);
#if ZEROS
    s.zero = zero_point(p, row, column);
#endif
    return s;
#endif
}
