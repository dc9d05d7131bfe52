// Sixteen lanes on any CPU. Everything here is element-wise or in a fixed order, and every fused multiply-add is
// explicit: a result never depends on how a loop was compiled or on the size of a batch.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX2__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace octet {

constexpr int LANES = 16;

#if defined(__AVX512F__)
constexpr int REGISTER = 64;
#elif defined(__AVX2__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif
constexpr int PARTS = 64 / REGISTER;

// 64 bytes in as many registers as needed: compilers keep values wider than a register in memory.
template <class Scalar>
struct Vector {
    typedef Scalar Register __attribute__((vector_size(REGISTER)));
    Register part[PARTS];
};

typedef Vector<float> f32x16;
typedef Vector<int32_t> i32x16;
typedef Vector<uint8_t> u8x64;

// Applies a function to each part. Expanded and not a loop, so that parts stay in registers without optimisation.
template <class Out, class Function, int... I>
inline Out each_of(std::integer_sequence<int, I...>, Function&& function) {
    return {{function(I)...}};
}

template <class Out, class Function>
inline Out each(Function&& function) {
    return each_of<Out>(std::make_integer_sequence<int, PARTS>{}, function);
}

#define OCTET_BINARY(op)                                                       \
    template <class S>                                                         \
    inline Vector<S> operator op(Vector<S> a, Vector<S> b) {                   \
        return each<Vector<S>>([&](int i) { return a.part[i] op b.part[i]; }); \
    }                                                                          \
    template <class S>                                                         \
    inline Vector<S>& operator op## = (Vector<S> & a, Vector<S> b) {           \
        return a = a op b;                                                     \
    }
OCTET_BINARY(+)
OCTET_BINARY(-)
OCTET_BINARY(*)
OCTET_BINARY(/)
#undef OCTET_BINARY

template <class S>
inline Vector<S> operator-(Vector<S> a) {
    return each<Vector<S>>([&](int i) { return -a.part[i]; });
}

template <class S>
inline Vector<S> operator&(Vector<S> a, S b) {
    return each<Vector<S>>([&](int i) { return a.part[i] & b; });
}

template <class S>
inline Vector<S> operator<<(Vector<S> a, int by) {
    return each<Vector<S>>([&](int i) { return a.part[i] << S(by); });
}

template <class S>
inline Vector<S> operator>>(Vector<S> a, int by) {
    return each<Vector<S>>([&](int i) { return a.part[i] >> S(by); });
}

// Calls times(n) with the largest constant n in [1, MOST] that is at most `count`; returns n.
template <int MOST, class Times>
inline int up_to(int count, Times&& times) {
    if constexpr (MOST > 1)
        if (count < MOST) return up_to<MOST - 1>(count, times);
    times(std::integral_constant<int, MOST>{});
    return MOST;
}

inline f32x16 splat(float value) {
    return each<f32x16>([&](int) { return value - f32x16::Register{}; });
}

inline i32x16 splat(int32_t value) {
    return each<i32x16>([&](int) { return value - i32x16::Register{}; });
}

template <class T>
constexpr bool IS_VECTOR = false;
template <class S>
constexpr bool IS_VECTOR<Vector<S>> = true;

template <class To, class Scalar>
inline To load(const Scalar* from) {
    if constexpr (IS_VECTOR<To>) {  // copying 64 bytes at once would go through memory
        auto* bytes = reinterpret_cast<const uint8_t*>(from);
        return each<To>([&](int i) { return load<typename To::Register>(bytes + i * REGISTER); });
    } else {
        To value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }
}

template <class From, class Scalar>
inline void store(Scalar* to, From value) {
    if constexpr (IS_VECTOR<From>) {
#pragma GCC unroll 4
        for (int i = 0; i < PARTS; i++) store(reinterpret_cast<uint8_t*>(to) + i * REGISTER, value.part[i]);
    } else {
        std::memcpy(to, &value, sizeof value);
    }
}

inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return each<f32x16>([&](int i) {
#if defined(__AVX512F__)
        return (f32x16::Register)_mm512_fmadd_ps((__m512)a.part[i], (__m512)b.part[i], (__m512)c.part[i]);
#elif defined(__AVX2__) && defined(__FMA__)
        return (f32x16::Register)_mm256_fmadd_ps((__m256)a.part[i], (__m256)b.part[i], (__m256)c.part[i]);
#elif defined(__aarch64__)
        return (f32x16::Register)vfmaq_f32((float32x4_t)c.part[i], (float32x4_t)a.part[i], (float32x4_t)b.part[i]);
#else
        f32x16::Register out;
        for (int lane = 0; lane < REGISTER / 4; lane++)
            out[lane] = std::fma(a.part[i][lane], b.part[i][lane], c.part[i][lane]);
        return out;
#endif
    });
}

