// Attention of one query of each sequence over keys and values in pages of 64 positions, cut along the positions: a block
// takes some pages of a sequence for up to 16 query heads that share a key head, `join` adds up the blocks of a row.
//
// Pages are [pages, key heads, 64, numbers]; a sequence has the numbers of its pages in a table. Keys go to shared memory
// as they are, or decoded, and both products run on tensor cores, with the heads as the rows of a tile of 16. Softmax is
// that of the positions so far (Milakov and Gimelshein 2018); maxima, sums and mixed values are float32.
//
// TYPE: 1 float16, 2 bfloat16, of queries and results, and of pages that are not packed. DEPTH: numbers of a key. VALUES:
// numbers of a value. LATENT: values are the first numbers of keys, and have no pages of their own. PACKED: pages are codes,
// the macros of whose format number.cu and scale.cu explain. STAGES: pages in shared memory. CUTS: of a sequence, at most.

#define TILE 64
#define HEADS 16
#define THREADS 128
#define WARPS (THREADS / 32)
// Runs of 16 numbers of a key; tiles of 8 of a value, and those of a warp.
#define STEPS ((DEPTH + 15) / 16)
#define COLUMNS (VALUES / 8)
#define OWN ((COLUMNS + WARPS - 1) / WARPS)
// Bytes from one row to the next: odd multiples of 16, so that rows that are read together hit different banks.
#define KEY_PITCH (32 * STEPS + 16)
#define VALUE_PITCH (LATENT ? KEY_PITCH : (COLUMNS | 1) * 16)
#define WEIGHT_PITCH (2 * TILE + 16)
#define SCORE_PITCH (TILE + 4)
#define KEY_BYTES (TILE * KEY_PITCH)
#define STAGE (KEY_BYTES + (LATENT ? 0 : TILE * VALUE_PITCH))
#define LOWEST_SCORE float_of(0xff800000)

// Where the pages of one kind of rows are.
struct Pages {
    const u8 *rows, *scales;
    i32 heads, head;
};

DEVICE void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (TYPE == 1) multiply_f16(d, a, b);
    else multiply_bf16(d, a, b);
}

#if PACKED
// Eight numbers of a row, decoded and rounded to TYPE.
DEVICE Quad decoded(const Pages &pages, i64 row, i32 numbers, i32 column, const float *book) {
    const Parts parts{pages.scales, nullptr, nullptr, 0, numbers, (numbers + BLOCK - 1) / BLOCK, 0};
    const u8 *codes = pages.rows + row * ((numbers * WIDTH + 7) / 8);
    Scale scale = load_scale(parts, row, column, 0);
    u16 all[8];
    Pair bytes = {};
    if (WIDTH == 8) bytes = stream8(codes + column);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (BLOCK % 8) scale = load_scale(parts, row, column + i, 0);
        const u32 code = WIDTH == 8 ? (i < 4 ? bytes.x : bytes.y) >> 8 * (i % 4) & 255 : bits_at(codes, (column + i) * WIDTH, WIDTH);
        all[i] = (u16)narrow(value_of(code, scale, book, LARGEST));
    }
    return Quad{all[0] | (u32)all[1] << 16, all[2] | (u32)all[3] << 16, all[4] | (u32)all[5] << 16, all[6] | (u32)all[7] << 16};
}
#endif

// Rows `from`..`to` of a page, of `numbers` each, in pieces of 16 bytes; zeros around them and up to `pieces`.
template <int numbers, int pieces, u32 pitch>
DEVICE void load_page(u8 *tile, const Pages &pages, i32 page, i32 from, i32 to, const float *book) {
    const i64 first = ((i64)page * pages.heads + pages.head) * TILE;
    for (u32 i = threadIdx.x; i < TILE * pieces; i += THREADS) {
        const i32 row = i / pieces, piece = i % pieces;
        const bool there = row >= from && row < to && piece < numbers / 8;
        u8 *at = tile + row * pitch + 16 * piece;
#if PACKED
        const Quad none = {};
        *(Quad *)at = there ? decoded(pages, first + row, numbers, 8 * piece, book) : none;
#else
        (void)book;
        copy16(at, pages.rows + (there ? (first + row) * (2 * numbers) + 16 * piece : 0), there ? 16 : 0);
#endif
    }
}

