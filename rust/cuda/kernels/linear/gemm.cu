// Integer products with many rows of x: tiles of 128 x 128 outputs, 64 columns at a time, four stages under way.
//
// Both factors are K-major. A stage holds 128 rows of 64 bytes of each; piece c of 16 bytes of row r lies at c ^ (r >> 1 & 3),
// so that no eight rows that `load_matrices` reads share a bank. LOAD_X and LOAD: bytes of a copy of x and of W; W of fewer
// than 8 bits is unpacked on the way.

#define TILE 128
#define STEP 64
#define STAGES 4
#define STAGE (2 * TILE * STEP)

DEVICE u32 place_of(u32 row, u32 piece) { return row * STEP + ((piece ^ (row >> 1 & 3)) << 4); }

// 16 codes to shared memory, of which `left` are left in the row; zeros beyond.
template <int load> DEVICE void stage_bytes(u8 *to, const u8 *from, i32 left) {
    u32 count = left < 0 ? 0 : left < 16 ? (u32)left : 16;
    if constexpr (load == 16) copy16(to, from, count);
    else if constexpr (load == 4)
        for (u32 i = 0; i < 16; i += 4) copy4(to + i, count > i ? from + i : from, count < i ? 0 : count - i < 4 ? count - i : 4);
    else {
        u32 words[4] = {};
        for (u32 i = 0; i < 16; i++)
            if (i < count) words[i >> 2] |= (u32)from[i] << 8 * (i & 3);
        *(Quad *)to = Quad{words[0], words[1], words[2], words[3]};
    }
}

DEVICE void stage_weights(u8 *to, const u8 *from, i32 left) {
    if constexpr (WIDTH == 8) stage_bytes<LOAD>(to, from, left);
    else {
        const i32 bytes = (left * WIDTH + 7) / 8;
        u32 packed[(WIDTH + 1) / 2] = {}, words[4] = {};
        for (int i = 0; i < 2 * WIDTH; i++)
            if (i < bytes) packed[i >> 2] |= (u32)from[i] << 8 * (i & 3);
        for (int i = 0; i < 16; i++)
            if (i < left) words[i >> 2] |= (code_at(packed, i) << (8 - WIDTH) & 255) << 8 * (i & 3);
        *(Quad *)to = Quad{words[0], words[1], words[2], words[3]};
    }
}

