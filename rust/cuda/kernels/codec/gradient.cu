// Straight-through gradient of quantise: what comes in where x lies inside the representable range of its group, else 0.
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
KERNEL(THREADS) gradient(const Word *grad, const Word *x, const u8 *scales, const u8 *zeros, const float *levels, Word *out,
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
            high = not_above((HIGHEST - (double)s.zero) * step);
            low = -not_above(-((LOWEST - (double)s.zero) * step));
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
