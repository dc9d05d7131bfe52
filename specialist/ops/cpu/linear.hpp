// y = W x, over weights packed in tiles of 16 rows. Each output is accumulated in column order for any number of
// tokens, so a row of a batch never depends on the others.
//
// float    for each column k: 16 floats
// 8 bits   for each group of 32 columns: 8 vectors, byte [4r + i] of vector j is row r, column 4j + i;
//          then 16 half scales and 16 half minima
// 4 bits   for each group of 32 columns: 4 vectors, byte [4r + i] of vector j holds row r, column 8j + i in its low and
//          column 8j + 4 + i in its high nibble; then scales and minima
#pragma once

#include <algorithm>
#include <type_traits>

#include "vector.hpp"

namespace octet {

constexpr int GROUP = 32;

enum Kind : int32_t { ABSENT = 0, FLOAT = 32, EIGHT = 8, FOUR = 4 };

struct Linear {
    int32_t kind;
    int32_t rows;
    int32_t columns;
    int32_t offset;  // position of its outputs in a row of y
    const uint8_t* data;
    const float* bias;

    int tiles() const { return (rows + LANES - 1) / LANES; }
    size_t tile_bytes() const {
        if (kind == FLOAT) return size_t(columns) * LANES * sizeof(float);
        return size_t(columns / GROUP) * (GROUP * LANES * kind / 8 + 4 * LANES);
    }
};

constexpr int BLOCK = 16;  // tokens whose quantised activations are adjacent

// Activations: floats, and for each group of 32 the same in 12 bits, 16 * high + low, with their scale and their scaled
// sum. With 8 bits, every second greedy answer would change within 32 tokens.
struct Input {
    const float* floats;  // [tokens, columns]
    int columns;
    int8_t* highs;  // [tokens / 16, groups, 16, 32]
    int8_t* lows;   // likewise
    float* scales;  // [tokens / 16, groups, 16]
    float* sums;    // likewise

    size_t group_of(int token, int group) const {
        return (size_t(token / BLOCK) * (columns / GROUP) + group) * BLOCK + token % BLOCK;
    }
};

constexpr int LOW_BITS = 4;
constexpr float STEPS = float(127 << LOW_BITS);  // for the largest value of a group: high byte 127, low byte 0

inline void quantise(const Input& x, int token) {
    for (int g = 0; g < x.columns / GROUP; g++) {
        const float* from = x.floats + size_t(token) * x.columns + g * GROUP;
        const size_t at = x.group_of(token, g);
        f32x16 halves[2] = {load<f32x16>(from), load<f32x16>(from + LANES)};
        const float peak = largest(larger(magnitude(halves[0]), magnitude(halves[1])));
        const bool usable = peak > 1e-30f;  // below this STEPS / peak may be infinite, and the values do not matter
        const f32x16 inverse = splat(usable ? STEPS / peak : 0.0f);
        f32x16 total{};
        for (int i = 0; i < 2; i++) {
            f32x16 steps = nearest(halves[i] * inverse);
            i32x16 q = to_int(steps);
            i32x16 high = (q + splat((1 << LOW_BITS) / 2)) >> LOW_BITS;
            store_bytes(x.highs + at * GROUP + i * LANES, high);
            store_bytes(x.lows + at * GROUP + i * LANES, q - (high << LOW_BITS));
            total += steps;
        }
        const float whole = sum(total);  // NaN if any value is not finite: then this row fails, and only this row
        const float scale = peak / STEPS + (whole - whole);
        x.scales[size_t(token) * (x.columns / GROUP) + g] = scale;
        x.sums[size_t(token) * (x.columns / GROUP) + g] = whole * scale;
    }
}

inline u8x64 low_nibbles(u8x64 both) { return both & uint8_t(15); }
inline u8x64 high_nibbles(u8x64 both) { return (both >> 4) & uint8_t(15); }

// The 32 columns of a group as 8 vectors of 4 columns x 16 rows.
template <int BITS>
inline void unpack(const uint8_t* group, u8x64 (&out)[8]) {
    if constexpr (BITS == 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) out[j] = load<u8x64>(group + 64 * j);
    } else {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            u8x64 both = load<u8x64>(group + 64 * j);
            out[2 * j] = low_nibbles(both);
            out[2 * j + 1] = high_nibbles(both);
        }
    }
}

// With several registers per tile of 16 rows there are too few registers for more tokens.
constexpr int MOST_INTEGERS = PARTS == 1 ? 8 : 2, MOST_FLOATS = PARTS == 1 ? 8 : 4;

