// The code nearest to a value. Twin of octavo-core's codec::grid.
//
// Quotients are exact: by a power of two as they are, others in float32 where that cannot matter, else in float64.

#if GRID == FLOAT
// Index of the magnitude nearest to sig * 2^(e - 31), with sig's top bit set and its lowest bit sticky.
DEVICE u32 nearest_index(u32 sig, i32 e) {
    i32 drop = 31 - MANTISSA;
    u32 base = 0;
    if (e >= EMIN) {
        base = (u32)(e - EMIN) << MANTISSA;
    } else {
        drop += EMIN - e;
        if (drop > 32) return 0;
    }
    u64 kept = (u64)sig >> drop, rest = (u64)sig & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    u32 index = base + (u32)kept;
    // Ties go to the even code; denorm's go to the even multiple of the step.
    u32 odd = (EXPLICIT_ONE ? (u32)kept : index) & 1;
    index += rest > half || (rest == half && odd);
    return index < TOP ? index : TOP;
}
DEVICE u32 index_of(float y, i32 exponent) {
    u32 m = magnitude(y);
    if (m == 0) return 0;
    i32 e = (i32)(m >> 23), zeros = leading_zeros(m);
    return e ? nearest_index((m | 0x800000) << 8, e - 127 - exponent) : nearest_index(m << zeros, -118 - zeros - exponent);
}
DEVICE u32 index_of(double y) {
    u64 m = bits_of(y) & 0x7fffffffffffffff;
    if (m < 0x0010000000000000) return 0;
    u64 sig = m << 11 | 1ull << 63;
    return nearest_index((u32)(sig >> 32) | ((u32)sig != 0), (i32)(m >> 52) - 1023);
}
// Codes with an explicit one repeat numbers; an index does not.
DEVICE u32 code_of_index(u32 index, u32 negative) {
#if EXPLICIT_ONE
    if (index >= 2u << MANTISSA) {
        u32 field = (index >> MANTISSA) - 1;
        index = field << (MANTISSA + 1) | 1u << MANTISSA | (index & ((1u << MANTISSA) - 1));
    }
#endif
    return index ? index | negative << (WIDTH - 1) : 0;
}
#endif

#if NARROW_FLOAT
// index_of for a magnitude in the range of normal float32, or one that rounds to zero. `close`: a relative error of 2^-21
// in y might make it another.
DEVICE u32 narrow_index(float y, bool &close) {
    float a = smaller(y, (float)HIGHEST);
    float binade = larger(float_of(bits_of(a) & INFINITE), power(EMIN)), magic = binade * (1.5f * (1 << (23 - MANTISSA)));
    float nearest = (a + magic) - magic, off = float_of(magnitude(a - nearest)), half = binade * power(-MANTISSA - 1);
    close = float_of(magnitude(off - half)) <= binade * power(-20);
    return bits_of(nearest * power(-126 - EMIN)) >> (23 - MANTISSA);
}
#endif

#if GRID <= OFFSET
DEVICE u32 code_of_integer(i32 k) {
#if GRID == SIGNED_MAGNITUDE
    return k < 0 ? SIGN | (u32)-k : (u32)k;
#else
    return (u32)k & MASK;
#endif
}
#endif

// The exact quotient in float64, which never rounds onto a tie that is none.
DEVICE double quotient(float x, const Scale &s) { return s.step == 0 ? 0.0 : (double)x / (double)s.step; }

#if GRID == AFFINE
// The integer whose exact `k * step + offset` is nearest to x; ties go to the even one.
DEVICE i32 nearest_affine(float v, const Scale &s) {
    if (s.step == 0) return 0;
    // Two-sum: `far + error` is the exact distance to the offset. Under a negative step both change their signs.
    double sign = s.step < 0 ? -1.0 : 1.0, x = sign * (double)v, offset = -sign * (double)s.offset;
    double step = sign * (double)s.step, far = x + offset, part = far - x;
    double error = (x - (far - part)) + (offset - part);
    // At most one off; each threshold, half of the step times an odd integer, is a float64.
    double y = round_even(far / step);
    i32 k = (i32)(y < (double)LOW ? (double)LOW : y > (double)HIGH ? (double)HIGH : y);
    double above = ((double)k + 0.5) * step, below = ((double)k - 0.5) * step;
    bool odd = k & 1, even = !odd;
    bool up = far > above || (far == above && (error > 0 || (error == 0 && odd)));
    bool stays = far > below || (far == below && (error > 0 || (error == 0 && even)));
    return up && k < HIGH ? k + 1 : !stays && k > LOW ? k - 1 : k;
}
#endif

#if GRID == SIGNED_LEVELS
// Whether x is not below the exact mean of two numbers that may lie far apart.
DEVICE bool reaches_mean(float v, float a, float b) {
    double lower = a, upper = b, x = 2.0 * (double)v, twice = lower + upper, part = twice - lower;
    double error = (lower - (twice - part)) + (upper - part);
    return x > twice || (x == twice && error <= 0);
}
#endif

