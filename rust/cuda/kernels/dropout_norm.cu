// Drop-out, residual sum and division by the root mean square; their gradients. One launch each.
//
// A row belongs to WARPS warps, which hold it in registers. A warp takes 128 columns at a time: a half of it 64, of which
// lane l has l, 16 + l, 32 + l and 48 + l, the columns of the four words of one counter of the mask. Sums and the mask are
// those of octavo_core::dropout_norm; the stream has its bits, for what adds up along rows has another order here.
//
// X, BRANCH, STREAM: dtypes as in values.cu. WIDTH: columns. WARPS: of a row. THREADS: of a block.

#define TEAMS (THREADS / 32 / WARPS)
// Blocks of a multiprocessor, so that loads of one are under way while another computes.
#define BLOCKS (512 / THREADS)
#define PIECES ((WIDTH + 128 * WARPS - 1) / (128 * WARPS))

// Philox4x32-10 (Salmon and others 2011) with counter (counter, row, row >> 32, 0).
DEVICE void words_of(u32 (&word)[4], u64 seed, u64 row, u32 counter) {
    u32 a = counter, b = (u32)row, c = (u32)(row >> 32), d = 0, low = (u32)seed, high = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 even = (u64)a * 0xd2511f53u, odd = (u64)c * 0xcd9e8d57u;
        a = (u32)(odd >> 32) ^ b ^ low, b = (u32)odd, c = (u32)(even >> 32) ^ d ^ high, d = (u32)even;
        low += 0x9e3779b9u, high += 0xbb67ae85u;
    }
    word[0] = a, word[1] = b, word[2] = c, word[3] = d;
}

// Where a thread stands: its row of the block, its warp of that row, and its lane.
struct Place {
    u32 team, warp, lane;
};
DEVICE Place place_of_thread() { return Place{threadIdx.x / (32 * WARPS), threadIdx.x / 32 % WARPS, lane_id()}; }
// The counter of a piece, and the first of its four columns, which are 16 apart.
DEVICE u32 counter_of(const Place &at, int piece) {
    return ((piece * WARPS + at.warp) * 2 + (at.lane >> 4)) * 16 + (at.lane & 15);
}
DEVICE u32 column_of(const Place &at, int piece) { return counter_of(at, piece) / 16 * 64 + (at.lane & 15); }

// The sum of a row of the block, for all its threads.
DEVICE float sum_of_row(const Place &at, float v, float *sums) {
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
    if (WARPS == 1) return v;
    sync_threads();
    if (at.lane == 0) sums[at.team * WARPS + at.warp] = v;
    sync_threads();
    float all = 0;
    for (u32 warp = 0; warp < WARPS; warp++) all += sums[at.team * WARPS + warp];
    return all;
}

// threshold: the least word that is kept; 0 keeps all. scale, gain: null for 1.
KERNEL(THREADS, BLOCKS) forward(const void *x, const void *branch, const float *gain, const float *scale, const u64 *seed, i64 rows,
                        float weight, i32 threshold, float epsilon, void *stream, void *normed, float *rates) {
    SHARED(float, sums, THREADS / 32);
    const Place at = place_of_thread();
    const float by = scale ? weight * *scale : weight;
    const u64 key = threshold ? *seed : 0;
    for (i64 first = (i64)blockIdx.x * TEAMS; first < rows; first += (i64)gridDim.x * TEAMS) {
        const i64 row = first + at.team;
        float s[PIECES][4], squares = 0;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            u32 word[4] = {};
            if (threshold) words_of(word, key, (u64)row, counter_of(at, piece));
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const u32 column = column_of(at, piece) + 16 * w;
                s[piece][w] = 0;
                if (row < rows && column < WIDTH) {
                    const i64 i = row * WIDTH + column;
                    const float added = word[w] >= (u32)threshold ? value_at<BRANCH>(branch, i) : 0;
                    put<STREAM>(stream, i, fused(by, added, value_at<X>(x, i)));
                    s[piece][w] = value_at<STREAM>(stream, i);
                }
                squares = fused(s[piece][w], s[piece][w], squares);
            }
        }
        const float rate = near_reciprocal_root(sum_of_row(at, squares, sums) / WIDTH + epsilon);
        if (row >= rows) continue;
        if (at.warp == 0 && at.lane == 0) rates[row] = rate;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const u32 column = column_of(at, piece) + 16 * w;
                const float unit = s[piece][w] * rate;
                if (column < WIDTH) put<STREAM>(normed, row * WIDTH + column, gain ? unit * gain[column] : unit);
            }
    }
}

// sums_of_gain: a row of columns for each row of the grid's blocks, of what adds up to the gradients of the gains.
KERNEL(THREADS, BLOCKS) backward(const void *of_stream, const void *of_normed, const void *stream, const float *rates,
                         const float *gain, const float *scale, const u64 *seed, i64 rows, float weight, i32 threshold,
                         void *of_x, void *of_branch, float *sums_of_gain) {
    SHARED(float, sums, THREADS / 32);
    const Place at = place_of_thread();
    const float by = scale ? weight * *scale : weight;
    const u64 key = threshold ? *seed : 0;
    float *own = sums_of_gain + ((i64)blockIdx.x * TEAMS + at.team) * WIDTH;
    for (i64 first = (i64)blockIdx.x * TEAMS; first < rows; first += (i64)gridDim.x * TEAMS) {
        const i64 row = first + at.team;
        const float rate = row < rows ? rates[row] : 0;
        float unit[PIECES][4], of_unit[PIECES][4], inner = 0;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const u32 column = column_of(at, piece) + 16 * w;
                unit[piece][w] = of_unit[piece][w] = 0;
                if (column >= WIDTH) continue;
                if (row < rows) {
                    const i64 i = row * WIDTH + column;
                    unit[piece][w] = value_at<STREAM>(stream, i) * rate;
                    of_unit[piece][w] = value_at<STREAM>(of_normed, i);
                }
                if (gain) {
                    const float more = of_unit[piece][w] * unit[piece][w];
                    own[column] = first == (i64)blockIdx.x * TEAMS ? more : own[column] + more;
                    of_unit[piece][w] *= gain[column];
                }
                inner = fused(of_unit[piece][w], unit[piece][w], inner);
            }
        inner = sum_of_row(at, inner, sums) / WIDTH;
        if (row >= rows) continue;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            u32 word[4] = {};
            if (threshold) words_of(word, key, (u64)row, counter_of(at, piece));
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const u32 column = column_of(at, piece) + 16 * w;
                if (column >= WIDTH) continue;
                const i64 i = row * WIDTH + column;
                const float across = fused(-unit[piece][w], inner, of_unit[piece][w]);
                const float v = fused(across, rate, value_at<STREAM>(of_stream, i));
                put<X>(of_x, i, v);
                put<BRANCH>(of_branch, i, word[w] >= (u32)threshold ? v * by : 0);
            }
        }
    }
}
