// A tile of rows on the bfloat16 tensor cores: products with matrices of weights, and the cell of an LSTM.
//
// Activations lie in shared memory as bfloat16, row after row with 16 bytes between, so that rows that are read together hit
// different banks. A matrix W [N, K] lies in memory as fragments: by tile of 8 rows of W, run of 32 k, lane; a lane's 16
// bytes are b[0] and b[1] of `multiply_bf16` for the first 16 k, then for the second.
//
// A warp computes tiles of 8 columns for all rows at once. With g = lane >> 2 and t = lane & 3, number e of a lane's four
// sums belongs to row g + 8 (e >> 1) of 16 and column 2t + (e & 1) of 8.
//
// TILES: 16 rows each.

#define ROWS (16 * TILES)
#define START 1
#define END 2

template <int COLUMNS> using Sums = float[COLUMNS][TILES][4];

// Bytes from one row of K activations to the next.
constexpr u32 pitch_of(u32 k) { return 2 * k + 16; }

DEVICE u32 row_of(int tile, int e) { return 16 * tile + (lane_id() >> 2) + 8 * (e >> 1); }

// d += rows W^TARGET for tiles `tile`.. of W.
template <int K, int COLUMNS> DEVICE void multiply(Sums<COLUMNS> &d, const u8 *matrix, u32 tile, const u8 *rows) {
    constexpr int RUNS = K / 32;
    // Few rows wait for weights: as many as registers hold are under way at once.
    constexpr int MOST = TILES == 1 ? 16 / COLUMNS : 2, AHEAD = MOST < RUNS ? MOST : RUNS;
    const u32 lane = lane_id();
    const u8 *from = matrix + (u64)tile * RUNS * 512 + 16 * lane;
    const u8 *row = rows + (lane & 15) * pitch_of(K) + (lane >> 4) * 16;
    Quad next[AHEAD][COLUMNS];
#pragma unroll
    for (int run = 0; run < AHEAD; run++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) next[run][c] = load16(from + (c * RUNS + run) * 512);
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
        Quad b[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            b[c] = next[run % AHEAD][c];
            if (run + AHEAD < RUNS) next[run % AHEAD][c] = load16(from + (c * RUNS + run + AHEAD) * 512);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int r = 0; r < TILES; r++) {
                u32 a[4];
                load_matrices(a, row + r * 16 * pitch_of(K) + 64 * run + 32 * half);
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    u32 pair[2] = {half ? b[c].z : b[c].x, half ? b[c].w : b[c].y};
                    multiply_bf16(d[c][r], a, pair);
                }
            }
    }
}

// Adds a number of each column, from `column` on, to all rows.
template <int COLUMNS> DEVICE void add_bias(Sums<COLUMNS> &d, const float *bias, u32 column) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        Pair pair = *(const Pair *)(bias + column + 8 * c + 2 * (lane_id() & 3));
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int e = 0; e < 4; e++) d[c][r][e] += float_of(e & 1 ? pair.y : pair.x);
    }
}

// Rounds sums to the columns of rows of K activations, from `column` on.
template <int K, int COLUMNS> DEVICE void store(u8 *rows, u32 column, const Sums<COLUMNS> &d) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                *(u32 *)(rows + row_of(r, e) * pitch_of(K) + 2 * (column + 8 * c + 2 * (lane_id() & 3))) =
                    to_bf16x2(d[c][r][e], d[c][r][e + 1]);
}

DEVICE float sigmoid(float v) { return near_reciprocal(1 + near_exp2(v * -1.44269504f)); }
DEVICE float hyperbolic_tangent(float v) { return 1 - 2 * near_reciprocal(1 + near_exp2(v * 2.88539008f)); }

// One step of the LSTM for units `column`.. + 7 of all rows: from the table's row of `tokens` (as row_of numbers them) and
// the hidden state's rows. Cells change; returns the new hidden state.
// Rows of the matrix: by 8 units, then gate: enter, forget, leave, candidate. Columns of the table: by gate.
template <int UNITS>
DEVICE void lstm_step(float (&hidden)[TILES][4], float (&cells)[TILES][4], const u8 *matrix, const float *table,
                      const u32 (&tokens)[TILES][2], const u8 *rows, u32 column) {
    Sums<4> d;
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float *from = table + tokens[r][e >> 1] * 4 * UNITS + column + 2 * (lane_id() & 3);
#pragma unroll
            for (int gate = 0; gate < 4; gate++) {
                Pair pair = *(const Pair *)(from + gate * UNITS);
                d[gate][r][e] = float_of(pair.x), d[gate][r][e + 1] = float_of(pair.y);
            }
        }
    multiply<UNITS>(d, matrix, column / 2, rows);
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float enter = sigmoid(d[0][r][e]), forget = sigmoid(d[1][r][e]), leave = sigmoid(d[2][r][e]);
            cells[r][e] = forget * cells[r][e] + enter * hyperbolic_tangent(d[3][r][e]);
            hidden[r][e] = leave * hyperbolic_tangent(cells[r][e]);
        }
}

// Tokens of a source before its padding, counted by a warp.
DEVICE u32 length_of(const u8 *source) {
    u32 length = 0;
    for (u32 first = 0; first < SOURCE; first += 32) {
        u32 at = first + lane_id();
        length += count_ones(ballot(at < SOURCE && source[at < SOURCE ? at : 0] != 0));
    }
    return length;
}
