// The LSTMs of the encoder, a direction each block: blockIdx.y 0 reads a row from its first token, 1 from its last.
//
// ENCODER: units of a direction. VOCABULARY: tokens. SOURCE: positions of a row.

KERNEL(2 * ENCODER) encode(const u8 *matrices, const float *vectors, const u8 *source, u8 *states, u8 *ends, i32 rows) {
    SHARED_MEMORY(shared);
    const u32 warp = threadIdx.x >> 5, direction = blockIdx.y;
    const i64 first = (i64)blockIdx.x * ROWS;
    const u8 *matrix = matrices + direction * (8 * ENCODER * ENCODER);
    const float *table = vectors + direction * (4 * VOCABULARY * ENCODER);
    u32 *lengths = (u32 *)(shared + 2 * ROWS * pitch_of(ENCODER));
    for (u32 row = warp; row < ROWS; row += ENCODER / 16) {
        u32 length = first + row < rows ? length_of(source + (first + row) * SOURCE) : 0;
        if (lane_id() == 0) lengths[row] = length;
    }
    for (u32 i = threadIdx.x; i < ROWS * pitch_of(ENCODER) / 4; i += 2 * ENCODER) ((u32 *)shared)[i] = 0;
    sync_threads();
    u32 steps = 0;
    for (u32 row = 0; row < ROWS; row++) steps = lengths[row] > steps ? lengths[row] : steps;

    Sums<2> hidden, cells = {};
    for (u32 step = 0; step < steps; step++) {
        u32 positions[TILES][2], tokens[TILES][2];
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 row = row_of(r, 2 * half), length = lengths[row];
                positions[r][half] = direction ? length - 1 - step : step;
                u32 token = step < length ? source[(first + row) * SOURCE + positions[r][half]] : 0;
                tokens[r][half] = token < VOCABULARY ? token : 0;
            }
        // Two buffers take turns, so that one barrier is enough.
        const u8 *from = shared + step % 2 * (ROWS * pitch_of(ENCODER));
        u8 *to = shared + (step + 1) % 2 * (ROWS * pitch_of(ENCODER));
#pragma unroll
        for (int c = 0; c < 2; c++) lstm_step<ENCODER>(hidden[c], cells[c], matrix, table, tokens, from, 16 * warp + 8 * c);
        store<ENCODER>(to, 16 * warp, hidden);
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int r = 0; r < TILES; r++)
#pragma unroll
                for (int e = 0; e < 4; e += 2) {
                    u32 row = row_of(r, e), column = direction * ENCODER + 16 * warp + 8 * c + 2 * (lane_id() & 3);
                    if (step >= lengths[row]) continue;
                    u32 pair = to_bf16x2(hidden[c][r][e], hidden[c][r][e + 1]);
                    *(u32 *)(states + (((first + row) * SOURCE + positions[r][e >> 1]) * 2 * ENCODER + column) * 2) = pair;
                    if (step + 1 == lengths[row]) *(u32 *)(ends + ((first + row) * 2 * ENCODER + column) * 2) = pair;
                }
        sync_threads();
    }
}
