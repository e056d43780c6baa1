// Straight-through gradient of quantize: what comes in where x lies inside the representable range of its group, else 0.
//
// Macros LOWEST and HIGHEST: the numbers at the ends of the range at scale 1; UNBOUNDED 1 where there is no end.

// The largest float32 that is not above v.
DEVICE float not_above(double v) {
    float f = (float)v;
    if ((double)f <= v || f != f) return f;
    u32 b = bits_of(f);
    return float_of(f > 0 ? b - 1 : (b & 0x7fffffff) == 0 ? 0x80000001 : b + 1);
}

// `free`: the scale was chosen so that nothing saturates.
KERNEL(THREADS, 4) gradient(const Word *grad, const Word *x, const u8 *scales, const u8 *zeros, const float *levels, Word *out,
                         i64 rows, i64 k, i64 groups_per_row, i64 zeros_row, i32 wide, i32 free) {
    const Parts p{scales, zeros, levels, rows, k, groups_per_row, zeros_row};
    Place place = locate(p, (i64)blockIdx.x * THREADS + threadIdx.x);
    if (place.count == 0) return;
    bool whole = wide && place.count == UNIT_SIZE, bounded = !free && !UNBOUNDED;
    float v[UNIT_SIZE], g[UNIT_SIZE], tensor = tensor_scale(p);
    load_unit(x + place.at, place.count, whole, v);
    load_unit(grad + place.at, place.count, whole, g);
    float low = -float_of(INFINITE), high = float_of(INFINITE);
    i64 group = -1;
#pragma unroll
    for (int i = 0; i < UNIT_SIZE; i++) {
        i64 own = group_of(p, place.row, place.column + i);
        if (bounded && own != group && i < place.count) {
            Scale s = load_scale(p, place.row, place.column + i, tensor);
#if POWER
            double step = STEP == STEP_E8M0 && is_nan(s.step) ? (double)s.step : double_of((u64)(s.exponent + 1023) << 52);
#else
            double step = s.step;
#endif
#if GRID == AFFINE
            double last = HIGHEST * step + (double)s.offset, begin = LOWEST * step + (double)s.offset;
            high = not_above(last < begin ? begin : last);
            low = -not_above(-(last < begin ? last : begin));
#else
            high = not_above((HIGHEST - (double)s.zero) * step);
            low = -not_above(-((LOWEST - (double)s.zero) * step));
#endif
            group = own;
        }
        float inside = bound(v[i], LARGEST);
        if (!(inside >= low && inside <= high)) g[i] = 0;
    }
    if (whole) {
        store_unit(out + place.at, g, false);
    } else {
#pragma unroll
        for (int i = 0; i < UNIT_SIZE; i++)
            if (i < place.count) out[place.at + i] = narrow(g[i]);
    }
}

#if LEARNS
// Gradient of given scales: sum(grad * slope) / sqrt(n * qmax), with the slope of Learned Step Size Quantization, equations
// 3 to 5. Sums are float64 in an order of their own, which is the same at every call.

#define CHUNK 16384

DEVICE double root(double v) {
#ifdef __CUDACC_RTC__
    return sqrt(v);
#else
    return __builtin_sqrt(v);
#endif
}
DEVICE double step_of(const Scale &s) {
#if POWER
    return double_of((u64)(s.exponent + 1023) << 52);
#else
    return s.step;
#endif
}
// Elements of a group; `k` is the length of a row, or of the tensor where that is the group.
DEVICE i64 length_of(i64 group, i64 k, i64 groups_per_row) {
#if GROUPS == GROUPS_BLOCK
    i64 left = k - group % groups_per_row * BLOCK;
    return left < BLOCK ? left : BLOCK;
#else
    return k;
#endif
}

// A warp for each chunk of a group; `chunks` of each.
KERNEL(THREADS, 4) scale_sums(const Word *grad, const Word *x, const u8 *scales, double *terms, i64 groups, i64 k,
                           i64 groups_per_row, i64 chunks) {
    i64 warp = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (warp >= groups * chunks) return;
    i64 group = warp / chunks, skip = (warp - group * chunks) * CHUNK;
#if GROUPS == GROUPS_BLOCK
    i64 start = group / groups_per_row * k + group % groups_per_row * BLOCK;
#else
    i64 start = group * k;
#endif
    i64 left = length_of(group, k, groups_per_row) - skip;
    i32 count = left < CHUNK ? (i32)left : CHUNK;
    x += start + skip;
    grad += start + skip;
    double step = step_of(resolve(raw_scale(scales, group, 0), 0)), sum = 0;
#pragma unroll 4
    for (i32 i = lane_id(); i < count; i += 32) {
        double y = (double)widen(x[i]) / step;
        double slope = y <= LOWEST ? LOWEST : y >= HIGHEST ? HIGHEST : round_even(y) - y;
        // NaN adds nothing.
        if (slope == slope) sum = sum + (double)widen(grad[i]) * slope;
    }
#pragma unroll
    for (u32 i = 16; i > 0; i /= 2) sum = sum + shuffle_xor(sum, i);
    if (lane_id() == 0) terms[warp] = step == 0 ? 0 : sum;
}

KERNEL(THREADS) scale_join(const double *terms, const u8 *scales, float *out, i64 groups, i64 k, i64 groups_per_row,
                           i64 chunks) {
    i64 group = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (group >= groups) return;
    double sum = 0;
#pragma unroll 8
    for (i64 i = 0; i < chunks; i++) sum = sum + terms[group * chunks + i];
    // Of fraction bits F, with the step 2^-F.
    if (STEP == STEP_FRACTION)
        sum = sum * (-0.693147180559945309417 * step_of(resolve(raw_scale(scales, group, 0), 0)));
    out[group] = (float)(sum / root((double)length_of(group, k, groups_per_row) * HIGHEST));
}
#endif
