// Greedy decoding: a block generates the targets of its rows, all steps, from the encoded sources.
//
// Rounded to bfloat16: weights, the hidden state that goes into the gates, what norms give, queries, keys, values, mixed
// values and the inner layer of the feed-forward network. Float32: sums, cells, the residual stream, norms, softmax, logits.
//
// A warp owns 16 of the WIDTH columns: its lanes keep the residual stream of all rows there in registers.
//
// WIDTH, HEADS, LAYERS, INNER (of the feed-forward network), VOCABULARY: sizes of the model. SOURCE, TARGET: positions of a
// row. BLOCKS: that share a multiprocessor.

#define WARPS (WIDTH / 16)
#define THREADS (2 * WIDTH)
// Columns of logits.
#define LOGITS ((VOCABULARY + 7) / 8 * 8)

// Where each matrix begins, in bytes.
constexpr u64 SQUARE = 2 * WIDTH * WIDTH, OBLONG = 2 * WIDTH * INNER;
constexpr u64 SELF_INPUT = 4 * SQUARE, SELF_OUTPUT = SELF_INPUT + 3 * SQUARE, LAYER = SELF_OUTPUT + SQUARE;
constexpr u64 MIX = SQUARE, EXPAND = MIX + SQUARE, CONTRACT = EXPAND + OBLONG, EACH = CONTRACT + OBLONG;
constexpr u64 OUTPUT = LAYER + LAYERS * EACH;
// Where each bias begins.
constexpr u32 SELF_BIAS = 4 * VOCABULARY * WIDTH, LAYER_BIAS = SELF_BIAS + 2 * WIDTH, EACH_BIAS = 3 * WIDTH + INNER;
constexpr u32 OUTPUT_BIAS = LAYER_BIAS + LAYERS * EACH_BIAS;

constexpr u32 larger_of(u32 a, u32 b) { return a > b ? a : b; }
// Bytes of a row of queries, mixed values, the inner layer, or logits, which take turns.
constexpr u32 WIDE = larger_of(larger_of(pitch_of(WIDTH), pitch_of(INNER)), 4 * LOGITS + 16);

struct alignas(8) Moments {
    float sum, squares;
};

// Writes the rows less their mean, over their standard deviation.
DEVICE void normalize(const Sums<2> &x, Moments *moments, u8 *rows, float epsilon) {
    const u32 warp = threadIdx.x >> 5;
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            Moments own = {x[0][r][e] + x[0][r][e + 1] + x[1][r][e] + x[1][r][e + 1], 0};
#pragma unroll
            for (int i = 0; i < 4; i++) own.squares = fused(x[i >> 1][r][e + (i & 1)], x[i >> 1][r][e + (i & 1)], own.squares);
#pragma unroll
            for (u32 other = 1; other < 4; other *= 2) {
                own.sum += shuffle_xor(own.sum, other);
                own.squares += shuffle_xor(own.squares, other);
            }
            if ((lane_id() & 3) == 0) moments[warp * ROWS + row_of(r, e)] = own;
        }
    sync_threads();
    Sums<2> normed;
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            Moments all = {0, 0};
            for (u32 i = 0; i < WARPS; i++) {
                Moments part = moments[i * ROWS + row_of(r, e)];
                all.sum += part.sum, all.squares += part.squares;
            }
            float mean = all.sum * (1.f / WIDTH);
            float factor = near_reciprocal_root(larger(all.squares * (1.f / WIDTH) - mean * mean, 0) + epsilon);
#pragma unroll
            for (int i = 0; i < 4; i++) normed[i >> 1][r][e + (i & 1)] = (x[i >> 1][r][e + (i & 1)] - mean) * factor;
        }
    store<WIDTH>(rows, 16 * warp, normed);
    sync_threads();
}

// The token of the largest logit of a row, the first of equals.
DEVICE u32 likeliest(const float *logits) {
    float most = -3e38f;
    u32 token = END;
    for (u32 v = lane_id(); v < VOCABULARY; v += 32)
        if (logits[v] > most) most = logits[v], token = v;
#pragma unroll
    for (u32 other = 1; other < 32; other *= 2) {
        float theirs = shuffle_xor(most, other);
        u32 their_token = shuffle_xor(token, other);
        if (theirs > most || (theirs == most && their_token < token)) most = theirs, token = their_token;
    }
    return token;
}

