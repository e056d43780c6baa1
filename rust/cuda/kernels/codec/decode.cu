// Packed codes to values: UNIT_SIZE elements a thread at a time, IN_FLIGHT of them loaded before the first is used.
//
// A unit is 16 bytes of 16-bit output (of float32 too where its codes are whole bytes), so that the stores of a warp
// fill whole sectors; its codes are one load, or words taken apart with funnel shifts where the width is odd.

#define IN_FLIGHT 4
#define UNIT_BYTES (UNIT_SIZE * WIDTH / 8)
// A unit of an odd width may begin inside a word and end inside another.
#define ODD (WIDTH != 1 && WIDTH != 2 && WIDTH != 4 && WIDTH % 8 != 0 || WIDTH == 24)
#define UNIT_WORDS ((UNIT_BYTES + 3) / 4 + ODD)
// One scale serves a unit.
#define ONE_SCALE (GROUPS != GROUPS_BLOCK || BLOCK % UNIT_SIZE == 0)
// Blocks of an SM: as many as have enough loads under way, fewer where numbers take more registers.
#define RESIDENT (ONE_SCALE && GRID != SIGNED_LEVELS ? 6 : 4)

struct Codes {
    u32 words[UNIT_WORDS];
};

DEVICE Codes load_codes(const u8 *row, i64 unit) {
    Codes c;
#if ODD
    i64 start = unit * UNIT_BYTES;
    const u8 *from = row + (start >> 2 << 2);
    u32 skip = (u32)start & 3;
#pragma unroll
    for (u32 i = 0; i < UNIT_WORDS; i++) c.words[i] = 4 * i < skip + UNIT_BYTES ? stream4(from + 4 * i) : 0;
#pragma unroll
    for (u32 i = 0; i + 1 < UNIT_WORDS; i++) c.words[i] = funnel_right(c.words[i], c.words[i + 1], 8 * skip);
#else
    const u8 *from = row + unit * UNIT_BYTES;
#if UNIT_BYTES >= 16
#pragma unroll
    for (int i = 0; i < UNIT_BYTES / 16; i++) {
        Quad q = stream16(from + 16 * i);
        c.words[4 * i] = q.x, c.words[4 * i + 1] = q.y, c.words[4 * i + 2] = q.z, c.words[4 * i + 3] = q.w;
    }
#elif UNIT_BYTES == 8
    Pair p = stream8(from);
    c.words[0] = p.x, c.words[1] = p.y;
#elif UNIT_BYTES == 4
    c.words[0] = stream4(from);
#elif UNIT_BYTES == 2
    c.words[0] = *(const u16 *)from;
#else
    c.words[0] = *from;
#endif
#endif
    return c;
}

// Code i of a unit; i is known to the compiler.
DEVICE u32 code_at(const Codes &c, int i) {
    const int word = i * WIDTH / 32, skip = i * WIDTH % 32;
    if (WIDTH == 8) return bytes_of(c.words[word], 0, 0x4440 | skip / 8);
    u32 low = c.words[word] >> skip;
    if (skip + WIDTH > 32) low = funnel_right(c.words[word], c.words[word + 1], skip);
    return low & MASK;
}

// Value of code i of a unit.
DEVICE float value_at(const Codes &c, int i, const Scale &s, const float *book, float limit) {
#if WIDTH == 8 && GRID == TWOS && LOW < 0
    // The byte under an exponent that makes it the float's last one.
    (void)book;
    u32 bits = bytes_of(c.words[i / 4] ^ 0x80808080, 0x4b000000, 0x7440 | i % 4);
    return scaled(float_of(bits) - 8388736.0f, 0, s, limit);
#else
    return value_of(code_at(c, i), s, book, limit);
#endif
}

// Decodes a loaded unit and stores it. `at` is its first element, counted over the whole tensor.
DEVICE void finish_unit(const Codes &c, const Parts &p, i64 row, i64 column, const Scale &s, const float *book, Word *out,
                        bool evict) {
    float v[UNIT_SIZE];
#if ONE_SCALE
    (void)p, (void)row, (void)column;
#pragma unroll
    for (int i = 0; i < UNIT_SIZE; i++) v[i] = value_at(c, i, s, book, SATURATES == 0 ? LARGEST : 0);
    if (SATURATES > 0 && SATURATES < 256 && RARE(s.exponent + 127 + SHIFT >= SATURATES)) {
#pragma unroll
        for (int i = 0; i < UNIT_SIZE; i++) v[i] = SPECIALS == 2 ? value_at(c, i, s, book, LARGEST) : bound(v[i], LARGEST);
    }
#else
#pragma unroll
    for (int i = 0; i < UNIT_SIZE; i++)
        v[i] = value_at(c, i, load_scale(p, row, column + i, tensor_scale(p)), book, LARGEST);
#endif
    store_unit(out, v, evict);
}

