// y = x W^T for few rows of x, on the int8 tensor cores: W as it is stored, x as two int8 limbs.
//
// For each block of columns x is s (l0 + l1 / 128) with s a power of two, |l0| and |l1| <= 127. One product of 16 rows of
// weights and 8 columns then mixes several blocks and both limbs: column n carries limb n & 1 of block (n >> 1) % BLOCKS of
// row (n >> 1) / BLOCKS of x, and zeros where a lane's columns belong to another block, which keeps the sums apart. They
// are exact; each is scaled in float32 and added up. Float32 inputs have a second pair of limbs, 2^-14 of the first: PAIRS
// rows of limbs for each row of x.
//
// M: rows of x, at most. X: its dtype. UNIT: a byte counts 2^UNIT. UNSIGNED: bytes have no sign.
// ZEROS: numbers are codes minus a zero point. INSIDE: every block makes its own limbs, in shared memory; else `split` has made them.
// ONE: all rows share one scale (and zero point).

#define WARPS 8
// Columns that share a limb's scale, and their number in 128.
#define SHARE (GROUP == 0 || GROUP >= 128 ? 128 : GROUP)
#define SHARES (128 / SHARE)
// Blocks and rows of x that the columns of a product tell apart; products with sums of their own.
#define BLOCKS (SHARES > 4 ? 4 : SHARES)
#define ROWS (4 / BLOCKS)
#define SETS (SHARES > 4 ? SHARES / 4 : 1)
#define LIMB_ROWS (M * PAIRS)
#define TURNS ((LIMB_ROWS + ROWS - 1) / ROWS)

// Which product's sums run i adds to, and which block it is there. Two runs make half of a lane's columns.
DEVICE int set_of(int i) { return SHARE == 16 ? i >> 1 : SHARE == 8 ? i : 0; }
DEVICE u32 place_of(u32 t, int i) { return SHARE <= 16 ? t : run_start(t, i) / SHARE; }
// The block of 128 columns that place `q` of product `set` is.
DEVICE u32 block_of(u32 q, int set) {
    if constexpr (SHARE == 16) return WIDTH == 8 ? 4 * set + q : 2 * q + set;
    if constexpr (SHARE == 8) return WIDTH == 8 ? 8 * (set >> 1) + 2 * q + (set & 1) : 4 * q + set;
    return q;
}

// Bytes from one plane of limbs to the next; reads of two planes hit different banks.
DEVICE u32 plane_bytes(u32 chunks) { return 128 * chunks + (WIDTH == 8 ? 64 : 16); }

// The limbs of `rows` rows of x, `chunks` times 128 columns from `first` on; zeros beyond, up to M rows. A thread makes eight columns.
DEVICE void make_limbs(const void *x, u32 rows, i64 k, u32 first, u32 chunks, u8 *planes, float *shares, u32 *sums, u32 thread, u32 threads) {
    u32 total = M * chunks * 16;
    for (u32 start = 0; start < total; start += threads) {
        u32 at = start + thread, run = at % (16 * chunks), m = at / (16 * chunks);
        bool there = at < total, real = there && m < rows;
        float v[8];
        u32 most = 0;
        for (int i = 0; i < 8; i++) {
            i64 column = 128ll * first + 8 * run + i;
            v[i] = real && column < k ? value_at<X>(x, m * k + column) : 0;
            u32 magnitude = bits_of(v[i]) & 0x7fffffff;
            most = magnitude > most ? magnitude : most;
        }
        for (u32 other = 1; other < SHARE / 8; other *= 2) {
            u32 theirs = shuffle_xor(most, other);
            most = theirs > most ? theirs : most;
        }
        // 2^(exponent - 6), not below the smallest normal number.
        u32 exponent = most >> 23 < 7 ? 7 : most >> 23;
        float inverse = float_of((260 - exponent) << 23);
        if (exponent == 255) inverse = 0;
        u32 words[2 * PAIRS][2] = {};
        i32 totals[2 * PAIRS] = {};
        for (int i = 0; i < 8; i++) {
            float rest = v[i] * inverse;
            int place = EVEN_ODD ? 4 * (i & 1) + (i >> 1) : i;
            for (int l = 0; l < 2 * PAIRS; l++) {
                float limb = larger(smaller(round_even(rest), 127.f), -127.f);
                rest = (rest - limb) * 128.f;
                words[l][place >> 2] |= (u32)(to_int(limb) & 255) << 8 * (place & 3);
                totals[l] += to_int(limb);
            }
        }
        if constexpr (ZEROS)
            for (u32 other = 1; other < SHARE / 8; other *= 2)
                for (int l = 0; l < 2 * PAIRS; l++) totals[l] += shuffle_xor(totals[l], other);
        if (!there) continue;
        for (u32 l = 0; l < 2 * PAIRS; l++)
            *(Pair *)(planes + (2 * PAIRS * m + l) * plane_bytes(chunks) + 8 * run) = Pair{words[l][0], words[l][1]};
        if (8 * run % SHARE == 0) {
            float s = float_of(exponent == 255 ? 0x7fc00000 : (exponent - 6) << 23);
            for (int pair = 0; pair < PAIRS; pair++) {
                u32 share = (PAIRS * m + pair) * chunks * SHARES + 8 * run / SHARE;
                shares[share] = times_power(s, UNIT - 14 * pair);
                if constexpr (ZEROS) sums[share] = (u32)(totals[2 * pair] & 0xffff) | (u32)totals[2 * pair + 1] << 16;
            }
        }
    }
}

