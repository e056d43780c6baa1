// y = x W^T for some rows of x, on the bfloat16 tensor cores: decoded weights and inputs as sums of bfloat16 limbs.
//
// The twin of octavo-core's linear/bf16_limbs.rs. A float32 is the sum of three bfloat16 limbs: its upper eight bits, the next,
// the last. Weights have as many limbs as the significant bits of element and block scale need; what a whole row or tensor is
// multiplied with waits for the end. Products of limbs whose indices add up to LIMIT or more are left out.
//
// A block takes 128 rows of weights, 16 a warp, and 8 TILES rows of x, whose next chunks of 128 columns come to shared memory
// in the background.
//
// NUMBER: BYTE, codes are bytes of integers (UNSIGNED or not) that count 2^UNIT; MINI, codes are minifloats of MANTISSA bits
// whose top is SPECIALS (0 finite, 1 NaN, 2 infinite and NaN), moved to float32 and times 2^UNIT; BOOK, NUMBERS looked up.
// X: dtype. X_LIMBS, W_LIMBS: limbs. ZEROS, ONE: as for int8 limbs.

#define BYTE 0
#define MINI 1
#define BOOK 2
#define STAGES 3
#define ROWS (8 * TILES)
#define STAGE (X_LIMBS * ROWS * 256)

#if NUMBER == BOOK
static __device__ const u32 NUMBERS_STORE[] = {NUMBERS};
#endif

DEVICE float upper(float v) { return float_of(bits_of(v) & 0xffff0000); }
// The upper halves of two floats.
DEVICE u32 upper_halves(float low, float high) { return bytes_of(bits_of(low), bits_of(high), 0x7632); }

// Where run `i` of lane t of a row of x lies among its 16: what a quarter of a warp reads hits every bank once.
DEVICE u32 slot_of(u32 t, u32 i, u32 row) { return (4 * i + t) ^ (row & 1) << 2; }

// Limbs of all rows of x in the order of the stages: by chunk, limb, row, run. A thread makes one run of eight columns.
KERNEL(256) split(const void *x, u8 *to, i32 m, i32 rows, i64 k) {
    i64 at = blockIdx.x * 256ll + threadIdx.x;
    i64 run = at % 16, row = at / 16 % rows, chunk = at / 16 / rows;
    wait_for_predecessor();
    if (chunk >= (k + 127) / 128) return;
    u32 t = WIDTH == 8 ? run >> 1 & 3 : run >> 2, i = WIDTH == 8 ? 2 * (run >> 3) + (run & 1) : run & 3;
    float v[8];
    for (int e = 0; e < 8; e++) {
        i64 column = 128 * chunk + 8 * run + e;
        v[e] = row < m && column < k ? value_at<X>(x, row * k + column) : 0;
    }
    // Stages of a block's rows lie together.
    i64 group = row / ROWS, own = row % ROWS, chunks = (k + 127) / 128;
    for (int limb = 0; limb < X_LIMBS; limb++) {
        Quad q = {upper_halves(v[0], v[1]), upper_halves(v[2], v[3]), upper_halves(v[4], v[5]), upper_halves(v[6], v[7])};
        store16(to + (group * chunks + chunk) * STAGE + (limb * ROWS + own) * 256 + slot_of(t, i, own) * 16, q);
        for (int e = 0; e < 8; e++) v[e] -= upper(v[e]);
    }
    release_successor();
}

// The number of code `i` of a lane's, at scale 1.
DEVICE float number_at(const u32 (&words)[WIDTH], int i, const float *book) {
    u32 code = code_at(words, i);
#if NUMBER == BYTE
    // 2^23 + the byte, whose sign was turned over where it has one.
    u32 byte = (UNSIGNED ? code : code ^ 0x80) & 0xff;
    float v = float_of(0x4b000000 | byte) - (UNSIGNED ? 8388608.f : 8388736.f);
    // The scales of blocks have the unit in them.
    return GROUP ? v : v * float_of((u32)(UNIT + 127) << 23);
#elif NUMBER == MINI
    u32 magnitude = code & ((1 << (WIDTH - 1)) - 1), sign = (code >> (WIDTH - 1) & 1) << 31;
    float v = float_of(magnitude << (23 - MANTISSA));
    v = UNIT > 127 ? times_power(v, UNIT) : v * float_of((u32)(UNIT > 127 ? 0 : UNIT + 127) << 23);
    bool ones = SPECIALS == 1 && magnitude == (1 << (WIDTH - 1)) - 1;
    bool top = SPECIALS == 2 && magnitude >> MANTISSA == (1 << (WIDTH - 1 - MANTISSA)) - 1;
    if (ones || top) v = float_of(ones || (magnitude & ((1 << MANTISSA) - 1)) ? 0x7fc00000 : 0x7f800000);
    return float_of(bits_of(v) | sign);
#else
    return book[code & ((1 << WIDTH) - 1)];
#endif
}

DEVICE float finished(float v, const u8 *scales, const float *level, const void *bias, i32 bias_type, i64 row) {
    v = row_scaled(v, scales, row, ONE);
    if constexpr (SCALE == NV) v *= *level;
    return v + optional_at(bias, bias_type, row);
}

