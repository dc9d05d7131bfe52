// A whole forward pass in one call: embedding, layers, head. Python passes the model once and the rows of each step.

#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

#include "attention.hpp"
#include "linear.hpp"
#include "threads.hpp"

namespace octet {

// Must match `library.py`.
enum Target : int { Q, K, V, O, GATE, UP, DOWN, TARGETS };

struct LowRank {
    const float* a;  // packed [rank, in]
    const float* b;  // packed [out, rank]
    int32_t rank;    // 0: no adapter for this target
    float scale;
};

struct Layer {
    const float* attn_norm;
    const float* mlp_norm;
    const float* q_norm;
    const float* k_norm;
    Linear qkv[3];
    Linear o;
    Linear gate_up[2];
    Linear down;
    int32_t window;  // 0: unlimited
};

struct Shape {
    int32_t layers, hidden, inner, heads, kv_heads, head_dim, vocab;
    int32_t num_blocks, block_size, max_tokens, max_context, max_rank, threads, half_cache;
    float eps, rope_factor;
};

struct Step {
    int32_t tokens, rows, outputs, table_stride, adapters;
    const int32_t* ids;           // [tokens]
    const int32_t* positions;     // [tokens]
    const int32_t* slots;         // [tokens]
    const int32_t* query_start;   // [rows + 1]
    const int32_t* block_tables;  // [rows, table_stride]
    const int32_t* output_rows;   // [outputs]
    const LowRank* low_ranks;     // [adapters, layers, TARGETS]
    float* logits;                // [outputs, vocab]
};

// Zeroed memory, aligned to cache lines, that takes no pages before it is written.
template <class T>
class Buffer {
 public:
    explicit Buffer(size_t count) : whole_(std::calloc(count * sizeof(T) + 128, 1)) {
        if (!whole_) throw std::bad_alloc();
        data_ = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(whole_) + 63) / 64 * 64);
    }
    ~Buffer() { std::free(whole_); }
    Buffer(const Buffer&) = delete;
    T* data() const { return data_; }

 private:
    void* whole_;
    T* data_;
};

// Kinds of work, for timing. Must match `library.py`.
enum Work : int { LINEAR_WORK, ATTENTION_WORK, OTHER_WORK, WORKS };

