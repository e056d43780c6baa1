// Float32 from and to the dtypes of inputs and outputs: 0 is float32, 1 float16, 2 bfloat16, 3 int32.

template <int type> DEVICE float value_at(const void *p, i64 i) {
    if constexpr (type == 0) return ((const float *)p)[i];
    if constexpr (type == 1) return from_f16(((const u16 *)p)[i]);
    return from_bf16(((const u16 *)p)[i]);
}
// A number whose dtype is known at run time; 0 where there are none.
DEVICE float optional_at(const void *p, i32 type, i64 i) {
    return !p ? 0 : type == 0 ? value_at<0>(p, i) : type == 1 ? value_at<1>(p, i) : value_at<2>(p, i);
}
// Beyond the range lies infinity.
template <int type> DEVICE auto rounded(float v) {
    if constexpr (type == 0) return v;
    else if constexpr (type == 1) return to_f16(v);
    else return to_bf16(v);
}
template <int type> using Rounded = decltype(rounded<type>(0.f));
template <int type> DEVICE void put(void *p, i64 i, float v) { ((Rounded<type> *)p)[i] = rounded<type>(v); }