KERNEL(256, 1) multiply(const u8 *codes, const u8 *scales, const u8 *zeros, const float *level, const u8 *x, const void *bias,
                     i32 bias_type, void *out, float *slices, i32 m, i32 n, i64 k, i32 slice_chunks) {
    SHARED_MEMORY(shared);
    const u32 lane = lane_id(), warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const u32 all = (u32)((k + 127) / 128), first = blockIdx.y * slice_chunks;
    const u32 end = first + slice_chunks < all ? first + slice_chunks : all;
    const i64 row_bytes = (k * WIDTH + 7) / 8, row0 = 128ll * blockIdx.x + 16 * warp + g;
    const i64 groups = GROUP == 0 ? 1 : (k + GROUP - 1) / (GROUP ? GROUP : 1);
    const u32 zero_bytes = ONE ? (WIDTH + 7) / 8 : (u32)((groups * WIDTH + 7) / 8);
    const float *book = nullptr;
#if NUMBER == BOOK
    SHARED(float, numbers, 1 << WIDTH);
    for (u32 i = threadIdx.x; i < 1 << WIDTH; i += 256) numbers[i] = float_of(NUMBERS_STORE[i]);
    book = numbers;
#endif
    const u8 *rows[2], *row_scales[2], *row_zeros[2];
    u32 next[2][WIDTH] = {};
    for (int r = 0; r < 2; r++) {
        // Sums of rows that are not there are not stored.
        i64 row = row0 + 8 * r < n ? row0 + 8 * r : n - 1;
        rows[r] = kept(codes + row * row_bytes + lane_start(t));
        row_scales[r] = kept(scales + row * groups * SCALE_BYTES);
        row_zeros[r] = kept(zeros + (ONE ? 0 : row * zero_bytes));
        load_codes(next[r], rows[r], first, row_bytes - lane_start(t), first < end);
    }
    wait_for_predecessor();
    const u8 *own_x = x + (i64)blockIdx.z * all * STAGE;
    auto stage = [&](u32 chunk) {
        u8 *to = shared + (chunk - first) % STAGES * STAGE;
        for (u32 i = threadIdx.x; i < STAGE / 16; i += 256) copy16(to + 16 * i, own_x + (i64)chunk * STAGE + 16 * i, 16);
    };
    for (u32 i = 0; i < STAGES - 1; i++) {
        if (first + i < end) stage(first + i);
        commit_copies();
    }
    float d[TILES][4] = {};
    for (u32 chunk = first; chunk < end; chunk++) {
        u32 words[2][WIDTH];
        for (int r = 0; r < 2; r++) {
            for (int i = 0; i < WIDTH; i++) words[r][i] = next[r][i];
            load_codes(next[r], rows[r], chunk + 1, row_bytes - lane_start(t), chunk + 1 < end);
        }
        wait_copies<STAGES - 2>();
        sync_threads();
        if (chunk + STAGES - 1 < end) stage(chunk + STAGES - 1);
        commit_copies();
        const u8 *of_x = shared + (chunk - first) % STAGES * STAGE;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 weights[W_LIMBS][2][4];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                i64 column = 128ll * chunk + run_start(t, i);
                float v[8], factor = 1, offset = 0;
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    if (GROUP ? e == 0 || GROUP % 8 : e == 0) {
                        i64 group = GROUP ? (column + e) / (GROUP ? GROUP : 1) : 0;
                        bool there = WHOLE || group < groups;
                        u32 scale = 0, zero = 0;
                        if constexpr (GROUP != 0) {
                            load_scale(scale, row_scales[r] + group * SCALE_BYTES, there);
                            factor = there ? scale_of(scale, 1) : 0;
#if NUMBER == BYTE
                            factor *= float_of((u32)(UNIT + 127) << 23);
#endif
                        }
                        if constexpr (ZEROS) {
                            load_zero(zero, row_zeros[r], group, zero_bytes, there);
                            offset = there ? zero_of(zero, group) : 0;
                        }
                    }
                    v[e] = number_at(words[r], 8 * i + e, book);
                    if constexpr (ZEROS) v[e] -= offset;
                    if constexpr (GROUP != 0) v[e] *= factor;
                }
#pragma unroll
                for (int limb = 0; limb < W_LIMBS; limb++)
                    for (int e = 0; e < 8; e += 2) {
                        weights[limb][r][e / 2] = upper_halves(v[e], v[e + 1]);
                        v[e] -= upper(v[e]), v[e + 1] -= upper(v[e + 1]);
                    }
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int other = 0; other < X_LIMBS; other++) {
                    u32 row = 8 * tile + g;
                    Quad q = *(const Quad *)(of_x + (other * ROWS + row) * 256 + slot_of(t, i, row) * 16);
                    u32 low[2] = {q.x, q.y}, high[2] = {q.z, q.w};
#pragma unroll
                    for (int limb = 0; limb < W_LIMBS; limb++) {
                        if (limb + other >= LIMIT) continue;
                        const auto &w = weights[limb];
                        u32 a[4] = {w[0][0], w[1][0], w[0][1], w[1][1]}, b[4] = {w[0][2], w[1][2], w[0][3], w[1][3]};
                        multiply_bf16(d[tile], a, low);
                        multiply_bf16(d[tile], b, high);
                    }
                }
        }
    }
    release_successor();
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            i64 own = (i64)blockIdx.z * ROWS + 8 * tile + 2 * t + (e & 1), row = row0 + 8 * (e >> 1);
            if (own >= m || row >= n) continue;
            if (gridDim.y > 1) slices[(blockIdx.y * (i64)m + own) * n + row] = d[tile][e];
            else put<X>(out, own * n + row, finished(d[tile][e], scales, level, bias, bias_type, row));
        }
}

// Adds the sums of all slices of the columns, in order.
KERNEL(256) finish(const float *slices, const u8 *scales, const float *level, const void *bias, i32 bias_type, void *out, i32 m, i32 n, i32 count) {
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x, size = (i64)m * n;
    wait_for_predecessor();
    if (i >= size) return;
    float v = 0;
    for (i32 slice = 0; slice < count; slice++) v += slices[slice * size + i];
    put<X>(out, i, finished(v, scales, level, bias, bias_type, i % n));
}
