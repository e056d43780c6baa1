// From the values of a group to its scale. Twin of octavo-core's codec::scale.
//
// Macros: CHOOSER one of the kinds below; QMAX of linear scales, RANGE 1 where both ends of the values are asked for, EMAX and FITS of shared exponents, HIGHEST number at
// scale 1.

#define UNIT_SCALE 0
#define FRACTION 1
#define SYMMETRIC 2
#define ASYMMETRIC 3
#define MEANS 4
#define TERNARY 5
#define FLOOR_EXPONENT 6
#define FITTING_EXPONENT 7
#define NEAREST_POWER 8
#define TWO_LEVELS 9
#define FULL_RANGE 10
#define RANGE_AND_OFFSET 11

#define RULE_FLOOR 0
#define RULE_CEIL 1
#define RULE_MSE 2
#define POLICY_ERROR 0
#define POLICY_SATURATE 1
#define POLICY_NAN 2

#define BLOCK_EXPONENT (CHOOSER >= FLOOR_EXPONENT && CHOOSER <= TWO_LEVELS)
#define LARGEST_CODE (CHOOSER == TWO_LEVELS ? 126 : 254)

// Bits of a positive scale, never 0 for a group that is not all zero.
DEVICE u32 real_bits(double scale, bool all_zero) {
    float single = bound((float)scale, float_of(LARGEST_F32));
    u32 bits = STEP == STEP_F16 ? to_f16(bound(single, 65504.0f)) : bits_of(single);
    return all_zero ? 0 : bits > 1 ? bits : 1;
}

#if CHOOSER == FULL_RANGE || CHOOSER == RANGE_AND_OFFSET
// Bits of the float16 nearest to a number with a sign, the largest one beyond them; never 0 unless `or_zero`.
DEVICE u32 signed_half(double value, bool or_zero) {
    double size = value < 0 ? -value : value;
    u32 half = real_bits(size, false);
    if (or_zero && to_f16(bound((float)size, 65504.0f)) == 0) return 0;
    return half | (u32)(bits_of(value) >> 63) << 15; // of a quotient that vanished, too
}
#endif

// The significand, with bit 23 set, and the exponent of a magnitude that is not 0.
DEVICE i32 take_apart(u32 magnitude, u32 &significand) {
    i32 e = (i32)(magnitude >> 23), zeros = leading_zeros(magnitude);
    significand = e ? (magnitude & 0x7fffff) | 0x800000 : magnitude << (zeros - 8);
    return e ? e - 127 : -118 - zeros;
}

#if BLOCK_EXPONENT
// The scale that a block's stored code stands for.
DEVICE double block_step(u32 code, float tensor) {
#if CHOOSER == TWO_LEVELS
    return bound(tensor * e4m3(code), float_of(LARGEST_F32));
#else
    (void)tensor;
    return double_of((u64)((i32)code - 127 - SHIFT + 1023) << 52);
#endif
}

#if CHOOSER == TWO_LEVELS
// Code of the E4M3 number nearest to a value that is not negative.
DEVICE u32 nearest_e4m3(float v) {
    if (v >= 448.0f) return 126;
    // Below 2^-6 the step stays 2^-9.
    u32 significand, m = magnitude(v);
    if (m == 0) return 0;
    i32 e = take_apart(m, significand), drop = e >= -6 ? 20 : 20 + (-6 - e);
    if (drop > 25) return 0;
    u32 index = (e >= -6 ? (u32)(e + 6) << 3 : 0) + (significand >> drop);
    u32 rest = significand & ((1u << drop) - 1), half = 1u << (drop - 1);
    return index + (rest > half || (rest == half && (index & 1)));
}
#endif

// The scale code of a block by the format's own rule or by `ceil`, from the bits of its largest magnitude.
DEVICE u32 block_code(u32 absmax, float tensor, i32 rule) {
    if (absmax == 0) return 0;
    u32 code;
#if CHOOSER == TWO_LEVELS
    code = nearest_e4m3(float_of(absmax) / (6.0f * tensor));
#else
    u32 significand;
    i32 e = take_apart(absmax, significand);
#if CHOOSER == FLOOR_EXPONENT
    e -= EMAX;
#elif CHOOSER == FITTING_EXPONENT
    // It fits unless it rounds up to 2^FITS.
    e += 1 + (significand >= (1u << 24) - (1u << (23 - FITS)));
#else
    e += significand >= 3u << 22;
#endif
    code = (u32)between(e + 127, 0, 254);
#endif
    if (rule == RULE_CEIL) {
        double v = float_of(absmax);
        while (code > 0 && v <= HIGHEST * block_step(code - 1, tensor)) code--;
        while (code < LARGEST_CODE && !(v <= HIGHEST * block_step(code, tensor))) code++;
    }
    return code;
}
#endif

#if CHOOSER == SYMMETRIC || BLOCK_EXPONENT
// Stored bits of a group's scale from its largest magnitude.
DEVICE u32 scale_bits(u32 absmax, float tensor, i32 rule) {
#if CHOOSER == SYMMETRIC
    (void)tensor, (void)rule;
    return real_bits((double)(float_of(absmax) / (float)QMAX), absmax == 0);
#else
    return block_code(absmax, tensor, rule);
#endif
}
#endif
