// Values to packed codes, or to the values of those codes (QUANTIZE): UNIT_SIZE elements a thread at a time.
//
// encode reads scales that are known; encode_blocks (FUSED) finds the scale of each block in passing: a block lies in
// BLOCK / UNIT_SIZE neighbouring lanes.

#define CODE_WORDS ((UNIT_SIZE * WIDTH + 31) / 32)
#define UNIT_BYTES (UNIT_SIZE * WIDTH / 8)

DEVICE u32 code_or_nan(float v, const Scale &s, const float *book, bool nan) {
    // A block that holds NaN has zero codes.
    if (STEP == STEP_E8M0 && is_nan(s.step)) return 0;
    return nan ? NAN_CODE : code_of(v, s, book);
}

DEVICE void pack_codes(const u32 (&codes)[UNIT_SIZE], u32 (&words)[CODE_WORDS]) {
#pragma unroll
    for (int i = 0; i < CODE_WORDS; i++) words[i] = 0;
#pragma unroll
    for (int i = 0; i < UNIT_SIZE; i++) {
        const int word = i * WIDTH / 32, skip = i * WIDTH % 32;
        words[word] |= codes[i] << skip;
        if (skip + WIDTH > 32) words[word + 1] |= codes[i] >> (32 - skip);
    }
}

// Whether a unit of codes is a whole store.
#define WHOLE_STORE (UNIT_BYTES == 4 || UNIT_BYTES % 8 == 0)

DEVICE void store_codes(u8 *out, const u32 (&words)[CODE_WORDS]) {
#if UNIT_BYTES == 4
    *(u32 *)out = words[0];
#elif UNIT_BYTES == 8
    store8(out, Pair{words[0], words[1]});
#elif UNIT_BYTES % 16 == 0
#pragma unroll
    for (int i = 0; i + 3 < CODE_WORDS; i += 4) store16(out + 4 * i, Quad{words[i], words[i + 1], words[i + 2], words[i + 3]});
#else
    for (int i = 0; i < UNIT_BYTES; i++) out[i] = (u8)(words[i / 4] >> 8 * (i % 4));
#endif
}

// `wide`: the addresses of units of x and of the output are multiples of 16, or of the unit's bytes.
KERNEL(THREADS, GRID == SIGNED_LEVELS ? 1 : 4) encode(const Word *x, const u8 *scales, const u8 *zeros, const float *levels, void *out, u64 *first,
                       i64 rows, i64 k, i64 row_bytes, i64 groups_per_row, i64 zeros_row, i32 wide, i32 policy) {
    const Parts p{scales, zeros, levels, rows, k, groups_per_row, zeros_row};
    BOOK_OF_BLOCK;
    float tensor = tensor_scale(p), v[UNIT_SIZE];
    Place place = locate(p, (i64)blockIdx.x * THREADS + threadIdx.x);
    if (place.count == 0) return;
    bool whole = wide && place.count == UNIT_SIZE;
    load_unit(x + place.at, place.count, whole, v);
    u32 nans, refused;
    clean(v, nans, refused);
    if (refused < UNIT_SIZE && policy == POLICY_ERROR && first) atomic_min(first, (u64)place.at + refused);
    u32 codes[UNIT_SIZE];
    Scale s = load_scale(p, place.row, place.column, tensor);
    prepare(s);
#if GROUPS == GROUPS_BLOCK && BLOCK % UNIT_SIZE != 0
    i64 group = place.column / BLOCK;
#endif
#pragma unroll
    for (int i = 0; i < UNIT_SIZE; i++) {
#if GROUPS == GROUPS_BLOCK && BLOCK % UNIT_SIZE != 0
        i64 own = (place.column + i) / BLOCK;
        if (own != group && i < place.count) s = load_scale(p, place.row, place.column + i, tensor);
        group = own;
#endif
#if QUANTIZE
        v[i] = nans >> i & 1 ? float_of(0x7fc00000) : value_of(code_of(v[i], s, book), s, book, LARGEST);
#else
        codes[i] = i < place.count ? code_or_nan(v[i], s, book, policy == POLICY_NAN && (nans >> i & 1)) : 0;
#endif
    }
#if QUANTIZE
    (void)codes, (void)row_bytes;
    Word *to = (Word *)out + place.at;
    if (whole) {
        store_unit(to, v, false);
    } else {
#pragma unroll
        for (int i = 0; i < UNIT_SIZE; i++)
            if (i < place.count) to[i] = narrow(v[i]);
    }
#else
    u32 words[CODE_WORDS];
    pack_codes(codes, words);
    u8 *to = (u8 *)out + place.row * row_bytes + place.column / UNIT_SIZE * UNIT_BYTES;
    if (whole && WHOLE_STORE) {
        store_codes(to, words);
    } else {
        i32 bytes = (place.count * WIDTH + 7) / 8;
#pragma unroll
        for (int i = 0; i < UNIT_BYTES; i++)
            if (i < bytes) to[i] = (u8)(words[i / 4] >> 8 * (i % 4));
    }
#endif
}

