// Integer products with few rows of x: W as it is stored, 16 rows of weights a block, whose warps share the columns.
//
// M: rows of x, at most; a multiple of 8.

#define WARPS 8

KERNEL(256, 2) narrow(const i8 *x, i64 stride, const u8 *codes, i32 *slices, i32 m, i32 n, i64 k, i32 slice_chunks,
                   const float *row_scales, i32 row_step, const float *column_scales, i32 column_step, const void *bias, i32 bias_type,
                    void *out, i32 zero) {
    SHARED(i32, of_warps, WARPS *M * 16);
    const u32 lane = lane_id(), warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const u32 all = (u32)((k + 127) / 128), first = blockIdx.y * slice_chunks;
    const u32 end = first + slice_chunks < all ? first + slice_chunks : all;
    const i64 row_bytes = (k * WIDTH + 7) / 8, row0 = 16ll * blockIdx.x + g;
    const u8 *rows[2];
    u32 next[2][WIDTH] = {};
    for (int r = 0; r < 2; r++) {
        // Sums of rows that are not there are not stored.
        rows[r] = codes + (row0 + 8 * r < n ? row0 + 8 * r : n - 1) * row_bytes + lane_start(t);
        load_codes(next[r], rows[r], first + warp, row_bytes - lane_start(t), first + warp < end);
    }
    wait_for_predecessor();
    i32 d[M / 8][4] = {};
    for (u32 chunk = first + warp; chunk < end; chunk += WARPS) {
        u32 weights[2][8];
        for (int r = 0; r < 2; r++) {
            unpack_codes(weights[r], next[r], nullptr);
            load_codes(next[r], rows[r], chunk + WARPS, row_bytes - lane_start(t), chunk + WARPS < end);
        }
#pragma unroll
        for (int tile = 0; tile < M / 8; tile++) {
            i64 own = 8 * tile + g;
            u32 inputs[8];
            for (int half = 0; half < 2; half++) {
                i64 column = 128ll * chunk + run_start(t, 2 * half);
                Quad v = {0, 0, 0, 0};
                if (own < m && column < stride) v = load16(x + own * stride + column);
                inputs[4 * half] = v.x, inputs[4 * half + 1] = v.y, inputs[4 * half + 2] = v.z, inputs[4 * half + 3] = v.w;
            }
            for (int i = 0; i < 4; i++) {
                u32 a[4] = {weights[0][2 * i], weights[1][2 * i], weights[0][2 * i + 1], weights[1][2 * i + 1]};
                u32 b[2] = {inputs[2 * i], inputs[2 * i + 1]};
                multiply_s8(d[tile], a, b);
            }
        }
    }
    for (int tile = 0; tile < M / 8; tile++)
        for (int i = 0; i < 4; i++) of_warps[(warp * M + 8 * tile + 2 * t + (i & 1)) * 16 + g + 8 * (i >> 1)] = d[tile][i];
    sync_threads();
    release_successor();
    Outputs outputs = {row_scales, column_scales, row_step, column_step, bias, bias_type, out, zero};
    for (u32 i = threadIdx.x; i < M * 16; i += 256) {
        i64 row = 16ll * blockIdx.x + i % 16, own = i / 16;
        i32 sum = 0;
        for (u32 w = 0; w < WARPS; w++) sum += of_warps[w * M * 16 + i];
        if (row >= n || own >= m) continue;
        if (gridDim.y > 1) slices[(blockIdx.y * (i64)m + own) * n + row] = sum;
        else finish_sum(outputs, sum, own, row, n);
    }
}