// Readies a scale that was loaded for code_of: sums of signed levels in ascending order with the smallest code of each, by
// a network without branches.
DEVICE void prepare(Scale &s) {
#if GRID == SIGNED_LEVELS && LEVELS > 1
    const u32 n = 1u << LEVELS;
#pragma unroll
    for (u32 i = 0; i < n; i++) s.sums[i] = value_of(i, s, nullptr, 0) + 0.0f, s.codes[i] = i;
#pragma unroll
    for (u32 i = 0; i < n; i++) {
#pragma unroll
        for (u32 j = i & 1; j + 1 < n; j += 2) {
            float a = s.sums[j], b = s.sums[j + 1];
            u32 first = s.codes[j], second = s.codes[j + 1];
            bool swap = b < a || (b == a && second < first);
            s.sums[j] = swap ? b : a, s.sums[j + 1] = swap ? a : b;
            s.codes[j] = swap ? second : first, s.codes[j + 1] = swap ? first : second;
        }
    }
#pragma unroll
    for (u32 i = 1; i < n; i++)
        if (s.sums[i] == s.sums[i - 1]) s.codes[i] = s.codes[i - 1];
#else
    (void)s;
#endif
}

// The code nearest to a finite x.
DEVICE u32 code_of(float x, const Scale &s, const float *book) {
    (void)book;
#if GRID == SIGNED_LEVELS && LEVELS == 1
    return !(x >= 0) && s.levels[0] != 0;
#elif GRID == SIGNED_LEVELS
    u32 code = s.codes[0];
#pragma unroll
    for (u32 i = 1; i < 1u << LEVELS; i++)
        if (reaches_mean(x, s.sums[i - 1], s.sums[i])) code = s.codes[i];
    return code;
#elif GRID == AFFINE
    return (u32)nearest_affine(x, s) & MASK;
#elif WIDE
    double y = round_even((double)x * double_of((u64)(1023 - s.exponent) << 52));
    y = y < (double)LOW ? (double)LOW : y > (double)HIGH ? (double)HIGH : y;
    return (u32)(i64)y & MASK;
#elif GRID <= OFFSET && POWER
    float y = x * s.inverse[0] * s.inverse[1];
    if (STEP == STEP_NONE) y *= s.inverse[2];
    y = smaller(larger(y, (float)LOW), (float)HIGH);
#if WIDTH <= 16
    return code_of_integer((i32)(bits_of(y + 12582912.0f) - 0x4b400000));
#else
    return code_of_integer(to_int(y));
#endif
#elif GRID <= OFFSET
    float q = bound(x * s.inverse[0], 262144.0f), k = round_even(q), left = q - k;
    // Close to a tie, or at an extreme scale.
    if (RARE(!s.exact || magnitude(left) > bits_of(0.5f - (2e-7f + float_of(magnitude(q)) * 2.5e-7f)))) {
        double y = quotient(x, s);
        k = (float)round_even(y < -262144.0 ? -262144.0 : y > 262144.0 ? 262144.0 : y);
    }
    return code_of_integer(between(to_int(k) + s.zero, LOW, HIGH));
#elif GRID == FLOAT && POWER && NARROW_FLOAT
    float y = float_of(magnitude(x)) * s.inverse[0] * s.inverse[1];
    if (STEP == STEP_NONE) y *= s.inverse[2];
    bool close;
    return code_of_index(narrow_index(y, close), bits_of(x) >> 31);
#elif GRID == FLOAT && POWER
    return code_of_index(index_of(x, s.exponent), bits_of(x) >> 31);
#elif GRID == FLOAT
    bool close;
    u32 index = narrow_index(float_of(magnitude(x)) * s.inverse[0], close);
    if (RARE(close || !s.exact)) index = index_of(quotient(x, s));
    return code_of_index(index, bits_of(x) >> 31);
#else
    // The thresholds are means of neighbours; the float32 nearest to them decide wherever they can.
    float q = x * s.inverse[0];
    u32 code = 0;
#pragma unroll
    for (u32 half = 1u << (WIDTH - 1); half > 0; half /= 2) {
        u32 at = code + half;
        if (q > 0.5f * (book[at - 1] + book[at])) code = at;
    }
    bool close = !s.exact;
    if (code > 0) close |= magnitude(q - 0.5f * (book[code - 1] + book[code])) < bits_of(1e-6f);
    if (code < MASK) close |= magnitude(q - 0.5f * (book[code] + book[code + 1])) < bits_of(1e-6f);
    if (RARE(close)) {
        double y = quotient(x, s);
        code = 0;
        for (u32 i = 0; i < MASK; i++) {
            double mean = ((double)book[i] + (double)book[i + 1]) / 2;
            code += y > mean || (y == mean && (i & 1));
        }
    }
    return code;
#endif
}