#if FUSED
// `total` elements in whole blocks; all addresses are multiples of 16.
KERNEL(THREADS) encode_blocks(const Word *x, u8 *scales, const float *levels, void *out, u64 *first, i64 total, i32 rule,
                              i32 policy, i32 evict) {
    const u32 lanes = BLOCK / UNIT_SIZE;
    BOOK_OF_BLOCK;
    float tensor = STEP == STEP_E4M3 ? *levels : 0.0f, v[UNIT_SIZE];
    i64 unit = (i64)blockIdx.x * THREADS + threadIdx.x, units = total / UNIT_SIZE;
    bool there = unit < units;
    load_unit(x + unit * UNIT_SIZE, 0, there, v);
    u32 nans, refused, absmax = clean(v, nans, refused);
    if (refused < UNIT_SIZE && policy == POLICY_ERROR && first) atomic_min(first, (u64)unit * UNIT_SIZE + refused);
#pragma unroll
    for (u32 i = 1; i < lanes; i *= 2) {
        u32 other = shuffle_xor(absmax, i);
        absmax = absmax < other ? other : absmax;
    }
    u32 bits = scale_bits(absmax, tensor, rule);
#if !QUANTIZE && STEP == STEP_E8M0
    if (policy == POLICY_NAN) {
        u32 any = nans;
#pragma unroll
        for (u32 i = 1; i < lanes; i *= 2) any |= shuffle_xor(any, i);
        if (any) bits = 255;
    }
#endif
    Scale s = resolve(bits, tensor);
#if QUANTIZE
    (void)scales;
#pragma unroll
    for (int i = 0; i < UNIT_SIZE; i++) v[i] = value_of(code_of(v[i], s, book), s, book, LARGEST);
    if (nans) {
#pragma unroll
        for (int i = 0; i < UNIT_SIZE; i++) v[i] = nans >> i & 1 ? float_of(0x7fc00000) : v[i];
    }
    if (there) store_unit((Word *)out + unit * UNIT_SIZE, v, evict);
#else
    (void)evict;
    if (there && unit % lanes == 0) keep_scale(scales, unit / lanes, 0, bits);
    u32 codes[UNIT_SIZE], words[CODE_WORDS];
#pragma unroll
    for (int i = 0; i < UNIT_SIZE; i++) codes[i] = code_or_nan(v[i], s, book, false);
    pack_codes(codes, words);
#if WHOLE_STORE
    if (there) store_codes((u8 *)out + unit * UNIT_BYTES, words);
#else
    // Units of odd lengths go through shared memory, so that the warp stores whole words.
    SHARED(u32, staged, THREADS * UNIT_BYTES / 4);
    u32 *own = staged + threadIdx.x / 32 * (8 * UNIT_BYTES);
    u8 *bytes = (u8 *)own + lane_id() * UNIT_BYTES;
#pragma unroll
    for (int i = 0; i < UNIT_BYTES; i++) bytes[i] = (u8)(words[i / 4] >> 8 * (i % 4));
    sync_warp();
    i64 from = (unit - lane_id()) * UNIT_BYTES, left = units * UNIT_BYTES - from;
    for (u32 i = lane_id(); i < 8 * UNIT_BYTES; i += 32) {
        if ((i64)(4 * i + 4) <= left) {
            *(u32 *)((u8 *)out + from + 4 * i) = own[i];
        } else {
            for (u32 j = 0; (i64)(4 * i + j) < left && j < 4; j++) ((u8 *)out)[from + 4 * i + j] = (u8)(own[i] >> 8 * j);
        }
    }
#endif
#endif
}
#endif