// memory: keys and values of each layer, [rows, SOURCE, LAYERS, 2, WIDTH]. bridged: what the first hidden state is the
// hyperbolic tangent of, and the first cells, [rows, 2, WIDTH]. cache: room for [rows, TARGET, 2, WIDTH]. tokens: [rows,
// TARGET], zero behind the end.
KERNEL(THREADS, BLOCKS)
decode(const u8 *matrices, const float *vectors, const u8 *source, const u8 *memory, const u8 *bridged, u8 *cache, u8 *tokens,
       i32 rows, float epsilon) {
    SHARED_MEMORY(shared);
    const u32 lane = lane_id(), warp = threadIdx.x >> 5, column = 16 * warp;
    const i64 first = (i64)blockIdx.x * ROWS;
    u8 *normed = shared, *hidden = normed + ROWS * pitch_of(WIDTH), *wide = hidden + ROWS * pitch_of(WIDTH);
    float *all_cells = (float *)(wide + ROWS * WIDE);
    Moments *moments = (Moments *)(all_cells + ROWS * WIDTH);
    // Of each row: tokens of its source, 0 once its target has ended; and its latest token.
    u32 *lengths = (u32 *)(moments + WARPS * ROWS), *latest = lengths + ROWS;
    // Steps that some row waits for.
    u32 *wanted = latest + ROWS;

    if (threadIdx.x == 0) *wanted = 0;
    sync_threads();
    for (u32 row = warp; row < ROWS; row += WARPS) {
        bool there = first + row < rows;
        u32 length = there ? length_of(source + (first + row) * SOURCE) : 0;
        if (lane == 0) {
            lengths[row] = length, latest[row] = START;
            if (length) atomic_max(wanted, 1);
        }
        for (u32 i = lane; there && i < TARGET; i += 32) tokens[(first + row) * TARGET + i] = 0;
    }
    Sums<2> x;
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                i64 row = first + row_of(r, e);
                u32 pairs[2] = {};
                const u8 *from = bridged + (row * 2 * WIDTH + column + 8 * c + 2 * (lane & 3)) * 2;
                for (int i = 0; i < 2; i++)
                    if (row < rows) pairs[i] = *(const u32 *)(from + i * 2 * WIDTH);
                for (int i = 0; i < 2; i++) {
                    x[c][r][e + i] = hyperbolic_tangent(from_bf16((u16)(pairs[0] >> 16 * i)));
                    all_cells[((c * TILES + r) * 4 + e + i) * THREADS + threadIdx.x] = from_bf16((u16)(pairs[1] >> 16 * i));
                }
            }
    store<WIDTH>(hidden, column, x);
    sync_threads();

    for (u32 step = 0; step < TARGET && step < *wanted; step++) {
        u32 own[TILES][2];
#pragma unroll
        for (int r = 0; r < TILES; r++)
            for (int half = 0; half < 2; half++) own[r][half] = latest[row_of(r, 2 * half)];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float cells[TILES][4];
#pragma unroll
            for (int i = 0; i < 4 * TILES; i++)
                cells[i >> 2][i & 3] = all_cells[(c * TILES * 4 + i) * THREADS + threadIdx.x];
            lstm_step<WIDTH>(x[c], cells, matrices, vectors, own, hidden, column + 8 * c);
#pragma unroll
            for (int i = 0; i < 4 * TILES; i++)
                all_cells[(c * TILES * 4 + i) * THREADS + threadIdx.x] = cells[i >> 2][i & 3];
        }
        normalize(x, moments, normed, epsilon);
        store<WIDTH>(hidden, column, x);

        const float *bias = vectors + SELF_BIAS;
