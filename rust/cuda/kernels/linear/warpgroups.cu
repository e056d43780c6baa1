// Integer products of large matrices on Hopper: tiles of 128 x 256 outputs, 128 columns at a time, four stages under way.
//
// One thread of the third warpgroup has boxes of both factors copied into the stages; the other two warpgroups multiply, 64
// rows of x each. A stage has two barriers: `full` ends a phase when its bytes are there, `empty` when all eight warps have
// read them. Blocks stay, and take tile after tile: copies for the next one begin while outputs are written.

#define TILE_M 128
#define TILE_N 256
#define STEP 128
#define STAGES 4
#define STAGE ((TILE_M + TILE_N) * STEP)
#define WARPS 8
// Bytes in which a warp turns 16 rows of sums, and of a row there.
#define TURN 4096
#define ROW 256

// A tile of outputs, and the steps of k whose products are summed for it.
struct Work {
    i64 m0, n0;
    u32 slice, first, end;
};

DEVICE Work work_at(u32 i, i32 m, i32 n, u32 steps, u32 slice_steps) {
    const u32 tiles_m = ((u32)m + TILE_M - 1) / TILE_M, tiles_n = ((u32)n + TILE_N - 1) / TILE_N;
    const u32 slice = i / (tiles_m * tiles_n), tile = i % (tiles_m * tiles_n);
    // Sixteen tiles of rows of x take turns: blocks that run together then work on a square, whose rows the second cache holds.
    const u32 band = tile / (16 * tiles_n), in_band = tile % (16 * tiles_n);
    const u32 height = tiles_m - 16 * band < 16 ? tiles_m - 16 * band : 16;
    const u32 first = slice * slice_steps, end = first + slice_steps < steps ? first + slice_steps : steps;
    return Work{(i64)(16 * band + in_band % height) * TILE_M, (i64)(in_band / height) * TILE_N, slice, first, end};
}

// What a lane brings to the outputs of a warp, 16 rows from m0 on and 256 columns from n0 on: the scale of row lane & 15, and
// its runs of four columns, one in 64. Beyond the last row and column stand the last.
struct Factors {
    float row;
    Column columns[4][4];
};

DEVICE Factors factors_at(const Outputs &o, i32 m, i32 n, i64 m0, i64 n0) {
    const u32 run = lane_id() & 15;
    Factors f;
    f.row = row_scale(o, m0 + run < m ? m0 + run : m - 1);
    auto each = [&](const auto &set) {
        for (u32 i = 0; i < 16; i++) {
            const i64 column = n0 + 64 * (i >> 2) + 4 * run + (i & 3);
            set(f.columns[i >> 2][i & 3], column < n ? column : n - 1);
        }
    };
    // As `column_at` has it, but types are looked at once, so that sixteen loads are under way together.
    const i32 type = o.bias ? o.bias_type : -1;
    each([](Column &c, i64) { c = Column{1, -0.f, 0}; });
    if (o.column_scales) each([&](Column &c, i64 i) { c.scale = o.column_scales[i * o.column_step]; });
    if (type == 0) each([&](Column &c, i64 i) { c.added = value_at<0>(o.bias, i); });
    if (type == 1) each([&](Column &c, i64 i) { c.added = value_at<1>(o.bias, i); });
    if (type == 2) each([&](Column &c, i64 i) { c.added = value_at<2>(o.bias, i); });
    if (type == 3) each([&](Column &c, i64 i) { c.bias = ((const i32 *)o.bias)[i]; });
    return f;
}

// Writes what becomes of the sums of a warp to `out`, [m, n]: they are turned, through `turn`, so that lanes have runs of four
// columns and stores whole pieces of rows. `value(sum, row_scale, column)` is an output.
template <class T, class Value>
DEVICE void write_rows(T *out, const Factors &f, i32 m, i32 n, i64 m0, i64 n0, u8 *turn, const i32 (&d)[128], const Value &value) {
    const u32 lane = lane_id(), g = lane >> 2, t = lane & 3, run = lane & 15;
    // Run r of row i lies at r ^ twist(i), so that neither eight lanes that store nor eight that load share a bank.
    auto place = [&](u32 row, u32 r) { return turn + row * ROW + ((r ^ ((row & 3) << 1 | (row >> 2 & 1))) << 4); };
#pragma unroll
    for (u32 chunk = 0; chunk < 4; chunk++) {
        const i64 n1 = n0 + 64 * chunk + 4 * run;
        if (n0 + 64 * chunk >= n) break;
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            const u32 i = 32 * chunk + 4 * j, r = 2 * j + (t >> 1), half = 8 * (t & 1);
            *(Pair *)(place(g, r) + half) = Pair{(u32)d[i], (u32)d[i + 1]};
            *(Pair *)(place(g + 8, r) + half) = Pair{(u32)d[i + 2], (u32)d[i + 3]};
        }
        sync_warp();
        const Column(&columns)[4] = f.columns[chunk];
#pragma unroll 2
        for (u32 i = 0; i < 16; i += 2) {
            const u32 row = i + (lane >> 4);
            const Quad sums = *(const Quad *)place(row, run);
            const float scale = shuffle(f.row, row);
            const T v[4] = {value((i32)sums.x, scale, columns[0]), value((i32)sums.y, scale, columns[1]),
                            value((i32)sums.z, scale, columns[2]), value((i32)sums.w, scale, columns[3])};
            if (m0 + row < m) write_four(out + (m0 + row) * n + n1, v, n - n1);
        }
        sync_warp();
    }
}

