// Codes of packed rows as bytes for the tensor cores, and the scales of their groups.
//
// A warp reads 16 rows of weights, 128 columns at a time. Lane (g, t) = (lane >> 2, lane & 3) holds 32 codes of row g and
// 32 of row g + 8: where codes are bytes, columns 16t.. and 64 + 16t..; else columns 32t... Either way they are four runs of
// eight columns, and run i of all lanes is what one product of the tensor cores takes. The order of columns inside a
// product is free, as long as both factors share it.
//
// WIDTH: bits of a code. LOAD: bytes of a load, 16, 8, 4 or 1. UNPACK: SHIFTED, two's complement moved to the top of a byte;
// PLAIN, codes as they are; TABLE, TABLE_WORDS looked up. GROUP: columns that share a scale, 0 for all of a row.
// SCALE: type of the scales. WHOLE: there are 128 n columns, so that nothing a lane reads lies beyond the end of a row.

#define SHIFTED 0
#define PLAIN 1
#define TABLE 2
#define NONE 0
#define FLOAT 1
#define HALF 2
#define EXPONENT 3
#define NV 4
#define FRACTION 5

// Even codes of a run come before the odd ones: nibbles are taken apart with one mask.
#define EVEN_ODD (WIDTH == 4 && UNPACK != TABLE)

// The first column, after a multiple of 128, of run i of lane t.
DEVICE u32 run_start(u32 t, int i) { return WIDTH == 8 ? 64 * (i >> 1) + 16 * t + 8 * (i & 1) : 32 * t + 8 * i; }

// `count` words from byte `at` of a row, of which `bytes` are left; zeros beyond its end. Nothing changes unless `there`.
template <int count> DEVICE void load_words(u32 *to, const u8 *row, i64 at, i64 bytes, bool there) {
    for (int i = 0; i < count; i += LOAD < 4 ? 1 : LOAD / 4) {
        bool inside = WHOLE || at + 4 * i < bytes;
        if constexpr (LOAD == 1) {
            if (there) to[i] = 0;
            for (int j = 0; j < 4; j++)
                if (there && (WHOLE || at + 4 * i + j < bytes)) to[i] |= (u32)row[at + 4 * i + j] << 8 * j;
        } else {
            for (int j = 0; j < LOAD / 4; j++)
                if (there && !inside) to[i + j] = 0;
            const u8 *from = row + at + 4 * i;
            if constexpr (LOAD == 16) stream16(to + i, from, there && inside);
            if constexpr (LOAD == 8) stream8(to + i, from, there && inside);
            if constexpr (LOAD == 4) stream4(to + i, from, there && inside);
        }
    }
}

// Where in a row the codes of lane t begin.
DEVICE u32 lane_start(u32 t) { return WIDTH == 8 ? 16 * t : 4 * WIDTH * t; }

// The 32 codes of a lane, packed, of the columns from 128 `chunk` on: of a row, from the lane's start on, of which `bytes` are left.
DEVICE void load_codes(u32 (&to)[WIDTH], const u8 *row, u32 chunk, i64 bytes, bool there) {
    i64 at = 16ll * WIDTH * chunk;
    if constexpr (WIDTH == 8) {
        load_words<4>(to, row, at, bytes, there);
        load_words<4>(to + 4, row, at + 64, bytes, there);
    } else {
        load_words<WIDTH>(to, row, at, bytes, there);
    }
}

// Code `i` of those packed in words, and other bits above it.
DEVICE u32 code_at(const u32 *words, int i) {
    int bit = i * WIDTH, low = bit >> 5, shift = bit & 31;
    return shift + WIDTH > 32 ? funnel_right(words[low], words[low + 1], shift) : words[low] >> shift;
}

#if UNPACK == TABLE
static __device__ const u32 TABLE_STORE[] = {TABLE_WORDS};
// Copies the table of bytes to shared memory; a barrier must follow.
DEVICE void load_table(u32 *to) {
    for (u32 i = threadIdx.x; i < ((1 << WIDTH) + 3) / 4; i += blockDim.x) to[i] = TABLE_STORE[i];
}
#endif