// `window`: last positions that are seen, 0 for all. `each`: pages of a block. `scale`: of the scores, times log2(e).
// `parts`: for each cut and query head VALUES sums, their maximum and their sum of weights; null where nothing is cut.
KERNEL(THREADS) attend(const u8 *query, const u8 *keys, const u8 *key_scales, const u8 *values, const u8 *value_scales,
                       const i32 *tables, const i32 *lengths, i32 heads, i32 key_heads, i32 longest, i32 window, i32 each,
                       float scale, u8 *out, float *parts) {
    SHARED_MEMORY(shared);
#if PACKED
    BOOK_OF_BLOCK;
#else
    const float *book = nullptr;
#endif
    u8 *const queries = shared, *const weights = queries + HEADS * KEY_PITCH;
    float *const scores = (float *)(weights + HEADS * WEIGHT_PITCH), *const factors = scores + HEADS * SCORE_PITCH;
    u8 *const stages = (u8 *)(factors + HEADS);
    const u32 lane = lane_id(), warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
    const i32 group = heads / key_heads, tiles = (group + HEADS - 1) / HEADS;
    const i32 sequence = blockIdx.x / (key_heads * tiles), own = blockIdx.x % (key_heads * tiles);
    const i32 head = own / tiles * group + own % tiles * HEADS;
    const i32 left = group - own % tiles * HEADS, count = left < HEADS ? left : HEADS;
    const i64 first_row = (i64)sequence * heads + head;
    const Pages of_keys{keys, key_scales, key_heads, own / tiles}, of_values{values, value_scales, key_heads, own / tiles};
    const i32 *const table = tables + (i64)sequence * longest;
    const i32 length = lengths[sequence], begin = window && length > window ? length - window : 0;
    const i32 last = (length + TILE - 1) / TILE, page = begin / TILE + blockIdx.y * each;
    const i32 end = page + each < last ? page + each : last;

    const auto load = [&](i32 at, u8 *stage) {
        const i32 from = begin - at * TILE, to = length - at * TILE;
        load_page<DEPTH, 2 * STEPS, KEY_PITCH>(stage, of_keys, table[at], from, to, book);
        if (!LATENT) load_page<VALUES, COLUMNS, VALUE_PITCH>(stage + KEY_BYTES, of_values, table[at], from, to, book);
    };
    for (u32 i = threadIdx.x; i < HEADS * 2 * STEPS; i += THREADS) {
        const i32 row = i / (2 * STEPS), piece = i % (2 * STEPS);
        const bool there = row < count && piece < DEPTH / 8;
        copy16(queries + row * KEY_PITCH + 16 * piece, query + (there ? (first_row + row) * (2 * DEPTH) + 16 * piece : 0), there ? 16 : 0);
    }
    if (STAGES > 1 && page < end) load(page, stages);
    commit_copies();

    float mixed[OWN][4] = {};
    float most = LOWEST_SCORE, sum = 0; // of row threadIdx.x / 8
    for (i32 at = page; at < end; at++) {
        u8 *const tile = stages + (STAGES > 1 ? (at - page) % STAGES * STAGE : 0);
        if (STAGES == 1) load(at, tile);
        else if (at + 1 < end) load(at + 1, stages + (at + 1 - page) % STAGES * STAGE);
        commit_copies();
        wait_copies<STAGES - 1>();
        sync_threads();

        // Scores of 16 positions a warp.
        float s[2][4] = {};
        const u8 *a_row = queries + (lane & 15) * KEY_PITCH + (lane >> 4) * 16;
        const u8 *b_row = tile + (16 * warp + (lane & 7) + (lane >> 4) * 8) * KEY_PITCH + (lane >> 3 & 1) * 16;
#pragma unroll 4
        for (int step = 0; step < STEPS; step++) {
            u32 a[4], b[4];
            load_matrices(a, a_row + 32 * step);
            load_matrices(b, b_row + 32 * step);
            const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
            multiply(s[0], a, low);
            multiply(s[1], a, high);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const u32 column = 16 * warp + 8 * half + 2 * t + (e & 1);
                const i32 position = at * TILE + (i32)column;
                const bool seen = position >= begin && position < length;
                scores[(g + 8 * (e >> 1)) * SCORE_PITCH + column] = seen ? s[half][e] * scale : LOWEST_SCORE;
            }
        sync_threads();

        // Weights of a row, by eight threads. Every page of a sequence has a position that is seen.
        {
            const u32 row = threadIdx.x / 8, column = threadIdx.x % 8;
            float own_scores[TILE / 8], highest = most;
#pragma unroll
            for (int i = 0; i < TILE / 8; i++) {
                own_scores[i] = scores[row * SCORE_PITCH + column + 8 * i];
                highest = larger(highest, own_scores[i]);
            }
#pragma unroll
            for (u32 mask = 4; mask > 0; mask /= 2) highest = larger(highest, shuffle_xor(highest, mask));
            const float factor = near_exp2(most - highest);
            float more = 0;
#pragma unroll
            for (int i = 0; i < TILE / 8; i++) {
                const u16 weight = rounded<TYPE>(near_exp2(own_scores[i] - highest));
                ((u16 *)(weights + row * WEIGHT_PITCH))[column + 8 * i] = weight;
                more += TYPE == 1 ? from_f16(weight) : from_bf16(weight);
            }
#pragma unroll
            for (u32 mask = 4; mask > 0; mask /= 2) more += shuffle_xor(more, mask);
            sum = sum * factor + more;
            most = highest;
            if (column == 0) factors[row] = factor;
        }
        sync_threads();

        // Values of 8 columns at a time.
        const float upper = factors[g], lower = factors[g + 8];
        const u8 *value_row = tile + (LATENT ? 0 : KEY_BYTES) + lane * VALUE_PITCH;
#pragma unroll
        for (int n = 0; n < OWN; n++) mixed[n][0] *= upper, mixed[n][1] *= upper, mixed[n][2] *= lower, mixed[n][3] *= lower;
#pragma unroll
        for (int half = 0; half < TILE / 32; half++) {
            u32 first[4], second[4];
            const u8 *row = weights + (lane & 15) * WEIGHT_PITCH + (lane >> 4) * 16 + 64 * half;
            load_matrices(first, row);
            load_matrices(second, row + 32);
#pragma unroll
            for (int n = 0; n < OWN; n++) {
                const u32 column = warp + n * WARPS;
                if (COLUMNS % WARPS && column >= COLUMNS) continue;
                u32 b[4];
                load_matrices_transposed(b, value_row + 32 * half * VALUE_PITCH + 16 * column);
                const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
                multiply(mixed[n], first, low);
                multiply(mixed[n], second, high);
            }
        }
        sync_threads();
    }
    wait_copies<0>();

    // Sums of weights, then maxima, by row.
    if (threadIdx.x % 8 == 0) {
        factors[threadIdx.x / 8] = sum;
        scores[threadIdx.x / 8] = most;
    }
    sync_threads();
    const i64 rows = (i64)(gridDim.x / (key_heads * tiles)) * heads;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = g + 8 * half;
        if ((i32)row >= count) continue;
        const float all = factors[row], by = all > 0 ? 1 / all : 0;
        float *to = parts ? parts + ((i64)blockIdx.y * rows + first_row + row) * (VALUES + 2) : nullptr;
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const u32 column = 8 * (warp + n * WARPS) + 2 * t;
            if (column >= VALUES) continue;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float v = mixed[n][2 * half + e];
                if (to) to[column + e] = v;
                else put<TYPE>(out, (first_row + row) * VALUES + column + e, v * by);
            }
        }
        if (to && warp == 0 && t == 0) to[VALUES] = scores[row], to[VALUES + 1] = all;
    }
}

