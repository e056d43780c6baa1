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
    if (WIDTH == 8) return bytes_of(c.words[word], 0, 0x4440 + skip / 8);
    u32 low = c.words[word] >> skip;
    if (skip + WIDTH > 32) low = funnel_right(c.words[word], c.words[word + 1], skip);
    return low & MASK;
}

// `wide`: codes and output allow loads and stores of units; `evict`: the output will not stay in the cache anyway.
KERNEL(THREADS) decode(const u8 *codes, const u8 *scales, const u8 *zeros, const float *levels, Word *out, i64 rows, i64 k,
                       i64 row_bytes, i64 groups_per_row, i64 zeros_row, i32 wide, i32 evict) {
    const Parts p{scales, zeros, levels, rows, k, groups_per_row, zeros_row};
    const float *book = nullptr;
#if GRID == CODE_BOOK
    SHARED(float, shared_book, 1 << WIDTH);
    fill_book(shared_book);
    book = shared_book;
#endif
    float tensor = tensor_scale(p);
    i64 first = (i64)blockIdx.x * (THREADS * IN_FLIGHT) + threadIdx.x;
    Place places[IN_FLIGHT];
    Codes loaded[IN_FLIGHT];
    bool whole[IN_FLIGHT];
#if ONE_SCALE
    Scale held[IN_FLIGHT];
#endif
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
        Place place = places[u] = locate(p, first + u * THREADS);
        whole[u] = wide && place.count == UNIT_SIZE;
#if ODD
        // Words end where the codes end.
        whole[u] = whole[u] && (place.row + 1 < rows || (place.column / UNIT_SIZE + 1) * UNIT_BYTES + 3 < row_bytes);
#endif
        if (whole[u]) loaded[u] = load_codes(codes + place.row * row_bytes, place.column / UNIT_SIZE);
#if ONE_SCALE
        if (place.count) held[u] = load_scale(p, place.row, place.column, tensor);
#endif
    }
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; u++) {
        Place place = places[u];
        if (whole[u]) {
            float v[UNIT_SIZE];
#if ONE_SCALE
            bool bounded = SATURATES == 0 || (SATURATES < 256 && held[u].exponent + 127 + SHIFT >= SATURATES);
#pragma unroll
            for (int i = 0; i < UNIT_SIZE; i++) v[i] = value_of(code_at(loaded[u], i), held[u], book, SATURATES == 0 ? LARGEST : 0);
            if (SATURATES > 0 && bounded) {
#pragma unroll
                for (int i = 0; i < UNIT_SIZE; i++) v[i] = value_of(code_at(loaded[u], i), held[u], book, LARGEST);
            }
#else
#pragma unroll
            for (int i = 0; i < UNIT_SIZE; i++)
                v[i] = value_of(code_at(loaded[u], i), load_scale(p, place.row, place.column + i, tensor), book, LARGEST);
#endif
            store_unit(out + place.at, v, evict);
        } else {
            for (int i = 0; i < place.count; i++) {
                u32 code = bits_at(codes + place.row * row_bytes, (place.column + i) * WIDTH, WIDTH);
                out[place.at + i] = narrow(value_of(code, load_scale(p, place.row, place.column + i, tensor), book, LARGEST));
            }
        }
    }
}
