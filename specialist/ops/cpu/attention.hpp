// Attention of a few consecutive tokens of one sequence over its paged context, for the query heads of one KV head.
// A token's result depends on its own context alone: neither on the tokens beside it nor on where a chunk began.
//
// keys    [block, kv head, head_dim, block_size]: a vector of scores needs no sum across lanes
// values  [block, kv head, block_size, head_dim]
#pragma once

#include <algorithm>
#include <limits>

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

// The query vectors that share one pass over the keys: tokens x heads of a group.
constexpr int MOST_QUERIES = 12;

struct Query {
    const float* q;  // [head_dim], already scaled
    float* scores;   // [context, rounded up to whole blocks and vectors]
    float* out;      // [head_dim]
    int first;       // positions [first, last] are attended to
    int last;
};

template <int N, class Element>
inline void score_lanes(const Query* queries, const Element* keys, int head_dim, int block_size, int at, int lane) {
    f32x16 acc[N];
#pragma GCC unroll 12
    for (int i = 0; i < N; i++) acc[i] = f32x16{};
    for (int d = 0; d < head_dim; d++) {
        f32x16 k = lanes(keys + size_t(d) * block_size + lane);
#pragma GCC unroll 12
        for (int i = 0; i < N; i++) acc[i] = fma(k, splat(queries[i].q[d]), acc[i]);
    }
#pragma GCC unroll 12
    for (int i = 0; i < N; i++) store(queries[i].scores + at + lane, acc[i]);
}

template <int N, class Element>
inline void score_block(const Query* queries, const Element* keys, int head_dim, int block_size, int at) {
    int lane = 0;
    for (; lane + LANES <= block_size; lane += LANES) score_lanes<N>(queries, keys, head_dim, block_size, at, lane);
    for (; lane < block_size; lane++)
        for (int i = 0; i < N; i++) {
            float acc = 0.0f;
            for (int d = 0; d < head_dim; d++)
                acc = std::fma(float(keys[size_t(d) * block_size + lane]), queries[i].q[d], acc);
            queries[i].scores[at + lane] = acc;
        }
}

// Scores to weights over [first, last]; returns one over their sum. What lies outside was never valid and is not read.
inline float soften(const Query& query) {
    float* s = query.scores;
    const int stop = query.last + 1;
    const float lowest = -std::numeric_limits<float>::infinity();
    const int padded = (stop + LANES - 1) / LANES * LANES;
    const int base = query.first / LANES * LANES;
    std::fill(s + base, s + query.first, lowest);
    std::fill(s + stop, s + padded, lowest);
    f32x16 most = splat(lowest);
    for (int i = base; i < padded; i += LANES) most = larger(load<f32x16>(s + i), most);
    f32x16 peak = splat(largest(most)), total{};
    for (int i = base; i < padded; i += LANES) {
        f32x16 weight = exp_of_negative(load<f32x16>(s + i) - peak);
        store(s + i, weight);
        total += weight;
    }
    return 1.0f / sum(total);
}

template <int VECTORS, class Element>
inline void mix(const Cache<Element>& cache, const Query& query, const int32_t* table, int head, float factor,
                int column) {
    f32x16 acc[VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++) acc[j] = f32x16{};
    for (int position = query.first; position <= query.last;) {
        int block = position / cache.block_size, at = position % cache.block_size;
        int some = std::min(cache.block_size - at, query.last + 1 - position);
        const Element* v = cache.value_block(table[block], head) + size_t(at) * cache.head_dim + column;
        for (int i = 0; i < some; i++, v += cache.head_dim) {
            f32x16 weight = splat(query.scores[position + i]);
#pragma GCC unroll 4
            for (int j = 0; j < VECTORS; j++) acc[j] = fma(lanes(v + j * LANES), weight, acc[j]);
        }
        position += some;
    }
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++) store(query.out + column + j * LANES, acc[j] * splat(factor));
}

template <class Element>
inline void mix_all(const Cache<Element>& cache, const Query& query, const int32_t* table, int head, float factor) {
    int column = 0;
    for (; column + 4 * LANES <= cache.head_dim; column += 4 * LANES) mix<4>(cache, query, table, head, factor, column);
    for (; column + LANES <= cache.head_dim; column += LANES) mix<1>(cache, query, table, head, factor, column);
    for (; column < cache.head_dim; column++) {
        float acc = 0.0f;
        for (int p = query.first; p <= query.last; p++) {
            const Element* v = cache.value_block(table[p / cache.block_size], head);
            acc = std::fma(float(v[size_t(p % cache.block_size) * cache.head_dim + column]), query.scores[p], acc);
        }
        query.out[column] = acc * factor;
    }
}

template <class Element>
inline void score_some(const Query* queries, int count, const Element* keys, int head_dim, int block_size, int at) {
    if constexpr (PARTS == 1)  // elsewhere so many sums do not fit into the registers
        for (; count >= 12; count -= 12, queries += 12) score_block<12>(queries, keys, head_dim, block_size, at);
    for (; count >= 6; count -= 6, queries += 6) score_block<6>(queries, keys, head_dim, block_size, at);
    for (; count >= 3; count -= 3, queries += 3) score_block<3>(queries, keys, head_dim, block_size, at);
    for (; count >= 1; count -= 1, queries += 1) score_block<1>(queries, keys, head_dim, block_size, at);
}

template <class Element>
inline void attend(const Cache<Element>& cache, const Query* queries, int count, const int32_t* table, int head) {
    int first = queries[0].first, last = queries[0].last;
    for (int i = 1; i < count; i++) first = std::min(first, queries[i].first), last = std::max(last, queries[i].last);
    for (int block = first / cache.block_size; block <= last / cache.block_size; block++)
        score_some(queries, count, cache.key_block(table[block], head), cache.head_dim, cache.block_size,
                   block * cache.block_size);
    for (int i = 0; i < count; i++) mix_all(cache, queries[i], table, head, soften(queries[i]));
}

}  // namespace octet