// Elements of a unit one by one, wherever they lie.
DEVICE void decode_apart(const u8 *codes, const Parts &p, const Place &place, i64 row_bytes, const float *book, Word *out) {
    for (int i = 0; i < place.count; i++) {
        u32 code = bits_at(codes + place.row * row_bytes, (place.column + i) * WIDTH, WIDTH);
        Scale s = load_scale(p, place.row, place.column + i, tensor_scale(p));
        out[place.at + i] = narrow(value_of(code, s, book, LARGEST));
    }
}

// Rows joined to one of `k` elements; all addresses allow loads and stores of units. `evict`: the output will not stay
// in the cache anyway.
KERNEL(THREADS, RESIDENT) decode(const u8 *codes, const u8 *scales, const u8 *zeros, const float *levels, Word *out, i64 k,
                          i64 row_bytes, i64 groups_per_row, i64 zeros_row, i32 evict) {
    const Parts p{scales, zeros, levels, 1, k, groups_per_row, zeros_row};
    BOOK_OF_BLOCK;
    const i64 units = THREADS * IN_FLIGHT, end = ((i64)blockIdx.x + 1) * units;
    i64 first = (i64)blockIdx.x * units + threadIdx.x;
    // Words end where the codes end.
    if (end * UNIT_SIZE > k || (ODD && end * UNIT_BYTES + 3 > row_bytes)) {
        for (int u = 0; u < IN_FLIGHT; u++) decode_apart(codes, p, locate(p, first + u * THREADS), row_bytes, book, out);
        return;
    }
    Codes loaded[IN_FLIGHT];
#if ONE_SCALE && GROUPS == GROUPS_BLOCK
    u32 bits[IN_FLIGHT];
#endif
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
        loaded[u] = load_codes(codes, first + u * THREADS);
#if ONE_SCALE && GROUPS == GROUPS_BLOCK
        bits[u] = raw_scale(scales, (first + u * THREADS) / (BLOCK / UNIT_SIZE), 0);
#endif
    }
    out += first * UNIT_SIZE;
#if ONE_SCALE
    Scale s = load_scale(p, 0, 0, tensor_scale(p));
#else
    Scale s = {};
#endif
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
        i64 column = (first + u * THREADS) * UNIT_SIZE;
#if ONE_SCALE && GROUPS == GROUPS_BLOCK
#if STEP == STEP_NESTED
        (void)bits;
        s = load_scale(p, 0, column, 0);
#else
        s = resolve(bits[u], tensor_scale(p));
        add_offset(s, scales, (first + u * THREADS) / (BLOCK / UNIT_SIZE));
#endif
#if ZEROS
        s.zero = zero_point(p, 0, column);
#endif
#endif
        finish_unit(loaded[u], p, 0, column, s, book, out + u * THREADS * UNIT_SIZE, evict);
    }
}

// Rows apart. `wide`: codes and output allow loads and stores of units.
KERNEL(THREADS, 4) decode_rows(const u8 *codes, const u8 *scales, const u8 *zeros, const float *levels, Word *out, i64 rows,
                            i64 k, i64 row_bytes, i64 groups_per_row, i64 zeros_row, i32 wide, i32 evict) {
    const Parts p{scales, zeros, levels, rows, k, groups_per_row, zeros_row};
    BOOK_OF_BLOCK;
    i64 first = (i64)blockIdx.x * (THREADS * IN_FLIGHT) + threadIdx.x;
    Codes loaded[IN_FLIGHT];
    i64 row[IN_FLIGHT], unit[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
        Place place = locate(p, first + u * THREADS);
        bool whole = wide && place.count == UNIT_SIZE;
        row[u] = place.row;
        unit[u] = place.column / UNIT_SIZE;
        // Words end where the codes end.
        if (ODD && place.row + 1 >= rows) whole = whole && (unit[u] + 1) * UNIT_BYTES + 3 <= row_bytes;
        if (whole) {
            loaded[u] = load_codes(codes + place.row * row_bytes, unit[u]);
        } else {
            decode_apart(codes, p, place, row_bytes, book, out);
            row[u] = -1;
        }
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
        if (row[u] < 0) continue;
        i64 column = unit[u] * UNIT_SIZE;
        Scale s = load_scale(p, row[u], column, tensor_scale(p));
        finish_unit(loaded[u], p, row[u], column, s, book, out + row[u] * k + column, evict);
    }
}
