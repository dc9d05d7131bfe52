// Sixteen lanes, whatever the CPU has. Everything here is element-wise or in a fixed order, and every fused
// multiply-add is spelled out: a result never depends on how a loop was compiled or how large a batch was.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace octet {

constexpr int LANES = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));
typedef int8_t i8x16 __attribute__((vector_size(16)));

inline f32x16 splat(float value) { return value - f32x16{}; }

template <class Vector, class Scalar>
inline Vector load(const Scalar* from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class Vector, class Scalar>
inline void store(Scalar* to, Vector value) {
    std::memcpy(to, &value, sizeof value);
}

inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    f32x16 out;
    for (int i = 0; i < 2; i++) {
        auto at = [&](f32x16& v) { return reinterpret_cast<float*>(&v) + 8 * i; };
        _mm256_storeu_ps(at(out), _mm256_fmadd_ps(_mm256_loadu_ps(at(a)), _mm256_loadu_ps(at(b)), _mm256_loadu_ps(at(c))));
    }
    return out;
#elif defined(__ARM_NEON)
    f32x16 out;
    for (int i = 0; i < 4; i++) {
        auto at = [&](f32x16& v) { return reinterpret_cast<float*>(&v) + 4 * i; };
        vst1q_f32(at(out), vfmaq_f32(vld1q_f32(at(c)), vld1q_f32(at(a)), vld1q_f32(at(b))));
    }
    return out;
#else
    f32x16 out;
    for (int i = 0; i < LANES; i++) out[i] = std::fma(a[i], b[i], c[i]);
    return out;
#endif
}

// acc[r] += sum of w[4r + i] * x[i] for i in 0..3, the four x packed into one integer.
// Exact for w up to WIDEST_DOT: the CPUs without a u8 x s8 dot product take nibbles only.
#if defined(__AVX512VNNI__)
constexpr int WIDEST_DOT = 255;
constexpr const char* DOT = "avx512-vnni";
inline i32x16 dot4(i32x16 acc, u8x64 w, int32_t x) {
    return (i32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(x));
}
#elif defined(__AVX2__)
constexpr int WIDEST_DOT = 15;
constexpr const char* DOT = "avx2";
inline i32x16 dot4(i32x16 acc, u8x64 w, int32_t x) {
    __m256i quad = _mm256_set1_epi32(x), ones = _mm256_set1_epi16(1);
    for (int i = 0; i < 2; i++) {
        auto* sum = reinterpret_cast<__m256i*>(&acc) + i;
        __m256i pairs = _mm256_maddubs_epi16(_mm256_loadu_si256(reinterpret_cast<__m256i*>(&w) + i), quad);
        _mm256_storeu_si256(sum, _mm256_add_epi32(_mm256_loadu_si256(sum), _mm256_madd_epi16(pairs, ones)));
    }
    return acc;
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int WIDEST_DOT = 15;
constexpr const char* DOT = "neon-dotprod";
inline i32x16 dot4(i32x16 acc, u8x64 w, int32_t x) {
    int8x16_t quad = vreinterpretq_s8_s32(vdupq_n_s32(x));
    for (int i = 0; i < 4; i++) {
        auto* sum = reinterpret_cast<int32_t*>(&acc) + 4 * i;
        int8x16_t bytes = vld1q_s8(reinterpret_cast<int8_t*>(&w) + 16 * i);
        vst1q_s32(sum, vdotq_s32(vld1q_s32(sum), bytes, quad));
    }
    return acc;
}
#else
constexpr int WIDEST_DOT = 255;
constexpr const char* DOT = "portable";
inline i32x16 dot4(i32x16 acc, u8x64 w, int32_t x) {
    int8_t quad[4];
    std::memcpy(quad, &x, 4);
    for (int r = 0; r < LANES; r++)
        for (int i = 0; i < 4; i++) acc[r] += int32_t(w[4 * r + i]) * quad[i];
    return acc;
}
#endif

inline f32x16 from_half(const uint16_t* from) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
    f32x16 out;
    for (int i = 0; i < LANES; i++) out[i] = float(load<_Float16>(from + i));
    return out;
#endif
}

inline f32x16 lanes(const float* from) { return load<f32x16>(from); }
inline f32x16 lanes(const _Float16* from) { return from_half(reinterpret_cast<const uint16_t*>(from)); }

inline f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }

inline f32x16 larger(f32x16 a, f32x16 b) { return a > b ? a : b; }

// Lane i beside lane i + half, for the folds below.
inline f32x16 folded(f32x16 v, int half) {
    const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return __builtin_shuffle(v, (lane + half) & 15);
}

inline float largest(f32x16 v) {
    for (int half = 8; half; half /= 2) v = larger(v, folded(v, half));
    return v[0];
}

inline float sum(f32x16 v) {
    for (int half = 8; half; half /= 2) v += folded(v, half);
    return v[0];
}

// Halfway cases to even. Right for |v| < 2^22.
inline f32x16 nearest(f32x16 v) {
    const f32x16 magic = splat(12582912.0f);
    return (v + magic) - magic;
}

// To 2 ulp for v <= 0, which is all that softmax and silu need; 0 below -87.
inline f32x16 exp_of_negative(f32x16 v) {
    f32x16 clipped = larger(v, splat(-87.0f));
    f32x16 n = nearest(clipped * splat(1.44269504f));
    f32x16 r = fma(n, splat(-0.693359375f), clipped);
    r = fma(n, splat(2.12194440e-4f), r);
    f32x16 p = splat(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fma(p, r, splat(c));
    p = fma(p, r * r, r + splat(1.0f));
    i32x16 exponent = (__builtin_convertvector(n, i32x16) + 127) << 23;
    f32x16 out = p * (f32x16)exponent;
    out = v < splat(-87.0f) ? f32x16{} : out;
    return v == v ? out : v;
}

inline f32x16 silu(f32x16 v) {
    f32x16 e = exp_of_negative(v > f32x16{} ? -v : v);  // exp(-|v|)
    f32x16 one = splat(1.0f);
    return v * (v > f32x16{} ? one : e) / (one + e);
}

}  // namespace octet
