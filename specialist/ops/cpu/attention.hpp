// Attention of a few consecutive tokens of one sequence over its paged context, for the query heads of one KV head.
// A token's result depends only on its own context, not on the tokens beside it or on where a chunk began.
//
// keys    [block, kv head, head_dim, block_size]: a vector of scores needs no sum across lanes
// values  [block, kv head, block_size, head_dim]
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "vector.hpp"

namespace octet {

template <class Element>
struct Cache {
    Element* keys;
    Element* values;
    int kv_heads;
    int head_dim;
    int block_size;

    size_t block_stride() const { return size_t(kv_heads) * head_dim * block_size; }
    Element* key_block(int block, int head) const {
        return keys + block * block_stride() + size_t(head) * head_dim * block_size;
    }
    Element* value_block(int block, int head) const {
        return values + block * block_stride() + size_t(head) * head_dim * block_size;
    }

    void write(int slot, const float* k, const float* v) const {
        int block = slot / block_size, at = slot % block_size;
        for (int h = 0; h < kv_heads; h++) {
            Element* key = key_block(block, h) + at;
            Element* value = value_block(block, h) + size_t(at) * head_dim;
            for (int d = 0; d < head_dim; d++) key[size_t(d) * block_size] = Element(k[h * head_dim + d]);
            int d = 0;
            for (; d + LANES <= head_dim; d += LANES) store_lanes(value + d, load<f32x16>(v + h * head_dim + d));
            for (; d < head_dim; d++) value[d] = Element(v[h * head_dim + d]);
        }
    }
};

// The query vectors that share one pass over keys and values: tokens x heads of a group.
constexpr int MOST_QUERIES = 24;

struct Query {
    const float* q;  // [head_dim], already scaled
    float* scores;   // [context, rounded up to whole blocks and vectors]
    float* out;      // [head_dim]
    int first;       // positions [first, last] are attended to
    int last;
};

// The keys of 16 positions, and the first position, where their scores are written.
template <class Element>
struct Keys {
    const Element* at;
    int position;
};

// `q` holds the queries side by side, [head_dim, MOST_QUERIES], so that one address reaches all of them.
template <int N, int VECTORS, class Element>
inline void score(const Query* queries, const float* q, const Keys<Element>* keys, int head_dim, int block_size) {
    f32x16 acc[N][VECTORS];
#pragma GCC unroll 12
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) acc[n][j] = f32x16{};
    for (int d = 0; d < head_dim; d++) {
        f32x16 k[VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) k[j] = lanes(keys[j].at + size_t(d) * block_size);
#pragma GCC unroll 12
        for (int n = 0; n < N; n++)
#pragma GCC unroll 4
            for (int j = 0; j < VECTORS; j++) acc[n][j] = fma(k[j], splat(q[d * MOST_QUERIES + n]), acc[n][j]);
    }
#pragma GCC unroll 12
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) store(queries[n].scores + keys[j].position, acc[n][j]);
}

constexpr bool WIDE = PARTS == 1;  // otherwise the sums do not fit into the registers
constexpr int MOST_KEYS = 4;       // vectors of keys at once

template <int N, class Element>
inline void score_keys(const Query* queries, const float* q, const Keys<Element>* keys, int vectors, int head_dim,
                       int block_size) {
    constexpr int AT_ONCE = !WIDE ? 1 : N > 6 ? 2 : MOST_KEYS;
    for (; vectors >= AT_ONCE; vectors -= AT_ONCE, keys += AT_ONCE)
        score<N, AT_ONCE>(queries, q, keys, head_dim, block_size);
    for (; vectors > 0; vectors--, keys++) score<N, 1>(queries, q, keys, head_dim, block_size);
}

template <class Element>
inline void score_some(const Query* queries, const float* q, int count, const Keys<Element>* keys, int vectors,
                       int head_dim, int block_size) {
    auto times = [&](auto n) {
        for (; count >= n; count -= n, queries += n, q += n)
            score_keys<n>(queries, q, keys, vectors, head_dim, block_size);
    };
    if constexpr (WIDE) times(std::integral_constant<int, 12>{});
    times(std::integral_constant<int, 6>{});
    times(std::integral_constant<int, 3>{});
    times(std::integral_constant<int, 1>{});
}

