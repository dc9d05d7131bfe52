// Layers that carry a state from token to token: causal convolution, selective scan, gated norm.
// Sums run over the taps, or over the rows of the state, in ascending order. A token's bits therefore do not depend on
// which tokens share its call, and are the same with any instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "vector.hpp"

namespace octet {

// The first `count` of 16 lanes; the others are 0.
inline f32x16 load_some(const float* from, int count) {
    float all[LANES] = {};
    std::memcpy(all, from, size_t(count) * sizeof(float));
    return load<f32x16>(all);
}

inline void store_some(float* to, f32x16 v, int count) {
    float all[LANES];
    store(all, v);
    std::memcpy(to, all, size_t(count) * sizeof(float));
}

// VECTORS neighbouring vectors of a row. All are whole, or there is one and it has `count` lanes.
template <int VECTORS, bool WHOLE>
struct Columns {
    static_assert(WHOLE || VECTORS == 1);
    int count;

    f32x16 load(const float* from, int vector) const {
        if constexpr (WHOLE) return octet::load<f32x16>(from + vector * LANES);
        else return load_some(from, count);
    }
    void store(float* to, int vector, f32x16 v) const {
        if constexpr (WHOLE) octet::store(to + vector * LANES, v);
        else store_some(to, v, count);
    }
};

// Calls body(columns, first) until the columns [first, last) are done, at most MOST vectors at a time.
template <int MOST, class Body>
inline void each_columns(int first, int last, Body&& body) {
    while (first + LANES <= last)
        first += LANES * up_to<MOST>((last - first) / LANES, [&](auto vectors) {
                     body(Columns<vectors, true>{LANES}, first);
                 });
    if (first < last) body(Columns<1, false>{last - first}, first);
}

// log(1 + exp(v)), to 4 ulp.
inline f32x16 softplus(f32x16 v) {
    f32x16 e = exp_of_negative(-magnitude(v));
    f32x16 s = e / (e + splat(2.0f));  // log(1 + e) = 2 atanh(s) = 2 (s + s^3 / 3 + ...), s at most 1/3
    f32x16 square = s * s, p = splat(1.0f / 17);
    for (float odd : {15.0f, 13.0f, 11.0f, 9.0f, 7.0f, 5.0f, 3.0f}) p = fma(p, square, splat(1.0f / odd));
    return larger(v, f32x16{}) + splat(2.0f) * fma(p * square, s, s);
}

// A depthwise convolution over the token and the width - 1 tokens before it.
struct Conv {
    int channels;
    int width;            // at least 2
    const float* weight;  // [width, channels]; the last row is the token's own
    const float* bias;    // [channels], or null
    bool silu;
};

// Channels [first_channel, last_channel) of x and y [tokens, stride]. They may be the same memory, because the last
// token is computed first. state, next [width - 1, channels]: the inputs before the first token, and those up to the
// last. They differ; next may be null.
inline void convolve(const Conv& conv, const float* x, size_t x_stride, int tokens, const float* state, float* next,
                     float* y, size_t y_stride, int first_channel, int last_channel) {
    const int past = conv.width - 1;
    auto input = [&](int t) { return t < 0 ? state + size_t(past + t) * conv.channels : x + t * x_stride; };
    if (next)
        for (int k = 0; k < past; k++)
            std::copy(input(tokens - past + k) + first_channel, input(tokens - past + k) + last_channel,
                      next + size_t(k) * conv.channels + first_channel);
    for (int t = tokens - 1; t >= 0; t--)
        each_columns<1>(first_channel, last_channel, [&](auto columns, int at) {
            __builtin_prefetch(input(std::max(t - conv.width, -past)) + at);  // the next token's oldest input
            f32x16 acc = conv.bias ? columns.load(conv.bias + at, 0) : f32x16{};
            for (int k = 0; k <= past; k++)
                acc = fma(columns.load(conv.weight + size_t(k) * conv.channels + at, 0),
                          columns.load(input(t - past + k) + at, 0), acc);
            columns.store(y + t * y_stride + at, 0, conv.silu ? silu(acc) : acc);
        });
}

// For each head, with a token's step size dt = clamp(softplus(dt_raw + dt_bias)):
// state = exp(dt a) state + b (dt x)^T, then y = c state + d x. Consecutive heads share a group's b and c.
struct Scan {
    int heads;
    int head_dim;
    int state_size;
    int groups;
    const float* a;        // [heads], negative
    const float* d;        // [heads]
    const float* dt_bias;  // [heads]
    float dt_min;
    float dt_max;
};

// A slice of the state stays in registers over SCAN_TOKENS tokens: SCAN_ROWS rows of SCAN_VECTORS vectors.
constexpr int SCAN_TOKENS = 32;
constexpr int SCAN_ROWS = 4;
constexpr int SCAN_VECTORS = PARTS == 1 ? 4 : 1;

struct StepSizes {
    float dt[SCAN_TOKENS];
    float decay[SCAN_TOKENS];