KERNEL(256, LOAD == 16 && LOAD_X == 16 && WIDTH == 8 ? 2 : 1) gemm(const u8 *x, i64 stride, const u8 *codes, i32 *slices, i32 m, i32 n, i64 k, i32 slice_steps,
                    const float *row_scales, i32 row_step, const float *column_scales, i32 column_step, const void *bias, i32 bias_type,
                    void *out, i32 zero) {
    SHARED_MEMORY(shared);
    const u32 lane = lane_id(), warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    // Eight tiles of rows of x take turns, so that blocks that run together share what the second cache holds.
    const u32 tiles_m = ((u32)m + TILE - 1) / TILE, tiles_n = ((u32)n + TILE - 1) / TILE;
    const u32 band = blockIdx.x / (8 * tiles_n), in_band = blockIdx.x % (8 * tiles_n);
    const u32 height = tiles_m - 8 * band < 8 ? tiles_m - 8 * band : 8;
    const i64 m0 = (i64)(8 * band + in_band % height) * TILE, n0 = (i64)(in_band / height) * TILE;
    const i64 row_bytes = (k * WIDTH + 7) / 8;
    const u32 all = (u32)((k + STEP - 1) / STEP), first = blockIdx.y * slice_steps;
    const u32 end = first + slice_steps < all ? first + slice_steps : all;

    // A thread copies the same piece of two rows of each factor, step after step; rows that are not there have no columns.
    const u32 piece = threadIdx.x & 3, places[2] = {place_of(threadIdx.x >> 2, piece), place_of(64 + (threadIdx.x >> 2), piece)};
    const u8 *of_x[2], *of_w[2];
    bool in_x[2], in_w[2];
    for (u32 i = 0; i < 2; i++) {
        i64 row = m0 + 64 * i + (threadIdx.x >> 2), column = n0 + 64 * i + (threadIdx.x >> 2);
        in_x[i] = row < m, in_w[i] = column < n;
        of_x[i] = x + (in_x[i] ? row : 0) * stride + 16 * piece;
        of_w[i] = codes + (in_w[i] ? column : 0) * row_bytes + 2 * WIDTH * piece;
    }
    wait_for_predecessor();
    auto stage = [&](u32 step) {
        u8 *to = shared + (step - first) % STAGES * STAGE;
        i32 left = (i32)k - (i32)(step * STEP + 16 * piece);
        for (u32 i = 0; i < 2; i++) {
            i32 of_row = in_x[i] ? left : 0, of_column = in_w[i] ? left : 0;
            stage_bytes<LOAD_X>(to + places[i], of_row > 0 ? of_x[i] + step * STEP : x, of_row);
            stage_weights(to + TILE * STEP + places[i], of_column > 0 ? of_w[i] + step * (STEP / 8 * WIDTH) : codes, of_column);
        }
    };
    for (u32 i = 0; i < STAGES - 1; i++) {
        if (first + i < end) stage(first + i);
        commit_copies();
    }

    const u32 warp_m = 64 * (warp & 1), warp_n = 32 * (warp >> 1);
    i32 d[4][4][4] = {};
    for (u32 step = first; step < end; step++) {
        wait_copies<STAGES - 2>();
        sync_threads();
        if (step + STAGES - 1 < end) stage(step + STAGES - 1);
        commit_copies();
        const u8 *tile_x = shared + (step - first) % STAGES * STAGE, *tile_w = tile_x + TILE * STEP;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 a[4][4], b[2][4];
            for (u32 i = 0; i < 4; i++) load_matrices(a[i], tile_x + place_of(warp_m + 16 * i + (lane & 15), 2 * half + (lane >> 4)));
            for (u32 j = 0; j < 2; j++)
                load_matrices(b[j], tile_w + place_of(warp_n + 16 * j + (lane & 7) + (lane >> 4) * 8, 2 * half + (lane >> 3 & 1)));
            for (u32 i = 0; i < 4; i++)
                for (u32 j = 0; j < 4; j++) {
                    u32 pair[2] = {b[j >> 1][2 * (j & 1)], b[j >> 1][2 * (j & 1) + 1]};
                    multiply_s8(d[i][j], a[i], pair);
                }
        }
    }
    release_successor();
    // Sums change places in the stages, where a row takes 512 bytes: a warp then writes whole rows.
    wait_copies<0>();
    sync_threads();
    auto sums_at = [&](u32 row, u32 column) { return (i32 *)shared + row * TILE + (column ^ (row & 7) << 2); };
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 e = 0; e < 4; e += 2) {
                u32 row = warp_m + 16 * i + g + 4 * e, column = warp_n + 8 * j + 2 * t;
                *(Pair *)sums_at(row, column) = Pair{(u32)d[i][j][e], (u32)d[i][j][e + 1]};
            }
    sync_threads();
    const Outputs outputs = {row_scales, column_scales, row_step, column_step, bias, bias_type, out, zero};
    const i64 column = n0 + 4 * lane;
    const i32 there = column < n ? (n - column < 4 ? (i32)(n - column) : 4) : 0;
    const bool split = gridDim.y > 1;
    Column columns[4];
    for (i32 c = 0; c < 4; c++) columns[c] = column_at(outputs, c < there ? column + c : 0);
#pragma unroll 1
    for (u32 row = warp; row < TILE && m0 + row < m; row += 8) {
        const Quad sums = *(const Quad *)sums_at(row, 4 * lane);
        const i32 four[4] = {(i32)sums.x, (i32)sums.y, (i32)sums.z, (i32)sums.w};
        if (split) {
            write_four(slices + (blockIdx.y * (i64)m + m0 + row) * n + column, four, there);
            continue;
        }
        const float scale = row_scale(outputs, m0 + row);
        Element values[4];
        for (i32 c = 0; c < 4; c++) values[c] = finished(four[c], scale, columns[c], zero);
        write_four((Element *)out + (m0 + row) * n + column, values, there);
    }
}