// Scores of one position, for blocks that are not a multiple of a vector.
template <class Element>
inline void score_alone(const Query* queries, int count, const Keys<Element>& key, int head_dim, int block_size) {
    for (int n = 0; n < count; n++) {
        float acc = 0.0f;
        for (int d = 0; d < head_dim; d++) acc = std::fma(float(key.at[size_t(d) * block_size]), queries[n].q[d], acc);
        queries[n].scores[key.position] = acc;
    }
}

// Scores of all positions of the blocks that contain [first, last].
template <class Element>
inline void score_all(const Cache<Element>& cache, const Query* queries, const float* q, int count,
                      const int32_t* table, int head, int first, int last) {
    Keys<Element> keys[MOST_KEYS];
    int vectors = 0;
    auto flush = [&] {
        score_some(queries, q, count, keys, vectors, cache.head_dim, cache.block_size);
        vectors = 0;
    };
    for (int block = first / cache.block_size; block <= last / cache.block_size; block++) {
        const Element* at = cache.key_block(table[block], head);
        const int position = block * cache.block_size;
        int lane = 0;
        for (; lane + LANES <= cache.block_size; lane += LANES) {
            keys[vectors++] = {at + lane, position + lane};
            if (vectors == MOST_KEYS) flush();
        }
        for (; lane < cache.block_size; lane++)
            score_alone<Element>(queries, count, {at + lane, position + lane}, cache.head_dim, cache.block_size);
    }
    flush();
}

// Turns scores into weights over [first, last] and returns 1 / their sum. Scores outside are invalid and never read.
inline float soften(const Query& query) {
    float* s = query.scores;
    const int stop = query.last + 1;
    const float lowest = -std::numeric_limits<float>::infinity();
    const int padded = (stop + LANES - 1) / LANES * LANES;
    const int base = query.first / LANES * LANES;
    std::fill(s + base, s + query.first, lowest);
    std::fill(s + stop, s + padded, lowest);
    f32x16 most[4] = {splat(lowest), splat(lowest), splat(lowest), splat(lowest)};  // independent
    int at = base;
    for (; at + 4 * LANES <= padded; at += 4 * LANES)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) most[j] = larger(load<f32x16>(s + at + j * LANES), most[j]);
    for (; at < padded; at += LANES) most[0] = larger(load<f32x16>(s + at), most[0]);
    f32x16 peak = splat(largest(larger(larger(most[0], most[1]), larger(most[2], most[3])))), total{};
    for (int i = base; i < padded; i += LANES) {
        f32x16 weight = exp_of_negative(load<f32x16>(s + i) - peak);
        store(s + i, weight);
        total += weight;
    }
    return 1.0f / sum(total);
}

// Rows of values: the row of a position, and how many rows before `stop` follow it in memory.
template <class Element>
struct Paged {
    const Cache<Element>& cache;
    const int32_t* table;
    int head;

    const Element* row(int position, int stop, int& some) const {
        const int block = position / cache.block_size, at = position % cache.block_size;
        some = std::min(cache.block_size - at, stop - position);
        return cache.value_block(table[block], head) + size_t(at) * cache.head_dim;
    }
};

struct Flat {
    const float* rows;
    int from;
    int head_dim;

    const float* row(int position, int stop, int& some) const {
        some = stop - position;
        return rows + size_t(position - from) * head_dim;
    }
};

// Adds the weighted values of positions [from, stop) to the outputs of N queries. A value is loaded once for all of
// them. Sums continue in memory, so they are in the order of the positions however these are split.
template <int N, int VECTORS, class Values>
inline void mix(const Values& values, const Query* queries, int from, int stop, int head_dim, int column) {
    f32x16 acc[N][VECTORS];
#pragma GCC unroll 6
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) acc[n][j] = load<f32x16>(queries[n].out + column + j * LANES);
    for (int position = from, some; position < stop; position += some) {
        auto* v = values.row(position, stop, some) + column;
        for (int i = 0; i < some; i++, v += head_dim) {
            f32x16 value[VECTORS];
#pragma GCC unroll 4
            for (int j = 0; j < VECTORS; j++) value[j] = lanes(v + j * LANES);
#pragma GCC unroll 6
            for (int n = 0; n < N; n++)
#pragma GCC unroll 4
                for (int j = 0; j < VECTORS; j++)
                    acc[n][j] = fma(value[j], splat(queries[n].scores[position + i]), acc[n][j]);
        }
    }
#pragma GCC unroll 6
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) store(queries[n].out + column + j * LANES, acc[n][j]);
}

