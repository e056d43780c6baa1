// Rows in units of UNIT_SIZE elements, a unit a thread at a time.

#define THREADS 256

struct Place {
    i64 row, column;
    i64 at; // the first element, counted over the whole tensor
    i32 count;
};

// The unit of that number; `count` is 0 beyond the last.
DEVICE Place locate(const Parts &p, i64 unit) {
    const i32 size = UNIT_SIZE;
    Place place;
    place.row = 0;
    place.column = unit * size;
    i64 per_row = (p.k + size - 1) / size;
    if (p.rows > 1) {
        // Most tensors are small enough for the shorter division.
        if (unit >> 32 == 0 && per_row >> 32 == 0) {
            u32 row = (u32)unit / (u32)per_row;
            place.row = row;
            place.column = (i64)((u32)unit - row * (u32)per_row) * size;
        } else {
            place.row = unit / per_row;
            place.column = (unit - place.row * per_row) * size;
        }
    }
    i64 left = p.k - place.column;
    place.count = place.row >= p.rows || left <= 0 ? 0 : left < size ? (i32)left : size;
    place.at = place.row * p.k + place.column;
    return place;
}

DEVICE void store_unit(Word *out, const float *v, bool evict) {
#pragma unroll
    for (int i = 0; i < UNIT_SIZE * (int)sizeof(Word) / 16; i++) {
#if DTYPE == 0
        Quad q{bits_of(v[4 * i]), bits_of(v[4 * i + 1]), bits_of(v[4 * i + 2]), bits_of(v[4 * i + 3])};
#else
        Quad q{pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7])};
#endif
        evict ? evict16((u8 *)out + 16 * i, q) : store16((u8 *)out + 16 * i, q);
    }
}

// Values of a unit. `wide`: all of them, with loads of 16 bytes.
DEVICE void load_unit(const Word *x, i32 count, bool wide, float (&v)[UNIT_SIZE]) {
    Word words[UNIT_SIZE];
    if (wide) {
#pragma unroll
        for (int i = 0; i < UNIT_SIZE * (int)sizeof(Word) / 16; i++) {
            Quad q = load16((const u8 *)x + 16 * i);
            u32 all[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int j = 0; j < 16 / (int)sizeof(Word); j++)
                words[16 / sizeof(Word) * i + j] = (Word)(all[j * sizeof(Word) / 4] >> (j * sizeof(Word) % 4 * 8));
        }
    } else {
#pragma unroll
        for (int i = 0; i < UNIT_SIZE; i++) words[i] = i < count ? x[i] : 0;
    }
#pragma unroll
    for (int i = 0; i < UNIT_SIZE; i++) v[i] = widen(words[i]);
}

// NaN becomes 0 and a bit of `nans`, an infinity the largest value. Returns the largest magnitude's bits; `refused` is
// the first element that is not finite, or UNIT_SIZE.
DEVICE u32 clean(float (&v)[UNIT_SIZE], u32 &nans, u32 &refused) {
    u32 top = 0;
    nans = 0;
    refused = UNIT_SIZE;
#pragma unroll
    for (int i = 0; i < UNIT_SIZE; i++) top = top < magnitude(v[i]) ? magnitude(v[i]) : top;
    if (!RARE(top >= INFINITE)) return top;
    top = 0;
#pragma unroll
    for (int i = UNIT_SIZE - 1; i >= 0; i--) {
        if (magnitude(v[i]) >= INFINITE) refused = i;
        if (is_nan(v[i])) nans |= 1u << i;
        v[i] = is_nan(v[i]) ? 0 : bound(v[i], LARGEST);
        top = top < magnitude(v[i]) ? magnitude(v[i]) : top;
    }
    return top;
}