DEVICE u64 limbs_bytes(u32 chunks) { return 2ull * LIMB_ROWS * plane_bytes(chunks); }

// Limbs of the whole of x.
KERNEL(256) split(const void *x, u8 *limbs, i32 m, i64 k) {
    u32 chunks = (u32)((k + 127) / 128);
    float *shares = (float *)(limbs + limbs_bytes(chunks));
    u32 *sums = (u32 *)(shares + LIMB_ROWS * chunks * SHARES);
    wait_for_predecessor();
    make_limbs(x, m, k, 0, chunks, limbs, shares, sums, blockIdx.x * 256 + threadIdx.x, gridDim.x * 256);
    release_successor();
}

// 16 rows of weights, and the chunks of 128 columns of one of gridDim.y parts. A part writes its sums to `parts`, where there
// are several; else the result to `out`.
KERNEL(256, SHARE == 8 ? 1 : 2) multiply(const u8 *codes, const u8 *scales, const u8 *zeros, const float *level, const void *x, const void *bias,
                     i32 bias_type, void *out, float *parts, i32 x_rows, i32 n, i64 k, i32 part_chunks) {
    SHARED_MEMORY(shared);
    const u32 lane = lane_id(), warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const u32 all = (u32)((k + 127) / 128), first = blockIdx.y * part_chunks;
    const u32 end = first + part_chunks < all ? first + part_chunks : all, chunks = INSIDE ? end - first : all;
    const i64 row_bytes = (k * WIDTH + 7) / 8;
    const i64 groups = GROUP == 0 ? 1 : (k + GROUP - 1) / GROUP;
    const u32 zero_bytes = ONE ? (WIDTH + 7) / 8 : (u32)((groups * WIDTH + 7) / 8);
    const i64 row0 = 16ll * blockIdx.x + g;
    const u8 *table = nullptr;
#if UNPACK == TABLE
    SHARED(u32, table_words, 64);
    load_table(table_words);
    table = (const u8 *)table_words;
#endif

    const u8 *rows[2];
    u32 next[2][WIDTH];
    for (int r = 0; r < 2; r++) {
        rows[r] = row0 + 8 * r < n ? codes + (row0 + 8 * r) * row_bytes : nullptr;
        if (first + warp < end) load_codes(next[r], rows[r], first + warp, t, row_bytes);
    }
    // The weights are under way; x may come from the kernel before.
    wait_for_predecessor();
    const u8 *planes = (const u8 *)x;
    if constexpr (INSIDE) {
        float *own = (float *)(shared + limbs_bytes(chunks));
        make_limbs(x, x_rows, k, first, chunks, shared, own, (u32 *)(own + LIMB_ROWS * chunks * SHARES), threadIdx.x, 256);
        planes = shared;
    }
    sync_threads();
    const float *shares = (const float *)(planes + limbs_bytes(chunks));
    const u32 *sums = (const u32 *)(shares + LIMB_ROWS * chunks * SHARES);
    const float tensor = SCALE == NV ? *level : 1;
    const u32 column = g >> 1, limb = g & 1, mine = t % BLOCKS;
    float y[TURNS][2] = {};

    for (u32 chunk = first + warp; chunk < end; chunk += WARPS) {
        u32 weights[2][8];
        for (int r = 0; r < 2; r++) {
            unpack_codes(weights[r], next[r], table);
            if (chunk + WARPS < end) load_codes(next[r], rows[r], chunk + WARPS, t, row_bytes);
        }
        float factors[SETS][2];
        i32 offsets[SETS][2] = {};
        for (int s = 0; s < SETS; s++)
            for (int r = 0; r < 2; r++) {
                i64 row = row0 + 8 * r, group = GROUP == 0 ? 0 : (128ll * chunk + SHARE * block_of(mine, s)) / (GROUP ? GROUP : 1);
                bool there = row < n && group < groups;
                factors[s][r] = GROUP == 0 ? 1 : there ? block_scale(scales, row * groups + group, tensor) : 0;
                if constexpr (ZEROS)
                    offsets[s][r] = there ? zero_at(zeros + (ONE ? 0 : row * zero_bytes), (u32)group, zero_bytes) : 0;
            }
        const u32 local = INSIDE ? chunk - first : chunk;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            u32 m = turn * ROWS + column / BLOCKS;
            const u8 *plane = planes + (2 * m + limb) * plane_bytes(chunks) + 128 * local + run_start(t, 0);
            u32 inputs[8];
            for (int half = 0; half < 2; half++) {
                Quad v = {0, 0, 0, 0};
                if (m < LIMB_ROWS && place_of(t, 2 * half) == column % BLOCKS) v = *(const Quad *)(plane + (WIDTH == 8 ? 64 : 16) * half);
                inputs[4 * half] = v.x, inputs[4 * half + 1] = v.y, inputs[4 * half + 2] = v.z, inputs[4 * half + 3] = v.w;
            }
            i32 d[SETS][4] = {};
            for (int i = 0; i < 4; i++) {
                u32 a[4] = {weights[0][2 * i], weights[1][2 * i], weights[0][2 * i + 1], weights[1][2 * i + 1]};
                u32 b[2] = {inputs[2 * i], inputs[2 * i + 1]};
                if constexpr (UNSIGNED) multiply_u8(d[set_of(i)], a, b);
                else multiply_s8(d[set_of(i)], a, b);
            }
            u32 own = turn * ROWS + t / BLOCKS;
            for (int s = 0; s < SETS; s++) {
                u32 share = (own * chunks + local) * SHARES + block_of(mine, s);
                if (own >= LIMB_ROWS) continue;
                float scale = shares[share];
                i32 sum[2] = {};
                if constexpr (ZEROS) sum[0] = (i32)(i16)(sums[share] & 0xffff), sum[1] = (i32)sums[share] >> 16;
                for (int r = 0; r < 2; r++) {
                    float high = (float)(d[s][2 * r] - offsets[s][r] * sum[0]), low = (float)(d[s][2 * r + 1] - offsets[s][r] * sum[1]);
                    y[turn][r] = fused(fused(low, 1.f / 128, high) * scale, factors[s][r], y[turn][r]);
                }
            }
        }
    }

    // Blocks of a row of x lie in neighbouring lanes; then the warps' sums are added in order.
    sync_threads();
    float *of_warps = (float *)shared;
    for (int turn = 0; turn < TURNS; turn++)
        for (int r = 0; r < 2; r++) {
            float v = y[turn][r];
            for (u32 other = 1; other < BLOCKS; other *= 2) v += shuffle_xor(v, other);
            u32 m = turn * ROWS + t / BLOCKS;
            if (mine == 0 && m < LIMB_ROWS) of_warps[(warp * LIMB_ROWS + m) * 16 + g + 8 * r] = v;
        }
    sync_threads();
    release_successor();
    for (u32 i = threadIdx.x; i < M * 16; i += 256) {
        i64 row = 16ll * blockIdx.x + i % 16, m = i / 16;
        float v = 0;
        for (int pair = PAIRS; pair-- > 0;)
            for (u32 w = 0; w < WARPS; w++) v += of_warps[(w * LIMB_ROWS + PAIRS * m + pair) * 16 + i % 16];
        if (row >= n || m >= x_rows) continue;
        if (gridDim.y > 1) parts[(blockIdx.y * M + m) * n + row] = v;
        else {
            v = row_scaled(v, scales, row, ONE);
            v += optional_at(bias, bias_type, row);
            put<X>(out, m * n + row, v);
        }
    }
}

// Adds the sums of all parts, in order.
KERNEL(256) finish(const float *parts, const u8 *scales, const void *bias, i32 bias_type, void *out, i32 x_rows, i32 n, i32 count) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x, size = (i64)M * n;
    wait_for_predecessor();
    if (i >= (i64)x_rows * n) return;
    float v = 0;
    for (i32 part = 0; part < count; part++) v += parts[part * size + i];
    v = row_scaled(v, scales, i % n, ONE);
    v += optional_at(bias, bias_type, i % n);
    put<X>(out, i, v);
}