template <int N, class Values>
inline void mix_columns(const Values& values, const Query* queries, int from, int stop, int head_dim) {
    int column = 0;
    for (; column + 4 * LANES <= head_dim; column += 4 * LANES)
        mix<N, 4>(values, queries, from, stop, head_dim, column);
    for (; column + LANES <= head_dim; column += LANES) mix<N, 1>(values, queries, from, stop, head_dim, column);
    for (; column < head_dim; column++)
        for (int n = 0; n < N; n++)
            for (int p = from, some; p < stop; p++) {
                float& out = queries[n].out[column];
                out = std::fma(float(values.row(p, stop, some)[column]), queries[n].scores[p], out);
            }
}

// Leading queries that attend to the same positions of [from, stop) share a pass; returns how many there are.
template <class Values>
inline int mix_some(const Values& values, const Query* queries, int count, int from, int stop, int head_dim) {
    auto begin = [&](const Query& query) { return std::max(from, query.first); };
    auto end = [&](const Query& query) { return std::min(stop, query.last + 1); };
    int same = 1;
    while (same < count && begin(queries[same]) == begin(*queries) && end(queries[same]) == end(*queries)) same++;
    return up_to<WIDE ? 6 : 1>(
        same, [&](auto n) { mix_columns<n>(values, queries, begin(*queries), end(*queries), head_dim); });
}

template <class Values>
inline void mix_segment(const Values& values, const Query* queries, int count, int from, int stop, int head_dim) {
    for (int i = 0; i < count;) i += mix_some(values, queries + i, count - i, from, stop, head_dim);
}

constexpr int SEGMENT = 64;  // positions whose values stay in cache while all queries use them
constexpr int WIDENED_FROM = 12;  // queries from which on halves are converted to floats once and not per pass

// Scratch memory of one thread.
struct Room {
    float* packed;   // [head_dim, MOST_QUERIES]
    float* widened;  // [SEGMENT, head_dim]

    static size_t size(int head_dim) { return size_t(MOST_QUERIES + SEGMENT) * head_dim; }
    Room(float* floats, int head_dim) : packed(floats), widened(floats + size_t(MOST_QUERIES) * head_dim) {}
};

template <class Element>
inline void widen(const Paged<Element>& values, int from, int stop, int head_dim, float* to) {
    for (int position = from, some; position < stop; position += some) {
        const Element* v = values.row(position, stop, some);
        int i = 0;
        for (; i + LANES <= some * head_dim; i += LANES) store(to + i, lanes(v + i));
        for (; i < some * head_dim; i++) to[i] = float(v[i]);
        to += some * head_dim;
    }
}

template <class Element>
inline void mix_all(const Paged<Element>& values, const Query* queries, int count, int first, int last, int head_dim,
                    const Room& room) {
    for (int i = 0; i < count; i++) std::fill_n(queries[i].out, head_dim, 0.0f);
    for (int from = first; from <= last; from += SEGMENT) {
        const int stop = std::min(last + 1, from + SEGMENT);
        if (std::is_same_v<Element, Half> && count >= WIDENED_FROM) {
            widen(values, from, stop, head_dim, room.widened);
            mix_segment(Flat{room.widened, from, head_dim}, queries, count, from, stop, head_dim);
        } else {
            mix_segment(values, queries, count, from, stop, head_dim);
        }
    }
}

inline void scale(float* x, int count, float factor) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(x + i, load<f32x16>(x + i) * splat(factor));
    for (; i < count; i++) x[i] *= factor;
}

template <class Element>
inline void attend(const Cache<Element>& cache, const Query* queries, int count, const int32_t* table, int head,
                   const Room& room) {
    int first = queries[0].first, last = queries[0].last;
    for (int i = 0; i < count; i++) {
        first = std::min(first, queries[i].first), last = std::max(last, queries[i].last);
        for (int d = 0; d < cache.head_dim; d++) room.packed[d * MOST_QUERIES + i] = queries[i].q[d];
    }
    score_all(cache, queries, room.packed, count, table, head, first, last);
    float factors[MOST_QUERIES];
    for (int i = 0; i < count; i++) factors[i] = soften(queries[i]);
    mix_all(Paged<Element>{cache, table, head}, queries, count, first, last, cache.head_dim, room);
    for (int i = 0; i < count; i++) scale(queries[i].out, cache.head_dim, factors[i]);
}

}  // namespace octet