#pragma unroll 1
        for (u32 part = 0; part < 3; part++) {
            Sums<2> d = {};
            if (part == 0) add_bias(d, bias, column);
            multiply<WIDTH>(d, matrices + SELF_INPUT, 2 * (part * WARPS + warp), normed);
            if (part == 0) store<WIDTH>(wide, column, d);
            else
#pragma unroll
                for (int i = 0; i < 4 * TILES; i++) {
                    int c = i & 1, r = i >> 2, e = i & 2;
                    u32 row = row_of(r, e), at = column + 8 * c + 2 * (lane & 3);
                    u8 *to = cache + (((first + row) * TARGET + step) * 2 + part - 1) * 2 * WIDTH;
                    if (lengths[row]) *(u32 *)(to + 2 * at) = to_bf16x2(d[c][r][e], d[c][r][e + 1]);
                }
        }
        sync_threads();
        for (u32 row = warp; row < ROWS; row += WARPS) {
            const u8 *keys = cache + (first + row) * TARGET * 4 * WIDTH;
            if (lengths[row]) attend(wide + row * pitch_of(WIDTH), keys, keys + 2 * WIDTH, 4 * WIDTH, step + 1);
        }
        sync_threads();
        add_bias(x, bias + WIDTH, column);
        multiply<WIDTH>(x, matrices + SELF_OUTPUT, 2 * warp, wide);
        normalize(x, moments, normed, epsilon);

        bias = vectors + LAYER_BIAS;
#pragma unroll 1
        for (u32 layer = 0; layer < LAYERS; layer++, bias += EACH_BIAS) {
            const u8 *matrix = matrices + LAYER + layer * EACH;
            {
                Sums<2> d = {};
                add_bias(d, bias, column);
                multiply<WIDTH>(d, matrix, 2 * warp, normed);
                store<WIDTH>(wide, column, d);
            }
            sync_threads();
            for (u32 row = warp; row < ROWS; row += WARPS) {
                const u8 *keys = memory + ((first + row) * SOURCE * LAYERS + layer) * 4 * WIDTH;
                u8 *query = wide + row * pitch_of(WIDTH);
                if (lengths[row]) attend(query, keys, keys + 2 * WIDTH, LAYERS * 4 * WIDTH, lengths[row]);
            }
            sync_threads();
            add_bias(x, bias + WIDTH, column);
            multiply<WIDTH>(x, matrix + MIX, 2 * warp, wide);
            normalize(x, moments, normed, epsilon);
#pragma unroll 1
            for (u32 pair = warp; pair < INNER / 16; pair += WARPS) {
                Sums<2> d = {};
                add_bias(d, bias + 2 * WIDTH, 16 * pair);
                multiply<WIDTH>(d, matrix + EXPAND, 2 * pair, normed);
#pragma unroll
                for (int i = 0; i < 8 * TILES; i++) {
                    float &v = d[i & 1][i >> 3][i >> 1 & 3];
                    v = larger(v, 0);
                }
                store<INNER>(wide, 16 * pair, d);
            }
            sync_threads();
            add_bias(x, bias + 2 * WIDTH + INNER, column);
            multiply<INNER>(x, matrix + CONTRACT, 2 * warp, wide);
            normalize(x, moments, normed, epsilon);
        }

        float *logits = (float *)wide;
#pragma unroll 1
        for (u32 tile = warp; tile < LOGITS / 8; tile += WARPS) {
            Sums<1> d = {};
            add_bias(d, vectors + OUTPUT_BIAS, 8 * tile);
            multiply<WIDTH>(d, matrices + OUTPUT, tile, normed);
#pragma unroll
            for (int i = 0; i < 4 * TILES; i++)
                logits[row_of(i >> 2, i & 3) * (WIDE / 4) + 8 * tile + 2 * (lane & 3) + (i & 1)] = d[0][i >> 2][i & 3];
        }
        sync_threads();
        for (u32 row = warp; row < ROWS; row += WARPS) {
            if (!lengths[row]) continue;
            u32 token = likeliest(logits + row * (WIDE / 4));
            sync_warp();
            if (lane == 0) {
                tokens[(first + row) * TARGET + step] = (u8)token;
                latest[row] = token;
                if (token == END) lengths[row] = 0;
                else atomic_max(wanted, step + 2);
            }
        }
        sync_threads();
    }
}
