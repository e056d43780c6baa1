// Scales of groups along a row before their elements, for those that do not fit the fused kernel: half a warp each.

#define LANES 16

DEVICE float cleaned(Word w, bool &nan) {
    float v = widen(w);
    nan = is_nan(v);
    return nan ? 0 : bound(v, LARGEST);
}

#if GROUPS == GROUPS_BLOCK
#if BLOCK_EXPONENT
// Squared error of a block under a scale code; float32, sixteen lanes by position, added as a tree.
DEVICE float block_error(const Word *x, i32 count, u32 lane, u32 code, float inverse, float tensor, const float *book) {
    Scale s = resolve(code, tensor);
    float sum = 0;
    for (i32 i = lane; i < count; i += LANES) {
        bool nan;
        float v = cleaned(x[i], nan);
        float error = (v - value_of(code_of(v, s, book), s, book, float_of(LARGEST_F32))) * inverse;
        sum = sum + error * error;
    }
#pragma unroll
    for (u32 i = LANES / 2; i > 0; i /= 2) sum = sum + shuffle_xor(sum, i);
    return sum;
}
#endif

// `mark`: keep the scales that are there, but for blocks that hold NaN.
KERNEL(THREADS, 4) choose_groups(const Word *x, u8 *scales, u16 *zeros, const float *levels, i64 rows, i64 k,
                              i64 groups_per_row, i32 rule, i32 policy, i32 mark) {
    BOOK_OF_BLOCK;
    i64 group = ((i64)blockIdx.x * THREADS + threadIdx.x) / LANES;
    bool there = group < rows * groups_per_row;
    i64 row = there ? group / groups_per_row : 0, column = there ? (group - row * groups_per_row) * BLOCK : 0;
    i64 left = k - column;
    i32 count = !there ? 0 : left < BLOCK ? (i32)left : BLOCK;
    u32 lane = threadIdx.x % LANES, top = 0, low = 0, nans = 0;
    x += row * k + column;
    for (i32 i = lane; i < count; i += LANES) {
        bool nan;
        float v = cleaned(x[i], nan);
        // Both ends of the range with zero in it, as magnitudes, where both are asked for.
        u32 up = RANGE && v < 0 ? 0 : magnitude(v), down = RANGE && v < 0 ? magnitude(v) : 0;
        top = top < up ? up : top;
        low = low < down ? down : low;
        nans |= nan;
    }
#pragma unroll
    for (u32 i = LANES / 2; i > 0; i /= 2) {
        u32 up = shuffle_xor(top, i), down = shuffle_xor(low, i);
        top = top < up ? up : top;
        low = low < down ? down : low;
        nans |= shuffle_xor(nans, i);
    }
    u32 bits = 0;
#if CHOOSER == ASYMMETRIC
    (void)rule, (void)policy, (void)levels, (void)book;
    double span = (double)float_of(top) + (double)float_of(low);
    bits = real_bits(span / (double)QMAX, span == 0);
    double step = real_scale(bits), zero = step > 0 ? round_even((double)float_of(low) / step) : 0;
    if (there && lane == 0) zeros[group] = (u16)(zero > (double)QMAX ? (double)QMAX : zero);
#elif CHOOSER == FULL_RANGE
    (void)rule, (void)policy, (void)levels, (void)book, (void)zeros;
    // Of two values of one magnitude the negative one.
    float extreme = low >= top ? -float_of(low) : float_of(top);
    bits = signed_half((double)(extreme / -(float)QMAX), extreme == 0);
#elif CHOOSER == RANGE_AND_OFFSET
    (void)rule, (void)policy, (void)levels, (void)book, (void)zeros;
    u32 least = signed_half(0.0 - (double)float_of(low), true); // 0 has no sign
    double span = (double)float_of(top) - (double)from_f16((u16)least);
    bits = signed_half((span > 0 ? span : 0) / (double)QMAX, top == 0 && low == 0);
    if (there && lane == 0) keep_scale(scales, group, 1, least);
#else
    (void)zeros, (void)low;
    float tensor = STEP == STEP_E4M3 ? *levels : 0.0f;
    bits = scale_bits(top, tensor, rule);
#if BLOCK_EXPONENT
    if (rule == RULE_MSE) {
        float best = 0;
#if CHOOSER == TWO_LEVELS
        float unit = (float)block_step(bits, tensor), inverse = 1.0f / (unit > 0 ? unit : 1.0f);
#else
        float unit = 1, inverse = power(127 - (i32)bits);
#endif
        u32 chosen = bits;
        const u32 lowest = CHOOSER == TWO_LEVELS;
        // The default code, then the lower, then the higher neighbour.
        for (int i = 0; i < 3; i++) {
            u32 code = i == 0 ? bits : i == 1 ? bits - 1 : bits + 1;
            bool allowed = i == 0 || (i == 1 ? bits > lowest : bits < LARGEST_CODE);
            float error = block_error(x, count, lane, allowed ? code : bits, inverse, tensor, book);
            if (i == 0) {
                best = error < float_of(INFINITE) ? error : float_of(INFINITE);
            } else if (allowed && error < best) {
                best = error;
                chosen = code;
            }
        }
        bits = top == 0 || unit == 0 ? bits : chosen;
    }
    if (policy == POLICY_NAN && STEP == STEP_E8M0 && nans) {
        bits = 255;
    } else if (mark) {
        return;
    }
#endif
#endif
    if (there && lane == 0) keep_scale(scales, group, 0, bits);
}
#endif

#if ZEROS
// Packs the zero points of each line of groups into its bytes.
KERNEL(THREADS) pack_zeros(const u16 *zeros, u8 *out, i64 lines, i64 groups_per_line, i64 bytes_per_line) {
    i64 at = (i64)blockIdx.x * THREADS + threadIdx.x, line = at / bytes_per_line, first = (at - line * bytes_per_line) * 8;
    if (line >= lines) return;
    u32 byte = 0;
    for (i64 bit = 0; bit < 8 && (first + bit) / WIDTH < groups_per_line; bit++)
        byte |= (zeros[line * groups_per_line + (first + bit) / WIDTH] >> (first + bit) % WIDTH & 1u) << bit;
    out[at] = (u8)byte;
}
#endif
