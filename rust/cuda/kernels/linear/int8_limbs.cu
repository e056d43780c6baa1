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
// Chunks whose weights a warp has under way.
#define SLOTS 2
// Blocks that a multiprocessor holds at least.
#define RESIDENT (SHARE == 8 || TURNS * SETS >= 8 ? 1 : SHARE == 16 || TURNS > 1 ? 2 : 3)
// Bytes of a chunk of limbs.
#define PLANE 128
#define PLANES (2 * LIMB_ROWS * PLANE)

// Which product's sums run i adds to, and which block it is there. Two runs make half of a lane's columns.
DEVICE int set_of(int i) { return SHARE == 16 ? i >> 1 : SHARE == 8 ? i : 0; }
DEVICE u32 place_of(u32 t, int i) { return SHARE <= 16 ? t : run_start(t, i) / SHARE; }
// The block of 128 columns that place `q` of product `set` is.
DEVICE u32 block_of(u32 q, int set) {
    if constexpr (SHARE == 16) return WIDTH == 8 ? 4 * set + q : 2 * q + set;
    if constexpr (SHARE == 8) return WIDTH == 8 ? 8 * (set >> 1) + 2 * q + (set & 1) : 4 * q + set;
    return q;
}

// Where byte `offset` of a chunk lies in the plane of limb `limb`: reads of both limbs hit different banks.
DEVICE u32 spread(u32 offset, u32 limb) { return offset ^ (limb & 1) * (WIDTH == 8 ? 64 : 16); }

// The power of two of a block of limbs, and what a block's limbs sum up to: 128 times the first and the second.
struct alignas(ZEROS ? 8 : 4) Share {
    float scale;
#if ZEROS
    i32 sum;
#endif
};

// Eight columns of row m of x; zeros beyond.
DEVICE void load_run(float (&v)[8], const void *x, i64 m, i64 k, i64 column, bool aligned) {
    if (X != 0 && WHOLE && aligned) {
        Quad q = load16((const u16 *)x + m * k + column);
        u32 words[4] = {q.x, q.y, q.z, q.w};
        for (int i = 0; i < 8; i++) {
            u16 half = (u16)(words[i / 2] >> 16 * (i & 1));
            v[i] = X == 1 ? from_f16(half) : from_bf16(half);
        }
    } else {
        for (int i = 0; i < 8; i++) v[i] = WHOLE || column + i < k ? value_at<X>(x, m * k + column + i) : 0;
    }
}

