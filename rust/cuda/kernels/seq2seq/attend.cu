// Attention of one row to its positions, all heads at once, by a warp. Scores are powers of two: queries hold log2(e) too.
//
// A lane holds 8 of the WIDTH columns of every SIDE-th position; softmax runs along, each lane's own maximum, until the end.

#define LANES (WIDTH / 8)
#define SIDE (32 / LANES)
#define HEAD_LANES (WIDTH / HEADS / 8)
// Positions a lane has under way.
#define DEEP (TILES == 1 ? 8 : 4)

DEVICE void widen(float (&to)[8], Quad from) {
    const u32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; i++) to[2 * i] = float_of(words[i] << 16), to[2 * i + 1] = float_of(words[i] & 0xffff0000);
}

// Turns the query of a row into the mixed values of `count` positions; `pitch` bytes lie from one to the next.
DEVICE void attend(u8 *row, const u8 *keys, const u8 *values, u64 pitch, u32 count) {
    const u32 lane = lane_id(), own = lane % LANES, side = lane / LANES;
    float query[8], mixed[8] = {}, most = -1e30f, sum = 0;
    widen(query, *(const Quad *)(row + 16 * own));
    keys += 16 * own, values += 16 * own;
    for (u32 first = 0; first < count; first += SIDE * DEEP) {
        Quad key[DEEP], value[DEEP];
#pragma unroll
        for (u32 i = 0; i < DEEP; i++) {
            u32 at = first + SIDE * i + side;
            key[i] = value[i] = Quad{};
            if (at < count) key[i] = load16(keys + at * pitch), value[i] = load16(values + at * pitch);
        }
        float scores[DEEP], before = most;
#pragma unroll
        for (u32 i = 0; i < DEEP; i++) {
            float v[8];
            widen(v, key[i]);
            scores[i] = 0;
#pragma unroll
            for (int j = 0; j < 8; j++) scores[i] = fused(query[j], v[j], scores[i]);
#pragma unroll
            for (u32 other = 1; other < HEAD_LANES; other *= 2) scores[i] += shuffle_xor(scores[i], other);
            if (first + SIDE * i + side < count) most = larger(most, scores[i]);
        }
        float factor = near_exp2(before - most);
        sum *= factor;
#pragma unroll
        for (int j = 0; j < 8; j++) mixed[j] *= factor;
#pragma unroll
        for (u32 i = 0; i < DEEP; i++) {
            float v[8], weight = first + SIDE * i + side < count ? near_exp2(scores[i] - most) : 0;
            widen(v, value[i]);
            sum += weight;
#pragma unroll
            for (int j = 0; j < 8; j++) mixed[j] = fused(weight, v[j], mixed[j]);
        }
    }
    float all = most;
#pragma unroll
    for (u32 other = LANES; other < 32; other *= 2) all = larger(all, shuffle_xor(all, other));
    float factor = near_exp2(most - all);
    sum *= factor;
#pragma unroll
    for (int j = 0; j < 8; j++) mixed[j] *= factor;
#pragma unroll
    for (u32 other = LANES; other < 32; other *= 2) {
        sum += shuffle_xor(sum, other);
#pragma unroll
        for (int j = 0; j < 8; j++) mixed[j] += shuffle_xor(mixed[j], other);
    }
    float inverse = near_reciprocal(sum);
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = to_bf16x2(mixed[2 * i] * inverse, mixed[2 * i + 1] * inverse);
    sync_warp();
    if (side == 0) *(Quad *)(row + 16 * own) = Quad{words[0], words[1], words[2], words[3]};
}
