// From the exact sum of a product of integers to its output, as octavo-core has it: with t = (scale of the row of x) *
// (scale of the row of W), s * t + bias for a float bias, (s + bias) * t for an integer one; each operation rounds to float32.
//
// OUT: 0 float32, 1 float16, 2 bfloat16, 3 the sum itself as int32, 4 int8: rne(y) + zero, clipped. A bias is of one of the
// first four, or null. SHIFT: weights were moved up by so many bits.

struct Outputs {
    const float *row_scales, *column_scales; // null: 1
    i32 row_step, column_step;               // 0: all share the first
    const void *bias;
    i32 bias_type;
    void *out;
    i32 zero;
};

#if OUT == 3
typedef i32 Element;
#elif OUT == 4
typedef i8 Element;
#else
typedef Rounded<OUT> Element;
#endif

// What a column brings to its outputs.
struct Column {
    float scale, added;
    i32 bias;
};

DEVICE Column column_at(const Outputs &o, i64 n) {
    const bool whole = o.bias_type == 3;
    return Column{o.column_scales ? o.column_scales[n * o.column_step] : 1,
                  o.bias && !whole ? optional_at(o.bias, o.bias_type, n) : -0.f, // which changes no sum, not even the sign of 0
                  o.bias && whole ? ((const i32 *)o.bias)[n] : 0};
}
DEVICE float row_scale(const Outputs &o, i64 m) { return o.row_scales ? o.row_scales[m * o.row_step] : 1; }

DEVICE Element finished(i32 sum, float row_scale, const Column &column, i32 zero) {
    i64 exact = (i64)(sum >> SHIFT) + column.bias;
    if constexpr (OUT == 3) {
        exact = exact > 0x7fffffff ? 0x7fffffff : exact < -0x80000000ll ? -0x80000000ll : exact;
        return (i32)exact;
    } else {
        // Devices convert 32 bits faster than 64.
        float y = exact == (i32)exact ? (float)(i32)exact : (float)exact;
        y = y * (row_scale * column.scale) + column.added;
        if constexpr (OUT == 4) {
            float code = larger(smaller(round_even(y) + (float)zero, 127.f), -128.f);
            return y == y ? (i8)to_int(code) : 0;
        } else return rounded<OUT>(y);
    }
}

DEVICE void finish_sum(const Outputs &o, i32 sum, i64 m, i64 n, i64 width) {
    ((Element *)o.out)[m * width + n] = finished(sum, row_scale(o, m), column_at(o, n), o.zero);
}

// Four neighbours of a row in one store.
DEVICE void store_four(i32 *to, const i32 (&v)[4]) { store16(to, Quad{(u32)v[0], (u32)v[1], (u32)v[2], (u32)v[3]}); }
DEVICE void store_four(float *to, const float (&v)[4]) {
    store16(to, Quad{bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3])});
}
DEVICE void store_four(u16 *to, const u16 (&v)[4]) { store8(to, Pair{v[0] | (u32)v[1] << 16, v[2] | (u32)v[3] << 16}); }
DEVICE void store_four(i8 *to, const i8 (&v)[4]) {
    *(u32 *)to = (u8)v[0] | (u32)(u8)v[1] << 8 | (u32)(u8)v[2] << 16 | (u32)(u8)v[3] << 24;
}
// The first `count` of four neighbours, at once where that is possible.
template <class T> DEVICE void write_four(T *to, const T (&v)[4], i64 count) {
    if (count >= 4 && (u64)to % (4 * sizeof(T)) == 0) store_four(to, v);
    else
        for (i32 i = 0; i < 4; i++)
            if (i < count) to[i] = v[i];
}

// Adds the sums of all slices and finishes them.
KERNEL(256) finish(const i32 *slices, i32 count, i32 m, i32 n, const float *row_scales, i32 row_step, const float *column_scales,
                   i32 column_step, const void *bias, i32 bias_type, void *out, i32 zero) {
    i64 i = blockIdx.x * 256ll + threadIdx.x, size = (i64)m * n;
    wait_for_predecessor();
    if (i >= size) return;
    i32 sum = 0;
    for (i32 slice = 0; slice < count; slice++) sum += slices[slice * size + i];
    Outputs outputs = {row_scales, column_scales, row_step, column_step, bias, bias_type, out, zero};
    finish_sum(outputs, sum, i / n, i % n, n);
}