KERNEL(384, 1) warpgroups(MAP x, MAP codes, i32 *slices, i32 m, i32 n, i32 steps, i32 slice_steps, i32 works, const float *row_scales,
                          i32 row_step, const float *column_scales, i32 column_step, const void *bias, i32 bias_type, void *out,
                          i32 zero) {
    SHARED_MEMORY(memory);
    // The order of pieces within 1024 bytes is one of addresses.
    u8 *const stages = memory + (0u - shared_address(memory)) % 1024, *const turns = stages + STAGES * STAGE;
    u64 *const full = (u64 *)(turns + WARPS * TURN), *const empty = full + STAGES;
    const u32 group = shuffle(threadIdx.x >> 7, 0);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) init_barrier(full + i, 1), init_barrier(empty + i, WARPS);
        publish_barriers();
    }
    sync_threads();
    wait_for_predecessor();
    u32 slot = 0, parity = 0; // of the stage that comes next
    auto next = [&] {
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        if (slot == 0) parity ^= 1;
    };
    if (group == 2) {
        keep_registers<40>();
        if (threadIdx.x == 256)
            for (u32 i = blockIdx.x; i < (u32)works; i += gridDim.x) {
                const Work work = work_at(i, m, n, steps, slice_steps);
                for (u32 step = work.first; step < work.end; step++) {
                    u8 *stage = stages + slot * STAGE;
                    wait_barrier(empty + slot, parity ^ 1);
                    arrive_expecting(full + slot, STAGE);
                    copy_box(stage, x, full + slot, step * STEP, (i32)work.m0);
                    copy_box(stage + TILE_M * STEP, codes, full + slot, step * STEP, (i32)work.n0);
                    next();
                }
            }
    } else {
        take_registers<232>();
        const u32 lane = lane_id(), warp = threadIdx.x >> 5;
        const Outputs outputs = {row_scales, column_scales, row_step, column_step, bias, bias_type, out, zero};
        i32 d[128] = {};
        for (u32 i = blockIdx.x; i < (u32)works; i += gridDim.x) {
            const Work work = work_at(i, m, n, steps, slice_steps);
            u32 before = slot;
            for (u32 step = work.first; step < work.end; step++) {
                const u8 *stage = stages + slot * STAGE;
                const u64 a = factor_of(stage + group * (64 * STEP)), b = factor_of(stage + TILE_M * STEP);
                wait_barrier(full + slot, parity);
                begin_products();
#pragma unroll
                for (u32 k = 0; k < STEP / 32; k++) multiply_s8(d, a + 2 * k, b + 2 * k, k > 0 || step > work.first);
                commit_products();
                // The step before has been read; its successor keeps the tensor cores busy meanwhile.
                wait_products<1>(d);
                if (step > work.first && lane == 0) arrive(empty + before);
                before = slot;
                next();
            }
            const i64 m0 = work.m0 + 16 * warp;
            const Factors factors = factors_at(outputs, m, n, m0, work.n0);
            wait_products<0>(d);
            if (lane == 0) arrive(empty + before);
            u8 *turn = turns + warp * TURN;
            if (steps > slice_steps) {
                auto value = [](i32 sum, float, const Column &) { return sum; };
                write_rows(slices + work.slice * (i64)m * n, factors, m, n, m0, work.n0, turn, d, value);
            } else {
                auto value = [&](i32 sum, float scale, const Column &column) { return finished(sum, scale, column, zero); };
                write_rows((Element *)out, factors, m, n, m0, work.n0, turn, d, value);
            }
        }
    }
}