class Timer {
 public:
    explicit Timer(double& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
    ~Timer() { total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
    double& total_;
    const std::chrono::steady_clock::time_point start_;
};

class Decoder {
 public:
    Decoder(const Shape& shape, const Layer* layers, const Linear& embed, const Linear& head, const float* norm,
            const float* inv_freq)
        : s_(shape),
          layers_(layers, layers + shape.layers),
          embed_(embed),
          head_(head),
          norm_(norm),
          inv_freq_(inv_freq),
          threads_(shape.threads),
          widest_(std::max({shape.hidden, shape.inner, shape.heads * shape.head_dim})),
          qkv_stride_((shape.heads + 2 * shape.kv_heads) * shape.head_dim),
          score_stride_((shape.max_context + shape.block_size + LANES) / LANES * LANES + LANES),
          cache_size_(size_t(shape.num_blocks) * shape.block_size * shape.kv_heads * shape.head_dim),
          keys_(cache_size_ * shape.layers * element_bytes()),
          values_(cache_size_ * shape.layers * element_bytes()),
          hidden_(size_t(shape.max_tokens) * shape.hidden),
          floats_(size_t(shape.max_tokens) * widest_),
          highs_(padded() * widest_),
          lows_(padded() * widest_),
          scales_(padded() * (widest_ / GROUP + 1)),
          sums_(padded() * (widest_ / GROUP + 1)),
          qkv_(size_t(shape.max_tokens) * qkv_stride_),
          gate_up_(size_t(shape.max_tokens) * 2 * shape.inner),
          cos_(size_t(shape.max_tokens) * shape.head_dim),
          sin_(size_t(shape.max_tokens) * shape.head_dim),
          scores_(size_t(threads_.count()) * MOST_QUERIES * score_stride_),
          rooms_(size_t(threads_.count()) * Room::size(shape.head_dim)),
          low_(size_t(shape.max_tokens) * shape.max_rank) {}

    void forward(const Step& step) {
        threads_.wake();
        embed(step);
        for (int layer = 0; layer < s_.layers; layer++) {
            if (s_.half_cache) attention<Half>(step, layer);
            else attention<float>(step, layer);
            mlp(step, layer);
        }
        logits(step);
        threads_.sleep();
    }

    // Multiplies by every matrix once, on any buffer contents: the lower bound of a step of this size.
    void linear_only(int tokens, int outputs, float* logits) {
        threads_.wake();
        for (const Layer& layer : layers_) {
            linear(layer.qkv, 3, tokens, qkv_.data(), qkv_stride_, false);
            linear(&layer.o, 1, tokens, qkv_.data(), qkv_stride_, false);
            linear(layer.gate_up, 2, tokens, gate_up_.data(), 2 * s_.inner, false);
            linear(&layer.down, 1, tokens, gate_up_.data(), 2 * s_.inner, false);
        }
        linear(&head_, 1, outputs, logits, s_.vocab, false);
        threads_.sleep();
    }

    // Adds the final hidden states of tokens [start, stop) of the last step to total, one token after the other.
    void add_hidden(int start, int stop, double* total) {
        float* row = floats_.data();
        for (int t = start; t < stop; t++) {
            norm_row(hidden_.data() + size_t(t) * s_.hidden, norm_, s_.hidden, row);
            for (int i = 0; i < s_.hidden; i++) total[i] += row[i];
        }
    }

    void zero(const int32_t* slots, int count) {
        Buffer<float> nothing(size_t(s_.kv_heads) * s_.head_dim);
        for (int layer = 0; layer < s_.layers; layer++)
            for (int i = 0; i < count; i++) {
                if (s_.half_cache) cache<Half>(layer).write(slots[i], nothing.data(), nothing.data());
                else cache<float>(layer).write(slots[i], nothing.data(), nothing.data());
            }
    }

    const double* seconds() const { return seconds_; }
    uint8_t* keys() const { return keys_.data(); }
    uint8_t* values() const { return values_.data(); }

 private:
    size_t element_bytes() const { return s_.half_cache ? sizeof(Half) : sizeof(float); }

    template <class Element>
    Cache<Element> cache(int layer) const {
        auto at = [&](const Buffer<uint8_t>& buffer) {
            return reinterpret_cast<Element*>(buffer.data()) + layer * cache_size_;
        };
        return {at(keys_), at(values_), s_.kv_heads, s_.head_dim, s_.block_size};
    }

    Input input(int columns) const {
        return {floats_.data(), columns, highs_.data(), lows_.data(), scales_.data(), sums_.data()};
    }

    // Tokens are padded to whole blocks.
    size_t padded() const { return size_t(s_.max_tokens) + BLOCK; }

    void embed(const Step& step) {
        const int half = s_.head_dim / 2;
        each(step.tokens, [&](int t) {
            embedding(step.ids[t], hidden_.data() + size_t(t) * s_.hidden);
            for (int i = 0; i < half; i++) {
                float angle = float(step.positions[t]) * inv_freq_[i];
                cos_.data()[size_t(t) * half + i] = std::cos(angle) * s_.rope_factor;
                sin_.data()[size_t(t) * half + i] = std::sin(angle) * s_.rope_factor;
            }
        });
    }

    void embedding(int id, float* out) const {
        const int lane = id % LANES;
        const uint8_t* tile = embed_.data + (id / LANES) * embed_.tile_bytes();
        if (embed_.kind == FLOAT) {
            for (int k = 0; k < s_.hidden; k++) out[k] = load<float>(tile + (size_t(k) * LANES + lane) * sizeof(float));
            return;
        }
        const int values = GROUP * LANES * embed_.kind / 8;
        for (int g = 0; g < s_.hidden / GROUP; g++, tile += values + 4 * LANES) {
            float scale = float(load<Half>(tile + values + 2 * lane));
            float minimum = float(load<Half>(tile + values + 2 * LANES + 2 * lane));
            for (int k = 0; k < GROUP; k++) {
                int q = embed_.kind == EIGHT ? tile[64 * (k / 4) + 4 * lane + k % 4]
                                             : (tile[64 * (k / 8) + 4 * lane + k % 4] >> (k % 8 < 4 ? 0 : 4)) & 15;
                out[g * GROUP + k] = std::fma(float(q), scale, minimum);
            }
        }
    }

    void norm_row(const float* x, const float* weight, int count, float* out) const {
        f32x16 squares{};
        float tail = 0.0f;
        int i = 0;
        for (; i + LANES <= count; i += LANES) {
            f32x16 v = load<f32x16>(x + i);
            squares = fma(v, v, squares);
        }
        for (; i < count; i++) tail = std::fma(x[i], x[i], tail);
        float factor = 1.0f / std::sqrt((sum(squares) + tail) / float(count) + s_.eps);
        for (i = 0; i + LANES <= count; i += LANES)
            store(out + i, load<f32x16>(x + i) * splat(factor) * load<f32x16>(weight + i));
        for (; i < count; i++) out[i] = x[i] * factor * weight[i];
    }

    // Quantises row t of floats_, the next linear's input, if a matrix needs integers.
    void ready(int t, int columns, bool integers) {
        if (!integers) return;
        quantise(input(columns), t);
    }

    static bool wants_integers(const Linear* parts, int count) {
        return std::any_of(parts, parts + count,
                           [](const Linear& part) { return part.kind == FOUR || part.kind == EIGHT; });
    }

    // Runs body(row) for every row. Two rows per task, because their quantised activations share cache lines.
    template <class Body>
    void each(int rows, Body&& body) {
        const Timer timer(seconds_[OTHER_WORK]);
        threads_.run((rows + 1) / 2, [&](int pair, int) {
            for (int row = 2 * pair; row < std::min(rows, 2 * pair + 2); row++) body(row);
        });
    }

    void normed(int tokens, const float* weight, bool integers) {
        each(tokens, [&](int t) {
            norm_row(hidden_.data() + size_t(t) * s_.hidden, weight, s_.hidden, floats_.data() + size_t(t) * s_.hidden);
            ready(t, s_.hidden, integers);
        });
    }

    void linear(const Linear* parts, int count, int tokens, float* y, int stride, bool add, float factor = 1.0f) {
        const Timer timer(seconds_[LINEAR_WORK]);
        int tiles = 0;
        for (int i = 0; i < count; i++) tiles += parts[i].tiles();
        const int grain = std::max(1, std::min(tiles / (threads_.count() * 4), 64));
        const Input x = input(parts[0].columns);
        threads_.run((tiles + grain - 1) / grain, [&](int task, int) {
            std::optional<AmxSession> session;
            if (amx_allowed()) session.emplace();
            const int stop = std::min(tiles, (task + 1) * grain);
            for (int i = task * grain; i < stop; i++) {
                int part = 0, tile = i;
                while (tile >= parts[part].tiles()) tile -= parts[part++].tiles();
                linear_tile(parts[part], tile, x, tokens, y, stride, add, factor);
            }
        });
    }

    // y[:, offset:] += scale * B (A x) for each adapter of the stack, in order.
    void adapt(const Step& step, int layer, Target target, int columns, int rows, float* y, int stride, int offset) {
        for (int adapter = 0; adapter < step.adapters; adapter++) {
            const LowRank& low = step.low_ranks[(size_t(adapter) * s_.layers + layer) * TARGETS + target];
            if (low.rank == 0) continue;
            const Linear a{FLOAT, low.rank, columns, 0, reinterpret_cast<const uint8_t*>(low.a), nullptr};
            const Linear b{FLOAT, rows, low.rank, offset, reinterpret_cast<const uint8_t*>(low.b), nullptr};
            linear(&a, 1, step.tokens, low_.data(), low.rank, false);
            const Input x{low_.data(), low.rank, nullptr, nullptr, nullptr, nullptr};
            threads_.run(b.tiles(),
                         [&](int tile, int) { linear_tile(b, tile, x, step.tokens, y, stride, true, low.scale); });
        }
    }

    template <class Element>
    void attention(const Step& step, int index) {
        const Layer& layer = layers_[index];
        const int q_size = s_.heads * s_.head_dim, kv_size = s_.kv_heads * s_.head_dim;
        normed(step.tokens, layer.attn_norm, wants_integers(layer.qkv, 3));
        linear(layer.qkv, 3, step.tokens, qkv_.data(), qkv_stride_, false);
        if (step.adapters) {
            adapt(step, index, Q, s_.hidden, q_size, qkv_.data(), qkv_stride_, 0);
            adapt(step, index, K, s_.hidden, kv_size, qkv_.data(), qkv_stride_, q_size);
            adapt(step, index, V, s_.hidden, kv_size, qkv_.data(), qkv_stride_, q_size + kv_size);
        }
        const Cache<Element> kv = cache<Element>(index);
        each(step.tokens, [&](int t) { place(step, layer, kv, t); });
        const bool integers = wants_integers(&layer.o, 1);
        attend_all(step, layer, kv);
        if (integers) each(step.tokens, [&](int t) { ready(t, q_size, true); });
        linear(&layer.o, 1, step.tokens, hidden_.data(), s_.hidden, true);
        if (step.adapters) adapt(step, index, O, q_size, s_.hidden, hidden_.data(), s_.hidden, 0);
    }

    // Applies head norms and rope, and writes the token's keys and values to the cache.
    template <class Element>
    void place(const Step& step, const Layer& layer, const Cache<Element>& kv, int t) {
        float* row = qkv_.data() + size_t(t) * qkv_stride_;
        const float* cos = cos_.data() + size_t(t) * (s_.head_dim / 2);
        const float* sin = sin_.data() + size_t(t) * (s_.head_dim / 2);
        const float scale = 1.0f / std::sqrt(float(s_.head_dim));
        for (int h = 0; h < s_.heads + s_.kv_heads; h++) {
            const bool query = h < s_.heads;
            float* head = row + h * s_.head_dim;
            if (const float* weight = query ? layer.q_norm : layer.k_norm) norm_row(head, weight, s_.head_dim, head);
            turn(head, cos, sin, query ? scale : 1.0f);
        }
        const float* k = row + s_.heads * s_.head_dim;
        kv.write(step.slots[t], k, k + s_.kv_heads * s_.head_dim);
    }

    void turn(float* head, const float* cos, const float* sin, float scale) const {
        const int half = s_.head_dim / 2;
        for (int i = 0; i < half; i++) {
            float a = head[i], b = head[i + half];
            head[i] = (a * cos[i] - b * sin[i]) * scale;
            head[i + half] = (b * cos[i] + a * sin[i]) * scale;
        }
    }

    // Tasks are (a few tokens of one row, KV head).
    template <class Element>
    void attend_all(const Step& step, const Layer& layer, const Cache<Element>& kv) {
        const Timer timer(seconds_[ATTENTION_WORK]);
        const int group = s_.heads / s_.kv_heads;
        const int most = std::max(1, MOST_QUERIES / group);
        int pieces = 0;
        for (int r = 0; r < step.rows; r++) pieces += (step.query_start[r + 1] - step.query_start[r] + most - 1) / most;
        threads_.run(pieces * s_.kv_heads, [&](int task, int thread) {
            const int head = task / pieces;
            int row = 0, piece = task % pieces;
            for (int n; piece >= (n = (step.query_start[row + 1] - step.query_start[row] + most - 1) / most); row++)
                piece -= n;
            const int begin = step.query_start[row] + piece * most,
                      end = std::min(begin + most, step.query_start[row + 1]);
            attend_piece(step, layer, kv, row, begin, end, head, thread);
        });
    }

    template <class Element>
    void attend_piece(const Step& step, const Layer& layer, const Cache<Element>& kv, int row, int begin, int end,
                      int head, int thread) {
        const int group = s_.heads / s_.kv_heads, q_size = s_.heads * s_.head_dim;
        float* scores = scores_.data() + size_t(thread) * MOST_QUERIES * score_stride_;
        const Room room(rooms_.data() + size_t(thread) * Room::size(s_.head_dim), s_.head_dim);
        const int32_t* table = step.block_tables + size_t(row) * step.table_stride;
        Query queries[MOST_QUERIES];
        for (int t = begin; t < end; t++)
            for (int from = 0; from < group; from += MOST_QUERIES) {
                const int some = std::min(group - from, MOST_QUERIES),
                          at = group > MOST_QUERIES ? 0 : (t - begin) * group;
                for (int g = 0; g < some; g++) {
                    const int h = head * group + from + g, last = step.positions[t];
                    const int first = layer.window ? std::max(0, last + 1 - layer.window) : 0;
                    queries[at + g] = {qkv_.data() + size_t(t) * qkv_stride_ + h * s_.head_dim,
                                       scores + (at + g) * score_stride_,
                                       floats_.data() + size_t(t) * q_size + h * s_.head_dim, first, last};
                }
                if (group > MOST_QUERIES) attend(kv, queries, some, table, head, room);
            }
        if (group <= MOST_QUERIES) attend(kv, queries, (end - begin) * group, table, head, room);
    }

    void mlp(const Step& step, int index) {
        const Layer& layer = layers_[index];
        const int stride = 2 * s_.inner;
        normed(step.tokens, layer.mlp_norm, wants_integers(layer.gate_up, 2));
        linear(layer.gate_up, 2, step.tokens, gate_up_.data(), stride, false);
        if (step.adapters) {
            adapt(step, index, GATE, s_.hidden, s_.inner, gate_up_.data(), stride, 0);
            adapt(step, index, UP, s_.hidden, s_.inner, gate_up_.data(), stride, s_.inner);
        }
        const bool integers = wants_integers(&layer.down, 1);
        each(step.tokens, [&](int t) {
            const float* gate = gate_up_.data() + size_t(t) * stride;
            float* out = floats_.data() + size_t(t) * s_.inner;
            int i = 0;
            for (; i + LANES <= s_.inner; i += LANES)
                store(out + i, silu(load<f32x16>(gate + i)) * load<f32x16>(gate + s_.inner + i));
            for (; i < s_.inner; i++) out[i] = silu(splat(gate[i])).part[0][0] * gate[s_.inner + i];
            ready(t, s_.inner, integers);
        });
        linear(&layer.down, 1, step.tokens, hidden_.data(), s_.hidden, true);
        if (step.adapters) adapt(step, index, DOWN, s_.inner, s_.hidden, hidden_.data(), s_.hidden, 0);
    }

    void logits(const Step& step) {
        const bool integers = wants_integers(&head_, 1);
        each(step.outputs, [&](int i) {
            norm_row(hidden_.data() + size_t(step.output_rows[i]) * s_.hidden, norm_, s_.hidden,
                     floats_.data() + size_t(i) * s_.hidden);
            ready(i, s_.hidden, integers);
        });
        if (step.outputs) linear(&head_, 1, step.outputs, step.logits, s_.vocab, false);
    }

    const Shape s_;
    const std::vector<Layer> layers_;
    const Linear embed_, head_;
    const float* norm_;
    const float* inv_freq_;
    Threads threads_;
    double seconds_[WORKS] = {};
    const int widest_, qkv_stride_, score_stride_;
    const size_t cache_size_;
    Buffer<uint8_t> keys_, values_;
    Buffer<float> hidden_, floats_;
    Buffer<int8_t> highs_, lows_;
    Buffer<float> scales_, sums_, qkv_, gate_up_, cos_, sin_, scores_, rooms_, low_;
};

}  // namespace octet

using namespace octet;

extern "C" {

const char* octet_dot() { return amx_allowed() ? "amx-int8" : DOT; }

Decoder* octet_create(const Shape* shape, const Layer* layers, const Linear* embed, const Linear* head,
                      const float* norm, const float* inv_freq) {
    try {
        return new Decoder(*shape, layers, *embed, *head, norm, inv_freq);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// y = W x on the calling thread, for tests and for choosing a kernel.
void octet_linear(const Linear* w, const float* x, int tokens, float* y) {
    const size_t padded = size_t(tokens) + BLOCK;
    std::vector<int8_t> highs(padded * w->columns), lows(padded * w->columns);
    std::vector<float> scales(padded * w->columns / GROUP), sums(padded * w->columns / GROUP);
    const Input in{x, w->columns, highs.data(), lows.data(), scales.data(), sums.data()};
    if (w->kind != FLOAT)
        for (int t = 0; t < tokens; t++) quantise(in, t);
    std::optional<AmxSession> session;
    if (amx_allowed()) session.emplace();
    for (int tile = 0; tile < w->tiles(); tile++) linear_tile(*w, tile, in, tokens, y, w->rows, false);
}

void octet_destroy(Decoder* decoder) { delete decoder; }
void octet_forward(Decoder* decoder, const Step* step) { decoder->forward(*step); }
void octet_linear_only(Decoder* decoder, int tokens, int outputs, float* logits) {
    decoder->linear_only(tokens, outputs, logits);
}
void octet_add_hidden(Decoder* decoder, int start, int stop, double* total) { decoder->add_hidden(start, stop, total); }
void octet_zero(Decoder* decoder, const int32_t* slots, int count) { decoder->zero(slots, count); }
// [WORKS], since the decoder was created.
const double* octet_seconds(Decoder* decoder) { return decoder->seconds(); }
uint8_t* octet_keys(Decoder* decoder) { return decoder->keys(); }
uint8_t* octet_values(Decoder* decoder) { return decoder->values(); }
}