// acc[r] += sum of w[4r + i] * x[i] for i in 0..3, the four x packed into one integer.
// Exact for w up to WIDEST_DOT: CPUs without a u8 x s8 dot product support nibbles only.
typedef i32x16::Register Sums;
typedef u8x64::Register Bytes;

#if defined(__AVX512VNNI__)
constexpr int WIDEST_DOT = 255;
constexpr const char* DOT = "avx512-vnni";
inline Sums dot4_of(Sums acc, Bytes w, int32_t x) {
    return (Sums)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(x));
}
#elif defined(__AVX512BW__)
constexpr int WIDEST_DOT = 15;
constexpr const char* DOT = "avx512";
inline Sums dot4_of(Sums acc, Bytes w, int32_t x) {
    __m512i pairs = _mm512_maddubs_epi16((__m512i)w, _mm512_set1_epi32(x));
    return (Sums)_mm512_add_epi32((__m512i)acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#elif defined(__AVX2__) && !defined(__AVX512F__)
constexpr int WIDEST_DOT = 15;
constexpr const char* DOT = "avx2";
inline Sums dot4_of(Sums acc, Bytes w, int32_t x) {
    __m256i pairs = _mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(x));
    return (Sums)_mm256_add_epi32((__m256i)acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int WIDEST_DOT = 15;
constexpr const char* DOT = "neon-dotprod";
inline Sums dot4_of(Sums acc, Bytes w, int32_t x) {
    return (Sums)vdotq_s32((int32x4_t)acc, (int8x16_t)w, vreinterpretq_s8_s32(vdupq_n_s32(x)));
}
#else
constexpr int WIDEST_DOT = 255;
constexpr const char* DOT = "portable";
inline Sums dot4_of(Sums acc, Bytes w, int32_t x) {
    const int8_t quad[4] = {int8_t(x), int8_t(x >> 8), int8_t(x >> 16), int8_t(x >> 24)};
    for (int r = 0; r < REGISTER / 4; r++)
        for (int i = 0; i < 4; i++) acc[r] += int32_t(w[4 * r + i]) * quad[i];
    return acc;
}
#endif

inline i32x16 dot4(i32x16 acc, u8x64 w, int32_t x) {
    return each<i32x16>([&](int i) { return dot4_of(acc.part[i], w.part[i], x); });
}

// A float in 16 bits, for storage: sums use 32. _Float16 is not available with all compilers and CPUs.
struct Half {
    uint16_t bits;

    Half() = default;

    // Rounds to nearest, ties to even.
    explicit Half(float value) {
#if defined(__F16C__)
        bits = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
        __fp16 half = value;
        std::memcpy(&bits, &half, 2);
#else
        uint32_t all;
        std::memcpy(&all, &value, 4);
        const uint32_t sign = all >> 16 & 0x8000, size = all & 0x7fffffff;
        if (size > 0x7f800000) bits = uint16_t(sign | 0x7e00 | (size >> 13 & 0x3ff));  // NaN
        else if (size >= 0x477ff000) bits = uint16_t(sign | 0x7c00);                   // rounds to infinity
        else if (size >= 0x38800000) bits = uint16_t(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
        else {  // less than 2^-14: adding 1/2 leaves steps of 2^-24
            float magnitude;
            std::memcpy(&magnitude, &size, 4);
            magnitude += 0.5f;
            std::memcpy(&all, &magnitude, 4);
            bits = uint16_t(sign | (all - 0x3f000000));
        }
#endif
    }

    explicit operator float() const {
#if defined(__F16C__)
        return _cvtsh_ss(bits);
#elif defined(__aarch64__)
        __fp16 half;
        std::memcpy(&half, &bits, 2);
        return half;
#else
        const uint32_t sign = uint32_t(bits & 0x8000) << 16, size = bits & 0x7fff;
        float value = float(size & 0x3ff) * 0x1p-24f;  // below 2^-14
        if (size >= 0x400) {
            uint32_t all = (size << 13) + (size >= 0x7c00 ? 0x70000000 : 0x38000000);
            if (size > 0x7c00) all |= 0x400000;  // a NaN is quiet
            std::memcpy(&value, &all, 4);
        }
        uint32_t all;
        std::memcpy(&all, &value, 4);
        all |= sign;
        std::memcpy(&value, &all, 4);
        return value;
#endif
    }
};

inline f32x16 from_half(const uint16_t* from) {
    return each<f32x16>([&](int i) {
        const uint16_t* at = from + i * (REGISTER / 4);
#if defined(__AVX512F__)
        return (f32x16::Register)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
#elif defined(__AVX2__) && defined(__F16C__)
        return (f32x16::Register)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
#elif defined(__aarch64__)
        return (f32x16::Register)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at)));
#else
        f32x16::Register out;
        for (int lane = 0; lane < REGISTER / 4; lane++) out[lane] = float(load<Half>(at + lane));
        return out;
#endif
    });
}

inline f32x16 lanes(const float* from) { return load<f32x16>(from); }
inline f32x16 lanes(const Half* from) { return from_half(&from->bits); }

inline void store_lanes(float* to, f32x16 v) { store(to, v); }
inline void store_lanes(Half* to, f32x16 v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)v.part[0], _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < LANES; i++) to[i] = Half(v.part[i / (REGISTER / 4)][i % (REGISTER / 4)]);
#endif
}