// The bytes of a lane's codes, run by run, four to a word.
DEVICE void unpack_codes(u32 (&bytes)[8], const u32 (&words)[WIDTH], const u8 *table) {
    if constexpr (WIDTH == 8 && UNPACK != TABLE) {
        for (int i = 0; i < 8; i++) bytes[i] = words[i % WIDTH];
    } else if constexpr (EVEN_ODD) {
        for (int i = 0; i < 4; i++) {
            u32 low = words[i % WIDTH] << 4, high = words[i % WIDTH];
            bytes[2 * i] = UNPACK == SHIFTED ? low & 0xf0f0f0f0 : high & 0x0f0f0f0f;
            bytes[2 * i + 1] = UNPACK == SHIFTED ? high & 0xf0f0f0f0 : high >> 4 & 0x0f0f0f0f;
        }
    } else if constexpr (WIDTH == 4) {
        // Eight bytes at a time are looked up twice, without the top bit of their codes, which then chooses.
        const u32 *words_of = (const u32 *)table;
        u32 t0 = words_of[0], t1 = words_of[1], t2 = words_of[2], t3 = words_of[3];
        for (int i = 0; i < 4; i++) {
            u32 codes = words[i % WIDTH] & 0x77777777, tops = (words[i % WIDTH] >> 1 & 0x44444444) | 0x32103210;
            for (int half = 0; half < 2; half++, codes >>= 16, tops >>= 16)
                bytes[2 * i + half] = bytes_of(bytes_of(t0, t1, codes), bytes_of(t2, t3, codes), tops);
        }
    } else {
        for (int i = 0; i < 8; i++) {
            bytes[i] = 0;
            for (int j = 0; j < 4; j++) {
                u32 code = code_at(words, 4 * i + j);
                u32 byte = UNPACK == SHIFTED ? code << (8 - WIDTH) & 255 : code & ((1 << WIDTH) - 1);
                if constexpr (UNPACK == TABLE) byte = table[byte];
                bytes[i] |= byte << 8 * j;
            }
        }
    }
}

// --- scales ---

// v * 2^e for |e| <= 254, without an infinite or vanishing factor.
DEVICE float times_power(float v, i32 e) {
    i32 half = e / 2;
    return v * float_of((u32)(half + 127) << 23) * float_of((u32)(e - half + 127) << 23);
}

// Bytes of the scale of a block of columns.
#define SCALE_BYTES (SCALE == HALF ? 2 : 1)

// A scale of a block of columns, as it is stored; nothing changes unless `there`.
DEVICE void load_scale(u32 &code, const u8 *scale, bool there) {
    if constexpr (SCALE == HALF) constant2(&code, scale, there);
    else constant1(&code, scale, there);
}

// What a stored scale of a block means, or NaN.
DEVICE float scale_of(u32 code, float level) {
    if constexpr (SCALE == HALF) return from_f16((u16)code);
    if constexpr (SCALE == EXPONENT) return float_of(code == 0 ? 0x00400000 : code == 255 ? 0x7fc00000 : code << 23);
    if constexpr (SCALE == NV) {
        if ((code & 0x7f) == 0x7f) return float_of(0x7fc00000);
        float magnitude = float_of((code & 0x7f) << 20) * 0x1p120f;
        return (code & 0x80 ? -magnitude : magnitude) * level;
    }
    return 1;
}

// A sum times the scale that its whole row has, if it has one; `one` says that all rows share it.
DEVICE float row_scaled(float v, const u8 *scales, i64 row, bool one) {
    if constexpr (GROUP == 0 && SCALE == FLOAT) return v * ((const float *)scales)[one ? 0 : row];
    if constexpr (GROUP == 0 && SCALE == FRACTION) return times_power(v, -(i32)(i8)scales[one ? 0 : row]);
    return v;
}

// The bytes that hold number `at` of the zero points of a row of `bytes` bytes; nothing changes unless `there`.
DEVICE void load_zero(u32 &code, const u8 *row, u32 at, u32 bytes, bool there) {
    u32 byte = at * WIDTH >> 3;
    constant1(&code, row + byte, there);
    if constexpr (8 % WIDTH != 0) {
        u32 above = 0;
        constant1(&above, row + byte + 1, there && byte + 1 < bytes);
        if (there) code |= above << 8;
    }
}
DEVICE i32 zero_of(u32 code, u32 at) { return code >> (at * WIDTH & 7) & ((1 << WIDTH) - 1); }
