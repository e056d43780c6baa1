// Scales of rows and of whole tensors before their elements.
//
// Float sums have one order, the processor's: chunks of 16,384 elements, sixteen lanes by position, a tree, then the
// chunks from first to last.

#define CHUNK 16384
// float64 that a chunk leaves behind.
#define RECORD (CHOOSER == FRACTION ? 8 : 2)

#if GROUPS == GROUPS_TENSOR || GROUPS == GROUPS_ROW || CHOOSER == TWO_LEVELS
#define TILE 1024

#if CHOOSER != MEANS && CHOOSER != TERNARY
// Bits of each group's largest value (of its largest magnitude unless RANGE), and of its lowest one's magnitude, into
// pairs of words that are 0 before. `k` is the length of a group.
KERNEL(THREADS) largest(const Word *x, u32 *words, i64 groups, i64 k) {
    i64 per_group = (k + TILE - 1) / TILE, tiles = groups * per_group;
    i64 warp = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32, warps = (i64)gridDim.x * THREADS / 32;
    i64 held = -1;
    u32 top = 0, low = 0;
    for (i64 tile = warp; tile < tiles + warps; tile += warps) {
        i64 group = tile / per_group;
        // What was found goes out where the next tile is of another group, or there is none.
        if (held >= 0 && (tile >= tiles || group != held)) {
#pragma unroll
            for (u32 i = 16; i > 0; i /= 2) {
                u32 up = shuffle_xor(top, i), down = shuffle_xor(low, i);
                top = top < up ? up : top;
                low = low < down ? down : low;
            }
            if (lane_id() == 0) {
                atomic_max(words + 2 * held, top);
                if (RANGE) atomic_max(words + 2 * held + 1, low);
            }
            top = low = 0;
        }
        if (tile >= tiles) break;
        held = group;
        i64 column = (tile - group * per_group) * TILE + lane_id(), left = k - column;
        const Word *from = x + group * k + column;
#pragma unroll 8
        for (i32 i = 0; i < TILE; i += 32) {
            bool nan;
            float v = cleaned(i < left ? from[i] : (Word)0, nan);
            u32 up = RANGE && v < 0 ? 0 : magnitude(v), down = RANGE && v < 0 ? magnitude(v) : 0;
            top = top < up ? up : top;
            low = low < down ? down : low;
        }
    }
}

#endif

#if CHOOSER == MEANS || CHOOSER == TERNARY || CHOOSER == FRACTION
DEVICE double power_of_two(i32 e) { return double_of((u64)(e + 1023) << 52); }

// What a chunk adds to the sums of stage `stage`: of magnitudes that the levels found so far leave over; of those above
// 0.75 of the mean; or of squared errors with F to F + 7 fraction bits. `k` is the length of a group.
KERNEL(THREADS) sums(const Word *x, const u8 *scales, double *records, i64 groups, i64 k, i32 stage) {
    i64 chunk = ((i64)blockIdx.x * THREADS + threadIdx.x) / LANES, per_group = (k + CHUNK - 1) / CHUNK;
    bool there = chunk < groups * per_group;
    i64 group = there ? chunk / per_group : 0, start = there ? (chunk - group * per_group) * CHUNK : 0, left = k - start;
    i32 count = !there ? 0 : left < CHUNK ? (i32)left : CHUNK;
    u32 lane = threadIdx.x % LANES;
    x += group * k + start;
    double all[RECORD];
#pragma unroll
    for (int i = 0; i < RECORD; i++) all[i] = 0;
#if CHOOSER == FRACTION
    i32 first = (i32)(i8)raw_scale(scales, group, 0);
#elif CHOOSER == MEANS
    float found[LEVELS];
#pragma unroll
    for (int i = 0; i < LEVELS; i++) found[i] = i < stage ? float_of(raw_scale(scales, group, i)) : 0.0f;
#else
    float threshold = stage ? 0.75f * float_of(raw_scale(scales, group, 0)) : -1.0f;
#endif
#pragma unroll 8
    for (i32 i = lane; i < count; i += LANES) {
        bool nan;
        float v = cleaned(x[i], nan);
        if (nan) continue;
#if CHOOSER == FRACTION
#pragma unroll
        for (int j = 0; j < RECORD; j++) {
            double q = round_even((double)v * power_of_two(first + j));
            q = q < (double)LOW ? (double)LOW : q > (double)HIGH ? (double)HIGH : q;
            double error = (double)v - q * power_of_two(-first - j);
            all[j] = all[j] + error * error;
        }
#else
#if CHOOSER == MEANS
#pragma unroll
        for (int j = 0; j < LEVELS; j++)
            if (j < stage) v = v < 0 ? v + found[j] : v - found[j];
#else
        if (!(float_of(magnitude(v)) > threshold)) continue;
#endif
        all[0] = all[0] + (double)float_of(magnitude(v));
        all[1] = all[1] + 1;
#endif
    }
#pragma unroll
    for (int j = 0; j < RECORD; j++)
#pragma unroll
        for (u32 i = LANES / 2; i > 0; i /= 2) all[j] = all[j] + shuffle_xor(all[j], i);
    if (there && lane == 0) {
#pragma unroll
        for (int j = 0; j < RECORD; j++) records[chunk * RECORD + j] = all[j];
    }
}

