// Inputs as int8 codes for integer products: code = clip(rne(x / s)), with the exact quotient, as octavo-core's codec has
// it. A row of x that is not finite throughout gets the scale NaN, which reaches its outputs.
//
// X: dtype. MOST: largest code. SCALES: 0 one chosen for the tensor, 1 one chosen for each row, 2 one given, 3 one given
// for each row. EVEN_ODD_RUNS: of each run of eight codes the even ones come first, for weights taken apart the same way.

// The largest magnitude, as bits, of all 256 threads.
DEVICE u32 most_of_block(u32 most) {
    SHARED(u32, of_warps, 8);
    for (u32 other = 1; other < 32; other *= 2) {
        u32 theirs = shuffle_xor(most, other);
        most = theirs > most ? theirs : most;
    }
    if (lane_id() == 0) of_warps[threadIdx.x >> 5] = most;
    sync_threads();
    for (u32 i = 0; i < 8; i++) most = of_warps[i] > most ? of_warps[i] : most;
    return most;
}

// Largest magnitudes of stretches of x, as bits.
KERNEL(256) magnitudes(const void *x, u32 *to, i64 count) {
    u32 most = 0;
    wait_for_predecessor();
    for (i64 i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
        u32 magnitude = bits_of(value_at<X>(x, i)) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    most = most_of_block(most);
    if (threadIdx.x == 0) to[blockIdx.x] = most;
    release_successor();
}

// The nearest integer to x / s, ties to even: a float32 quotient that is halfway between two may have been rounded onto it.
DEVICE float nearest(float x, float s) {
    float q = x / s, r = round_even(q);
    float away = q - r;
    if ((away == .5f || away == -.5f) && q < 1e6f && q > -1e6f) {
        double rest = (double)x - (double)q * (double)s;
        if (rest > 0) r = q + .5f;
        if (rest < 0) r = q - .5f;
    }
    return r;
}

// One row of codes a block, with zeros up to `stride`, and the scale that its codes have. `found` are `count` magnitudes.
KERNEL(256) quantize(const void *x, const float *given, const u32 *found, i32 count, i8 *codes, float *scales, i64 k, i64 stride) {
    const i64 row = blockIdx.x;
    wait_for_predecessor();
    u32 most = 0;
    for (i64 i = threadIdx.x; i < k; i += 256) {
        u32 magnitude = bits_of(value_at<X>(x, row * k + i)) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    if constexpr (SCALES == 0)
        for (i32 i = (i32)threadIdx.x; i < count; i += 256) most = found[i] > most ? found[i] : most;
    most = most_of_block(most);
    float scale;
    if constexpr (SCALES >= 2) scale = given[SCALES == 3 ? row : 0];
    else {
        scale = float_of(most) / MOST;
        if (scale == 0 && most != 0) scale = float_of(1);
    }
    const bool finite = most < 0x7f800000;
    if (threadIdx.x == 0) scales[row] = finite ? scale : float_of(0x7fc00000);
    for (i64 i = threadIdx.x; i < stride; i += 256) {
        float code = 0;
        if (i < k && finite && scale != 0) code = nearest(value_at<X>(x, row * k + i), scale);
        code = larger(smaller(code, (float)MOST), -(float)MOST);
        i64 place = EVEN_ODD_RUNS ? (i & ~7ll) + 4 * (i & 1) + ((i & 7) >> 1) : i;
        codes[row * stride + place] = (i8)to_int(code);
    }
    release_successor();
}