constexpr bool HALVES(int bits) { return bits == 8 && WIDEST_DOT < 255; }

// acc += the exact dot products of the group's 16 rows with each token's bytes. Unrolled, to keep sums in registers.
template <int BITS, int TOKENS>
inline void add_dots(const u8x64 (&w)[8], const int8_t* x, i32x16 (&acc)[TOKENS]) {
    i32x16 upper[TOKENS]{}, odd[TOKENS]{};
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++) {
            int32_t quad = load<int32_t>(x + t * GROUP + 4 * j);
            i32x16& some = TOKENS <= 2 && j % 2 ? odd[t] : acc[t];
            some = dot4(some, HALVES(BITS) ? low_nibbles(w[j]) : w[j], quad);
            if (HALVES(BITS)) upper[t] = dot4(upper[t], high_nibbles(w[j]), quad);
        }
    if (TOKENS <= 2)
#pragma GCC unroll 2
        for (int t = 0; t < TOKENS; t++) acc[t] += odd[t];
    if (HALVES(BITS))
        for (int t = 0; t < TOKENS; t++) acc[t] += upper[t] << 4;
}

// The group's dot products with activations of 12 bits.
template <int BITS, int TOKENS>
inline void group_dots(const uint8_t* group, const int8_t* highs, const int8_t* lows, i32x16 (&dots)[TOKENS]) {
    if constexpr (PARTS == 1) {
        u8x64 w[8];
        unpack<BITS>(group, w);
        if constexpr (TOKENS <= 4) {  // twice as many independent sums are faster than few dependent ones
            i32x16 high[TOKENS]{};
            add_dots<BITS, TOKENS>(w, highs, high);
            add_dots<BITS, TOKENS>(w, lows, dots);
#pragma GCC unroll 4
            for (int t = 0; t < TOKENS; t++) dots[t] += high[t] << LOW_BITS;
        } else {
            add_dots<BITS, TOKENS>(w, highs, dots);
#pragma GCC unroll 8
            for (int t = 0; t < TOKENS; t++) dots[t] = dots[t] << LOW_BITS;
            add_dots<BITS, TOKENS>(w, lows, dots);
        }
    } else {  // a group exceeds the registers: each vector is unpacked where it is used
        i32x16 high[TOKENS]{}, upper[TOKENS]{}, upper_high[TOKENS]{};
#pragma GCC unroll 1  // otherwise compilers use more sums at a time than there are registers
        for (int j = 0; j < BITS; j++) {
            const u8x64 both = load<u8x64>(group + 64 * j), low_part = low_nibbles(both),
                        high_part = high_nibbles(both);
#pragma GCC unroll 2
            for (int t = 0; t < TOKENS; t++) {
                auto quad = [&](const int8_t* x, int k) { return load<int32_t>(x + t * GROUP + 4 * k); };
                if constexpr (BITS == 4) {
                    high[t] = dot4(dot4(high[t], low_part, quad(highs, 2 * j)), high_part, quad(highs, 2 * j + 1));
                    dots[t] = dot4(dot4(dots[t], low_part, quad(lows, 2 * j)), high_part, quad(lows, 2 * j + 1));
                } else if constexpr (HALVES(BITS)) {
                    high[t] = dot4(high[t], low_part, quad(highs, j));
                    dots[t] = dot4(dots[t], low_part, quad(lows, j));
                    upper_high[t] = dot4(upper_high[t], high_part, quad(highs, j));
                    upper[t] = dot4(upper[t], high_part, quad(lows, j));
                } else {
                    high[t] = dot4(high[t], both, quad(highs, j));
                    dots[t] = dot4(dots[t], both, quad(lows, j));
                }
            }
        }
#pragma GCC unroll 2
        for (int t = 0; t < TOKENS; t++)
            dots[t] += (high[t] << LOW_BITS) + (upper[t] << 4) + (upper_high[t] << (LOW_BITS + 4));
    }
}

// What a group adds to an output, in the order that every code path uses.
inline f32x16 add_group(f32x16 acc, i32x16 dot, f32x16 scale, f32x16 minimum, float x_scale, float x_sum) {
    acc = fma(to_float(dot), scale * splat(x_scale), acc);
    return fma(minimum, splat(x_sum), acc);
}