// Adds up what `cuts` blocks, at most CUTS, made of a row; a block a row.
KERNEL(THREADS) join(const float *parts, i32 cuts, u8 *out) {
    SHARED(float, shares, CUTS);
    const i64 rows = gridDim.x, row = blockIdx.x, next = rows * (VALUES + 2);
    const float *const first = parts + row * (VALUES + 2);
    float most = LOWEST_SCORE, all = 0;
#pragma unroll 8
    for (i32 cut = 0; cut < cuts; cut++) most = larger(most, first[cut * next + VALUES]);
    for (i32 cut = threadIdx.x; cut < cuts; cut += THREADS) {
        const float sum = first[cut * next + VALUES + 1];
        shares[cut] = sum > 0 ? near_exp2(first[cut * next + VALUES] - most) : 0;
    }
    sync_threads();
#pragma unroll 8
    for (i32 cut = 0; cut < cuts; cut++) all += shares[cut] * first[cut * next + VALUES + 1];
    for (u32 column = threadIdx.x; column < VALUES; column += THREADS) {
        float sum = 0;
#pragma unroll 8
        for (i32 cut = 0; cut < cuts; cut++) sum += shares[cut] * first[cut * next + column];
        put<TYPE>(out, row * VALUES + column, all > 0 ? sum / all : 0);
    }
}