// Joins the chunks of a group, which is a block's, and makes its scale of stage `stage`. `chunks` of a group.
KERNEL(32) choose_sums(const double *records, u8 *scales, i64 chunks, i32 stage) {
    SHARED(double, held, 32 * RECORD);
    SHARED(double, total, RECORD);
    i64 group = blockIdx.x;
    u32 lane = threadIdx.x;
    records += group * chunks * RECORD;
    double sum = 0;
    for (i64 start = 0; start < chunks; start += 32) {
        i32 count = chunks - start < 32 ? (i32)(chunks - start) : 32;
        for (i32 i = lane; i < count * RECORD; i += 32) held[i] = records[start * RECORD + i];
        sync_warp();
        for (i32 i = 0; i < count && lane < RECORD; i++) sum = sum + held[i * RECORD + lane];
        sync_warp();
    }
    if (lane < RECORD) total[lane] = sum;
    sync_warp();
    if (lane > 0) return;
#if CHOOSER == FRACTION
    i32 first = (i32)(i8)scales[group], best = 0;
    for (i32 i = 1; i < RECORD; i++)
        if (first + i <= 127 && total[i] < total[best]) best = i;
    scales[group] = (u8)(first + best);
#else
    float mean = (float)(total[0] / (total[1] > 1 ? total[1] : 1.0));
    if (mean == 0 && total[0] > 0) mean = float_of(1);
    if (CHOOSER == TERNARY && stage > 0) {
        // All zero stays 0.
        if (float_of(raw_scale(scales, group, 0)) > 0) keep_scale(scales, group, 0, bits_of(mean) > 1 ? bits_of(mean) : 1);
    } else {
        keep_scale(scales, group, CHOOSER == MEANS ? stage : 0, bits_of(mean));
    }
#endif
}
#endif

#if CHOOSER != MEANS && CHOOSER != TERNARY
// Scales, zero points and nvfp4's tensor scale from the words that `largest` found.
KERNEL(THREADS) choose_largest(const u32 *words, u8 *scales, u16 *zeros, float *levels, i64 groups) {
    i64 group = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (group >= groups) return;
    u32 top = words[2 * group];
    (void)scales, (void)zeros, (void)levels;
#if CHOOSER == TWO_LEVELS
    u32 bits = bits_of(float_of(top) / 2688.0f);
    *levels = float_of(top == 0 ? 0 : bits > 1 ? bits : 1);
#elif CHOOSER == SYMMETRIC
    keep_scale(scales, group, 0, scale_bits(top, 0, 0));
#elif CHOOSER == ASYMMETRIC
    u32 low = words[2 * group + 1];
    double span = (double)float_of(top) + (double)float_of(low);
    u32 bits = real_bits(span / (double)QMAX, span == 0);
    keep_scale(scales, group, 0, bits);
    double step = real_scale(bits), zero = step > 0 ? round_even((double)float_of(low) / step) : 0;
    zeros[group] = (u16)(zero > (double)QMAX ? (double)QMAX : zero);
#else
    i32 f = 0;
    double v = float_of(top), number = (double)HIGH;
    if (top) {
        f = (i32)(bits_of(number) >> 52) - (i32)(bits_of(v) >> 52);
        if (v * power_of_two(f) > number) f--;
        f = between(f, -128, 127);
    }
    scales[group] = (u8)f;
#endif
}
#endif
#endif