// The limbs of `rows` rows of x, `chunks` times 128 columns from `first` on; zeros beyond, up to M rows. A thread makes eight columns.
DEVICE void make_limbs(const void *x, u32 rows, i64 k, u32 first, u32 chunks, u8 *planes, Share *shares, u32 thread, u32 threads) {
    u32 total = M * chunks * 16;
    bool aligned = (u64)x % 16 == 0;
    for (u32 start = 0; start < total; start += threads) {
        u32 at = start + thread, run = at % 16, m = at / 16 % M, chunk = at / 16 / M;
        bool there = at < total;
        float v[8] = {};
        if (there && m < rows) load_run(v, x, m, k, 128ll * (first + chunk) + 8 * run, aligned);
        u32 most = 0;
        for (int i = 0; i < 8; i++) {
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
        for (int i = 0; i < 8; i++) v[i] *= inverse;
        i32 sums[PAIRS] = {};
        for (u32 l = 0; l < 2 * PAIRS; l++) {
            // 3 * 2^22 more, and the last bits of a float are an integer, rounded to even.
            u32 bits[8];
            for (int i = 0; i < 8; i++) {
                float shifted = larger(smaller(v[i], 127.f), -127.f) + 12582912.f;
                v[i] = (v[i] - (shifted - 12582912.f)) * 128.f;
                bits[EVEN_ODD ? 4 * (i & 1) + (i >> 1) : i] = bits_of(shifted);
            }
            u32 words[2];
            for (int i = 0; i < 2; i++)
                words[i] = bytes_of(bytes_of(bits[4 * i], bits[4 * i + 1], 0x40), bytes_of(bits[4 * i + 2], bits[4 * i + 3], 0x40), 0x5410);
            if constexpr (ZEROS) sums[l / 2] = sums[l / 2] * 128 + dot4(words[0], 0x01010101, dot4(words[1], 0x01010101, 0));
            if (there) *(Pair *)(planes + (u64)chunk * PLANES + (2 * PAIRS * m + l) * PLANE + spread(8 * run, l)) = Pair{words[0], words[1]};
        }
        if constexpr (ZEROS)
            for (u32 other = 1; other < SHARE / 8; other *= 2)
                for (int pair = 0; pair < PAIRS; pair++) sums[pair] += shuffle_xor(sums[pair], other);
        if (!there || 8 * run % SHARE) continue;
        float s = float_of(exponent == 255 ? 0x7fc00000 : (exponent - 6) << 23);
        for (int pair = 0; pair < PAIRS; pair++) {
            Share &share = shares[((u64)chunk * LIMB_ROWS + PAIRS * m + pair) * SHARES + 8 * run / SHARE];
            // Sums count 1 / 128; a second pair's keep that, lest the power vanish.
            share.scale = times_power(s, UNIT - (PAIRS == 1 ? 7 : 14 * pair));
#if ZEROS
            share.sum = sums[pair];
#endif
        }
    }
}

// Limbs of the whole of x.
KERNEL(256) split(const void *x, u8 *limbs, i32 m, i64 k) {
    u32 chunks = (u32)((k + 127) / 128);
    wait_for_predecessor();
    make_limbs(x, m, k, 0, chunks, limbs, (Share *)(limbs + (u64)PLANES * chunks), blockIdx.x * 256 + threadIdx.x, gridDim.x * 256);
    release_successor();
}

// What a lane reads of a chunk: codes of rows g and g + 8, and scales and zero points of the blocks whose sums it gets.
struct Slot {
    u32 codes[2][WIDTH];
    u32 scales[SETS][2];
    u32 zeros[SETS][2];
};

// 16 rows of weights, and the chunks of 128 columns of one of gridDim.y slices. A slice writes its sums to `slices`, where there
// are several; else the result to `out`.
KERNEL(256, RESIDENT) multiply(const u8 *codes, const u8 *scales, const u8 *zeros, const float *level, const void *x, const void *bias,
                     i32 bias_type, void *out, float *slices, i32 x_rows, i32 n, i64 k, i32 slice_chunks) {
    SHARED_MEMORY(shared);
    const u32 lane = lane_id(), warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, mine = t % BLOCKS;
    const u32 all = (u32)((k + 127) / 128), first = blockIdx.y * slice_chunks;
    const u32 end = first + slice_chunks < all ? first + slice_chunks : all, chunks = INSIDE ? end - first : all;
    const i64 row_bytes = (k * WIDTH + 7) / 8;
    const i64 groups = GROUP == 0 ? 1 : (k + GROUP - 1) / (GROUP ? GROUP : 1);
    const u32 zero_bytes = ONE ? (WIDTH + 7) / 8 : (u32)((groups * WIDTH + 7) / 8);
    const u8 *table = nullptr;
#if UNPACK == TABLE
    SHARED(u32, table_words, 64);
    load_table(table_words);
    table = (const u8 *)table_words;
#endif
#if SCALE == EXPONENT || SCALE == NV
    // What each scale means: there are but 256.
    SHARED(float, scale_table, 256);
    scale_table[threadIdx.x] = scale_of(threadIdx.x, SCALE == NV ? *level : 1);
#endif

    const u8 *rows[2], *row_scales[2], *row_zeros[2];
    for (int r = 0; r < 2; r++) {
        // Sums of rows that are not there are not stored.
        i64 row = 16ll * blockIdx.x + g + 8 * r < n ? 16ll * blockIdx.x + g + 8 * r : n - 1;
        rows[r] = kept(codes + row * row_bytes + lane_start(t));
        row_scales[r] = kept(scales + (row * groups + block_of(mine, 0)) * SCALE_BYTES);
        row_zeros[r] = kept(zeros + (ONE ? 0 : row * zero_bytes));
    }
    // Of the block whose sums are the lane's.
    auto group_of = [&](u32 chunk, int set) {
        return GROUP > 128 ? chunk / (GROUP / 128) : chunk * SHARES + block_of(mine, set);
    };
    // Nothing happens unless `there`.
    auto fetch = [&](Slot &slot, u32 chunk, bool there) {
        for (int r = 0; r < 2; r++) {
            load_codes(slot.codes[r], rows[r], chunk, row_bytes - lane_start(t), there);
            if constexpr (GROUP != 0)
                for (int s = 0; s < SETS; s++) {
                    u32 group = group_of(chunk, s);
                    bool real = there && (WHOLE || group < groups);
                    if (there && !real) slot.scales[s][r] = slot.zeros[s][r] = 0;
                    u64 at = GROUP > 128 ? group : (u64)chunk * SHARES + block_of(0, s);
                    load_scale(slot.scales[s][r], row_scales[r] + at * SCALE_BYTES, real);
                    if constexpr (ZEROS) load_zero(slot.zeros[s][r], row_zeros[r], group, zero_bytes, real);
                }
        }
    };
    Slot slots[SLOTS] = {};
    for (u32 i = 0; i < SLOTS; i++) fetch(slots[i], first + warp + i * WARPS, first + warp + i * WARPS < end);
    u32 whole_zeros[2] = {};
    if constexpr (ZEROS && GROUP == 0)
        for (int r = 0; r < 2; r++) load_zero(whole_zeros[r], row_zeros[r], 0, zero_bytes, true);

    // The weights are under way; x may come from the kernel before.
    wait_for_predecessor();
    const u8 *planes = (const u8 *)x;
    if constexpr (INSIDE) {
        make_limbs(x, x_rows, k, first, chunks, shared, (Share *)(shared + (u64)PLANES * chunks), threadIdx.x, 256);
        planes = shared;
    }
    sync_threads();
    // Columns of rows of x that are not there repeat another: their sums are not stored. Those of other blocks are zeros.
    const u32 column = g >> 1, limb = g & 1, last = LIMB_ROWS - 1, local = INSIDE ? warp : first + warp;
    const u32 input_row = column / BLOCKS < last ? column / BLOCKS : last, own_row = t / BLOCKS < last ? t / BLOCKS : last;
    const u8 *plane[2], *share = planes + (u64)PLANES * chunks + (((u64)local * LIMB_ROWS + own_row) * SHARES + block_of(mine, 0)) * sizeof(Share);
    u32 own_block[2];
    for (int half = 0; half < 2; half++) {
        plane[half] = planes + (u64)local * PLANES + (2 * input_row + limb) * PLANE + spread(run_start(t, 2 * half), limb);
        own_block[half] = kept((u32)(place_of(t, 2 * half) == column % BLOCKS));
    }
    // Nothing, but the compiler does not know.
    const u32 nothing = kept((u32)x_rows >> 31);
    Quad inputs[2] = {};
    float y[TURNS][2] = {};

    auto multiply_chunk = [&](Slot &slot, u32 chunk, int ahead) {
        u32 weights[2][8];
        float factors[SETS][2];
        i32 offsets[SETS][2] = {};
        for (int r = 0; r < 2; r++) {
            unpack_codes(weights[r], slot.codes[r], table);
            // An operation: a mere copy would be made at the end of the loop, and wait for the loads there.
            if constexpr (WIDTH == 8 && UNPACK != TABLE)
                for (int i = 0; i < 8; i++) weights[r][i] ^= nothing;
            for (int s = 0; s < SETS; s++) {
#if SCALE == EXPONENT || SCALE == NV
                factors[s][r] = scale_table[slot.scales[s][r]];
#else
                factors[s][r] = scale_of(slot.scales[s][r], 1);
#endif
                if constexpr (ZEROS) offsets[s][r] = GROUP == 0 ? zero_of(whole_zeros[r], 0) : zero_of(slot.zeros[s][r], group_of(chunk, s));
            }
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            for (int half = 0; half < 2; half++)
                if (own_block[half]) inputs[half] = *(const Quad *)(plane[half] + ahead * PLANES + 2 * ROWS * turn * PLANE);
            const Quad &low = inputs[0], &high = inputs[1];
            u32 b[4][2] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
            i32 d[SETS][4] = {};
            for (int i = 0; i < 4; i++) {
                u32 a[4] = {weights[0][2 * i], weights[1][2 * i], weights[0][2 * i + 1], weights[1][2 * i + 1]};
                if constexpr (UNSIGNED) multiply_u8(d[set_of(i)], a, b[i]);
                else multiply_s8(d[set_of(i)], a, b[i]);
            }
            for (int s = 0; s < SETS; s++) {
                Share own = ((const Share *)share)[(ahead * LIMB_ROWS + turn * ROWS) * SHARES + block_of(0, s)];
                for (int r = 0; r < 2; r++) {
                    // Below 2^30, in 1 / 128.
                    i32 sum = d[s][2 * r] * 128 + d[s][2 * r + 1];
#if ZEROS
                    sum -= offsets[s][r] * own.sum;
#endif
                    float v = (float)sum;
                    if constexpr (PAIRS == 2) v *= 1.f / 128;
                    y[turn][r] = GROUP == 0 ? fused(v, own.scale, y[turn][r]) : fused(v * own.scale, factors[s][r], y[turn][r]);
                }
            }
        }
        // After all that it replaces is used: the loads go to the same registers. The assembler begins them earlier.
        fetch(slot, chunk + SLOTS * WARPS, chunk + SLOTS * WARPS < end);
    };
    auto multiply_chunks = [&] {
        for (u32 chunk = first + warp;;) {
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                if (chunk >= end) return;
                multiply_chunk(slots[i], chunk, i * WARPS);
                chunk += WARPS;
            }
            for (int half = 0; half < 2; half++) plane[half] += SLOTS * WARPS * PLANES;
            share += SLOTS * WARPS * LIMB_ROWS * SHARES * sizeof(Share);
        }
    };
    multiply_chunks();

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
        if (gridDim.y > 1) slices[(blockIdx.y * M + m) * n + row] = v;
        else {
            v = row_scaled(v, scales, row, ONE);
            v += optional_at(bias, bias_type, row);
            put<X>(out, m * n + row, v);
        }
    }
}

// Adds the sums of all slices, in order.
KERNEL(256) finish(const float *slices, const u8 *scales, const void *bias, i32 bias_type, void *out, i32 x_rows, i32 n, i32 count) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x, size = (i64)M * n;
    wait_for_predecessor();
    if (i >= (i64)x_rows * n) return;
    float v = 0;
    for (i32 slice = 0; slice < count; slice++) v += slices[slice * size + i];
    v = row_scaled(v, scales, i % n, ONE);
    v += optional_at(bias, bias_type, i % n);
    put<X>(out, i, v);
}