    StepSizes(const Scan& scan, int head, int tokens, const float* raw, size_t stride) {
        static_assert(SCAN_TOKENS % LANES == 0);
        for (int t = 0; t < SCAN_TOKENS; t++) dt[t] = t < tokens ? raw[t * stride + head] : 0.0f;
        for (int t = 0; t < tokens; t += LANES) {
            f32x16 step = softplus(load<f32x16>(dt + t) + splat(scan.dt_bias[head]));
            step = where_above(splat(scan.dt_min), step, splat(scan.dt_min), step);
            step = where_above(step, splat(scan.dt_max), splat(scan.dt_max), step);
            store(dt + t, step);
            store(decay + t, exp_of_negative(step * splat(scan.a[head])));
        }
    }
};

template <int ROWS, bool OUT, int VECTORS, bool WHOLE>
inline void scan_rows(Columns<VECTORS, WHOLE> columns, int head_dim, const float* decay, int tokens, const float* b,
                      const float* c, size_t stride, const float* in, const float* state, float* next, float* out) {
    f32x16 kept[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) kept[r][v] = columns.load(state + size_t(r) * head_dim, v);
    for (int t = 0; t < tokens; t++, b += stride, c += stride, in += VECTORS * LANES, out += VECTORS * LANES) {
        const f32x16 factor = splat(decay[t]);
        __builtin_prefetch(b + LANES);
        __builtin_prefetch(c + LANES);
        f32x16 x[VECTORS], y[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            x[v] = load<f32x16>(in + v * LANES);
            if constexpr (OUT) y[v] = load<f32x16>(out + v * LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                kept[r][v] = fma(splat(b[r]), x[v], kept[r][v] * factor);
                if constexpr (OUT) y[v] = fma(splat(c[r]), kept[r][v], y[v]);
            }
        if constexpr (OUT)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) store(out + v * LANES, y[v]);
    }
    if (next == nullptr) return;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) columns.store(next + size_t(r) * head_dim, v, kept[r][v]);
}