// Prefetches the weights of a group a few microseconds ahead: the CPU's own prefetcher does not look far enough.
template <int STRIDE>
inline void fetch_ahead(const uint8_t* group) {
    constexpr int DISTANCE = 6144;
#pragma GCC unroll 10
    for (int line = 0; line < STRIDE; line += 64) __builtin_prefetch(group + DISTANCE + line);
}

// Tokens [first, first + TOKENS), all in one block.
template <int BITS, int TOKENS>
inline void affine_tile(const uint8_t* tile, const Input& x, int first, f32x16* out) {
    constexpr int VALUES = GROUP * LANES * BITS / 8, STRIDE = VALUES + 4 * LANES;
    const int groups = x.columns / GROUP;
    const float *x_scales = x.scales + size_t(first) * groups, *x_sums = x.sums + size_t(first) * groups;
    f32x16 acc[TOKENS];
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++) acc[t] = f32x16{};
#pragma GCC unroll 1
    for (int g = 0; g < groups; g++, tile += STRIDE) {
        fetch_ahead<STRIDE>(tile);
        const size_t at = x.group_of(first, g);
        f32x16 scale = from_half(reinterpret_cast<const uint16_t*>(tile + VALUES));
        f32x16 minimum = from_half(reinterpret_cast<const uint16_t*>(tile + VALUES + 2 * LANES));
        i32x16 dots[TOKENS]{};
        group_dots<BITS, TOKENS>(tile, x.highs + at * GROUP, x.lows + at * GROUP, dots);
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++)
            acc[t] = add_group(acc[t], dots[t], scale, minimum, x_scales[t * groups + g], x_sums[t * groups + g]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++) out[t] = acc[t];
}

template <int TOKENS>
inline void float_tile(const uint8_t* tile, const Input& x, int first, f32x16* out) {
    const int columns = x.columns;
    const float* w = reinterpret_cast<const float*>(tile);
    const float* in = x.floats + size_t(first) * columns;
    f32x16 acc[TOKENS];
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++) acc[t] = f32x16{};
    for (int k = 0; k < columns; k++) {
        f32x16 column = load<f32x16>(w + size_t(k) * LANES);
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++) acc[t] = fma(column, splat(in[size_t(t) * columns + k]), acc[t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; t++) out[t] = acc[t];
}

}  // namespace octet

#include "amx.hpp"

namespace octet {

// Computes at most `tokens` tokens from `first` on; returns how many.
inline int tile_times_some(const Linear& w, const uint8_t* tile, const Input& x, int first, int tokens, f32x16* out) {
    static_assert(BLOCK % MOST_INTEGERS == 0, "tokens at once are all of one block");
    if (w.kind == FLOAT) return up_to<MOST_FLOATS>(tokens, [&](auto count) { float_tile<count>(tile, x, first, out); });
    if (tokens >= AMX_PAYS_FROM && amx_allowed()) {
        if (w.kind == FOUR) amx_tile<4>(tile, x, first, out);
        else amx_tile<8>(tile, x, first, out);
        return std::min(tokens, BLOCK);
    }
    if (w.kind == FOUR)
        return up_to<MOST_INTEGERS>(tokens, [&](auto count) { affine_tile<4, count>(tile, x, first, out); });
    return up_to<MOST_INTEGERS>(tokens, [&](auto count) { affine_tile<8, count>(tile, x, first, out); });
}

// One tile's outputs for all tokens: y[t, offset + 16 tile + lane] = value, or += factor * value.
inline void linear_tile(const Linear& w, int tile, const Input& x, int tokens, float* y, int stride, bool add,
                        float factor = 1.0f) {
    const uint8_t* packed = w.data + tile * w.tile_bytes();
    const int lanes = std::min(LANES, w.rows - tile * LANES);
    f32x16 out[BLOCK];
    f32x16 bias{};
    if (w.bias) std::memcpy(&bias, w.bias + tile * LANES, lanes * sizeof(float));
    for (int first = 0; first < tokens;) {
        int some = tile_times_some(w, packed, x, first, tokens - first, out);
        for (int t = 0; t < some; t++) {
            float* to = y + size_t(first + t) * stride + w.offset + tile * LANES;
            f32x16 value = out[t] + bias;
            if (add) {
                f32x16 before{};
                std::memcpy(&before, to, lanes * sizeof(float));
                value = before + value * splat(factor);
            }
            if (lanes == LANES) store(to, value);
            else std::memcpy(to, &value, lanes * sizeof(float));
        }
        first += some;
    }
}

}  // namespace octet