inline f32x16 to_float(i32x16 v) {
    return each<f32x16>([&](int i) { return __builtin_convertvector(v.part[i], f32x16::Register); });
}

// Valid for integral values within int32.
inline i32x16 to_int(f32x16 v) {
    return each<i32x16>([&](int i) { return __builtin_convertvector(v.part[i], i32x16::Register); });
}

// Each lane's low byte.
inline void store_bytes(int8_t* to, i32x16 v) {
    typedef int8_t Narrow __attribute__((vector_size(REGISTER / 4)));
    for (int i = 0; i < PARTS; i++) store(to + i * (REGISTER / 4), __builtin_convertvector(v.part[i], Narrow));
}

// a > b ? yes : no, lane by lane.
inline f32x16 where_above(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
    return each<f32x16>([&](int i) { return a.part[i] > b.part[i] ? yes.part[i] : no.part[i]; });
}

inline f32x16 larger(f32x16 a, f32x16 b) { return where_above(a, b, a, b); }

inline f32x16 magnitude(f32x16 v) { return where_above(f32x16{}, v, -v, v); }

// Lane i holds lane i + HALF.
template <int HALF, int... I>
inline f32x16::Register rotated(f32x16::Register v, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(v, v, ((I + HALF) % (REGISTER / 4))...);
#else
    return __builtin_shuffle(v, i32x16::Register{((I + HALF) % (REGISTER / 4))...});
#endif
}

template <int HALF, class Function>
inline float fold_register(f32x16::Register v, Function&& function) {
    if constexpr (HALF == 0) return v[0];
    else
        return fold_register<HALF / 2>(function(v, rotated<HALF>(v, std::make_integer_sequence<int, REGISTER / 4>{})),
                                       function);
}

// Lane i with lane i + 8, then with i + 4, i + 2 and i + 1: the same order for any register.
template <class Function>
inline float fold(f32x16 v, Function&& function) {
#pragma GCC unroll 2
    for (int half = PARTS / 2; half; half /= 2)
#pragma GCC unroll 2
        for (int i = 0; i < half; i++) v.part[i] = function(v.part[i], v.part[i + half]);
    return fold_register<REGISTER / 8>(v.part[0], function);
}

inline float largest(f32x16 v) {
    return fold(v, [](f32x16::Register a, f32x16::Register b) { return a > b ? a : b; });
}

inline float sum(f32x16 v) {
    return fold(v, [](f32x16::Register a, f32x16::Register b) { return a + b; });
}

// Ties to even. Valid for |v| < 2^22.
inline f32x16 nearest(f32x16 v) {
    const f32x16 magic = splat(12582912.0f);
    return (v + magic) - magic;
}

// To 2 ulp for v <= 0, the range of softmax and silu; 0 below -87.
inline f32x16 exp_of_negative(f32x16 v) {
    f32x16 clipped = larger(v, splat(-87.0f));
    f32x16 n = nearest(clipped * splat(1.44269504f));
    f32x16 r = fma(n, splat(-0.693359375f), clipped);
    r = fma(n, splat(2.12194440e-4f), r);
    f32x16 p = splat(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fma(p, r, splat(c));
    p = fma(p, r * r, r + splat(1.0f));
    i32x16 exponent = (to_int(n) + splat(127)) << 23;
    f32x16 out = p * each<f32x16>([&](int i) { return (f32x16::Register)exponent.part[i]; });
    out = where_above(splat(-87.0f), v, f32x16{}, out);
    return each<f32x16>([&](int i) { return v.part[i] == v.part[i] ? out.part[i] : v.part[i]; });
}

inline f32x16 silu(f32x16 v) {
    f32x16 zero{}, one = splat(1.0f);
    f32x16 e = exp_of_negative(where_above(v, zero, -v, v));  // exp(-|v|)
    return v * where_above(v, zero, one, e) / (one + e);
}

}  // namespace octet