// Some columns of a head over at most SCAN_TOKENS tokens. All pointers are at the first of these columns.
template <bool OUT, int VECTORS, bool WHOLE>
inline void scan_columns(Columns<VECTORS, WHOLE> columns, const Scan& scan, float d, const StepSizes& steps, int tokens,
                         const float* x, const float* b, const float* c, size_t stride, const float* state, float* next,
                         float* y, size_t y_stride) {
    constexpr int WIDTH = VECTORS * LANES;
    alignas(64) float in[SCAN_TOKENS * WIDTH], out[SCAN_TOKENS * WIDTH];
    for (int t = 0; t < tokens; t++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            const f32x16 value = columns.load(x + t * stride, v);
            store(in + t * WIDTH + v * LANES, splat(steps.dt[t]) * value);
            if constexpr (OUT) store(out + t * WIDTH + v * LANES, splat(d) * value);
        }
    for (int n = 0; n < scan.state_size;)
        n += up_to<SCAN_ROWS>(scan.state_size - n, [&](auto rows) {
            const size_t row = size_t(n) * scan.head_dim;
            scan_rows<rows, OUT>(columns, scan.head_dim, steps.decay, tokens, b + n, c + n, stride, in, state + row,
                                 next ? next + row : nullptr, out);
        });
    if constexpr (OUT)
        for (int t = 0; t < tokens; t++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                columns.store(y + t * y_stride, v, load<f32x16>(out + t * WIDTH + v * LANES));
}

// One head. x [tokens, heads, head_dim], b and c [tokens, groups, state_size] have rows of `stride` values, dt_raw
// [tokens, heads] of dt_stride and y [tokens, heads, head_dim] of y_stride. y is null if only the state is wanted.
// state, next [state_size, head_dim] are this head's; next may be state, or null if only y is wanted.
inline void scan(const Scan& scan, int head, int tokens, const float* x, size_t stride, const float* b, const float* c,
                 const float* dt_raw, size_t dt_stride, const float* state, float* next, float* y, size_t y_stride) {
    const size_t first = size_t(head) * scan.head_dim;
    const size_t group = size_t(head / (scan.heads / scan.groups)) * scan.state_size;
    std::vector<float> spare;
    if (next == nullptr && tokens > SCAN_TOKENS) {
        spare.resize(size_t(scan.state_size) * scan.head_dim);
        next = spare.data();
    }
    for (int t = 0; t < tokens; t += SCAN_TOKENS, state = next) {
        const int some = std::min(tokens - t, SCAN_TOKENS);
        const StepSizes steps(scan, head, some, dt_raw + t * dt_stride, dt_stride);
        const size_t row = t * stride;
        each_columns<SCAN_VECTORS>(0, scan.head_dim, [&](auto columns, int at) {
            auto run = [&](auto out) {
                scan_columns<out>(columns, scan, scan.d[head], steps, some, x + row + first + at, b + row + group,
                                  c + row + group, stride, state + at, next ? next + at : nullptr,
                                  out ? y + t * y_stride + first + at : nullptr, y_stride);
            };
            if (y) run(std::true_type{});
            else run(std::false_type{});
        });
    }
}

// out = y silu(gate); out may be y.
inline void gate_row(const float* y, const float* gate, int count, float* out) {
    each_columns<1>(0, count, [&](auto columns, int at) {
        columns.store(out + at, 0, columns.load(y + at, 0) * silu(columns.load(gate + at, 0)));
    });
}

// Each of `groups` equal parts divided by its root mean square, times weight [count]; out may be y.
inline void norm_groups(const float* y, const float* weight, int count, int groups, float eps, float* out) {
    const int size = count / groups;
    for (int g = 0; g < groups; g++, y += size, weight += size, out += size) {
        f32x16 squares{};
        each_columns<1>(0, size, [&](auto columns, int at) {
            const f32x16 v = columns.load(y + at, 0);
            squares = fma(v, v, squares);
        });
        const f32x16 factor = splat(1.0f / std::sqrt(sum(squares) / float(size) + eps));
        each_columns<1>(0, size, [&](auto columns, int at) {
            columns.store(out + at, 0, columns.load(y + at, 0) * factor * columns.load(weight + at, 0));
        });
    }
}

// The output of one token: gated, then normed by groups, or normed, then gated. out may be y.
inline void gated_norm_row(const float* y, const float* gate, const float* weight, int count, int groups, float eps,
                           bool gate_first, float* out) {
    if (gate_first) {
        gate_row(y, gate, count, out);
        norm_groups(out, weight, count, groups, eps, out);
    } else {
        norm_groups(y, weight, count, groups, eps, out);
        gate_row(out, gate, count, out);
    }
}

}  // namespace octet
