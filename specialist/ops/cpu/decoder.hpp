// A whole forward pass in one call: embedding, layers, head. Python passes the model once and the rows of each step.
#pragma once

#include <chrono>
#include <optional>

#include "attention.hpp"
#include "linear.hpp"
#include "model.hpp"
#include "recurrent_layers.hpp"
#include "threads.hpp"

namespace octet {

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
          widest_(std::max({2 * shape.hidden, shape.inner, shape.heads * shape.head_dim, shape.recurrent.inner})),
          qkv_stride_((shape.heads + 2 * shape.kv_heads) * shape.head_dim),
          score_stride_((shape.max_context + shape.block_size + LANES) / LANES * LANES + LANES),
          cache_size_(size_t(shape.num_blocks) * shape.block_size * shape.kv_heads * shape.head_dim),
          keys_(cache_size_ * shape.kv_layers * element_bytes()),
          values_(cache_size_ * shape.kv_layers * element_bytes()),
          hidden_(size_t(shape.max_tokens) * shape.hidden),
          floats_(size_t(shape.max_tokens) * widest_),
          highs_(padded() * widest_),
          lows_(padded() * widest_),
          scales_(padded() * (widest_ / GROUP + 1)),
          sums_(padded() * (widest_ / GROUP + 1)),
          qkv_(size_t(shape.max_tokens) * std::max(qkv_stride_, shape.hidden)),
          gate_up_(size_t(shape.max_tokens) * std::max(2 * shape.inner, shape.hidden)),
          cos_(size_t(shape.max_tokens) * shape.head_dim),
          sin_(size_t(shape.max_tokens) * shape.head_dim),
          scores_(size_t(threads_.count()) * MOST_QUERIES * score_stride_),
          rooms_(size_t(threads_.count()) * Room::size(shape.head_dim)),
          low_(size_t(shape.max_tokens) * shape.max_rank),
          recurrent_(shape.recurrent, shape.max_tokens, threads_),
          shared_(has_shared() ? size_t(shape.max_tokens) * 2 * shape.hidden : 0) {}

    void forward(const Step& step) {
        threads_.wake();
        embed(step);
        for (int layer = 0; layer < s_.layers; layer++) {
            if (s_.half_cache) run<Half>(step, layer);
            else run<float>(step, layer);
        }
        logits(step);
        threads_.sleep();
    }

    // Multiplies by every matrix once, on any buffer contents: the lower bound of a step of this size.
    void linear_only(int tokens, int outputs, float* logits) {
        threads_.wake();
        for (const Layer& layer : layers_) {
            if (layer.attn_norm) {
                linear(layer.qkv, 3, tokens, qkv_.data(), qkv_stride_, false);
                linear(&layer.o, 1, tokens, floats_.data(), s_.hidden, false);
            }
            if (layer.mlp_norm) {
                linear(layer.gate_up, 2, tokens, gate_up_.data(), 2 * s_.inner, false);
                linear(&layer.down, 1, tokens, gate_up_.data(), 2 * s_.inner, false);
            }
            if (layer.link.kind) linear(&layer.link, 1, tokens, shared_.data(), s_.hidden, false);
            if (layer.mixer.in.kind) {
                linear(&layer.mixer.in, 1, tokens, recurrent_.projected(), s_.recurrent.in_size, false);
                linear(&layer.mixer.out, 1, tokens, floats_.data(), s_.hidden, false);
            }
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
        for (int layer = 0; layer < s_.kv_layers; layer++)
            for (int i = 0; i < count; i++) {
                if (s_.half_cache) cache<Half>(layer).write(slots[i], nothing.data(), nothing.data());
                else cache<float>(layer).write(slots[i], nothing.data(), nothing.data());
            }
    }

    // Writes the state after `state` and these inputs, as `forward` does.
    void replay(const float* state, const float* inputs, int tokens, float* after) {
        threads_.wake();
        for (const Layer& layer : layers_)
            if (layer.mixer.in.kind) recurrent_.replay(layer.mixer, state, inputs, tokens, after);
        threads_.sleep();
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

    bool has_shared() const {
        return std::any_of(layers_.begin(), layers_.end(), [](const Layer& layer) { return layer.link.kind != ABSENT; });
    }

    // Tokens are padded to whole blocks.
    size_t padded() const { return size_t(s_.max_tokens) + BLOCK; }

    void embed(const Step& step) {
        const int half = s_.rotary_dim / 2;
        each(step.tokens, [&](int t) {
            float* out = hidden_.data() + size_t(t) * s_.hidden;
            embedding(step.ids[t], out);
            if (s_.embed_scale != 1.0f)
                for (int i = 0; i < s_.hidden; i++) out[i] *= s_.embed_scale;
            if (has_shared()) std::copy_n(out, s_.hidden, shared_.data() + size_t(t) * 2 * s_.hidden + s_.hidden);
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

    // Attention and a recurrent part of one layer read the same input.
    template <class Element>
    void run(const Step& step, int index) {
        const Layer& layer = layers_[index];
        const bool mixes = layer.mixer.in.kind != ABSENT;
        if (layer.link.kind) {
            shared_block<Element>(step, index);
        } else if (layer.attn_norm) {
            const bool both = mixes && layer.mixer.norm == nullptr;
            normed(step.tokens, layer.attn_norm,
                   wants_integers(layer.qkv, 3) || (both && wants_integers(&layer.mixer.in, 1)));
            project(step, index);
            if (both) linear(&layer.mixer.in, 1, step.tokens, recurrent_.projected(), s_.recurrent.in_size, false);
            attention<Element>(step, index, hidden_.data(), true);
        }
        if (mixes) mix(step, layer);
        if (layer.mlp_norm && !layer.link.kind) {
            normed(step.tokens, layer.mlp_norm, wants_integers(layer.gate_up, 2));
            mlp(step, index, hidden_.data(), true);
        }
    }

    // Reads the hidden states beside the embeddings; leaves the mixer's normed input, which is all that it adds to.
    template <class Element>
    void shared_block(const Step& step, int index) {
        const Layer& layer = layers_[index];
        const int wide = 2 * s_.hidden;
        auto row = [&](int t) { return shared_.data() + size_t(t) * wide; };
        auto out = [&](int t) { return gate_up_.data() + size_t(t) * s_.hidden; };
        bool integers = wants_integers(layer.qkv, 3);
        each(step.tokens, [&](int t) {
            std::copy_n(hidden_.data() + size_t(t) * s_.hidden, s_.hidden, row(t));
            norm_row(row(t), layer.attn_norm, wide, floats_.data() + size_t(t) * wide);
            ready(t, wide, integers);
        });
        project(step, index);
        attention<Element>(step, index, gate_up_.data(), false);
        integers = wants_integers(layer.gate_up, 2);
        each(step.tokens, [&](int t) {
            norm_row(out(t), layer.mlp_norm, s_.hidden, floats_.data() + size_t(t) * s_.hidden);
            ready(t, s_.hidden, integers);
        });
        mlp(step, index, qkv_.data(), false);
        integers = wants_integers(&layer.link, 1);
        each(step.tokens, [&](int t) {
            std::copy_n(qkv_.data() + size_t(t) * s_.hidden, s_.hidden, floats_.data() + size_t(t) * s_.hidden);
            ready(t, s_.hidden, integers);
        });
        linear(&layer.link, 1, step.tokens, qkv_.data(), s_.hidden, false);
        integers = wants_integers(&layer.mixer.in, 1);
        each(step.tokens, [&](int t) {
            float* linked = qkv_.data() + size_t(t) * s_.hidden;
            for (int i = 0; i < s_.hidden; i++) linked[i] += hidden_.data()[size_t(t) * s_.hidden + i];
            norm_row(linked, layer.mixer.norm, s_.hidden, floats_.data() + size_t(t) * s_.hidden);
            ready(t, s_.hidden, integers);
        });
        linear(&layer.mixer.in, 1, step.tokens, recurrent_.projected(), s_.recurrent.in_size, false);
    }

    // The recurrent part of a layer. Without a norm of its own, or after a shared block, its input is projected already.
    void mix(const Step& step, const Layer& layer) {
        const Recurrent& r = s_.recurrent;
        const Mixer& mixer = layer.mixer;
        if (mixer.norm && !layer.link.kind) {
            normed(step.tokens, mixer.norm, wants_integers(&mixer.in, 1));
            linear(&mixer.in, 1, step.tokens, recurrent_.projected(), r.in_size, false);
        }
        const bool integers = wants_integers(&mixer.out, 1);
        {
            const Timer timer(seconds_[ATTENTION_WORK]);
            recurrent_.mix(mixer, step, floats_.data());
        }
        each(step.tokens, [&](int t) {
            recurrent_.gate(mixer, t, floats_.data() + size_t(t) * r.inner);
            ready(t, r.inner, integers);
        });
        linear(&mixer.out, 1, step.tokens, hidden_.data(), s_.hidden, true);
    }

    // The input is in floats_, of the width of the matrices.
    void project(const Step& step, int index) {
        const Layer& layer = layers_[index];
        const int wide = layer.qkv[0].columns, q_size = s_.heads * s_.head_dim, kv_size = s_.kv_heads * s_.head_dim;
        linear(layer.qkv, 3, step.tokens, qkv_.data(), qkv_stride_, false);
        if (step.adapters) {
            adapt(step, index, Q, wide, q_size, qkv_.data(), qkv_stride_, 0);
            adapt(step, index, K, wide, kv_size, qkv_.data(), qkv_stride_, q_size);
            adapt(step, index, V, wide, kv_size, qkv_.data(), qkv_stride_, q_size + kv_size);
        }
    }

    template <class Element>
    void attention(const Step& step, int index, float* out, bool add) {
        const Layer& layer = layers_[index];
        const int q_size = s_.heads * s_.head_dim;
        const Cache<Element> kv = cache<Element>(layer.cache);
        each(step.tokens, [&](int t) { place(step, layer, kv, t); });
        const bool integers = wants_integers(&layer.o, 1);
        attend_all(step, layer, kv);
        if (integers) each(step.tokens, [&](int t) { ready(t, q_size, true); });
        linear(&layer.o, 1, step.tokens, out, s_.hidden, add);
        if (step.adapters) adapt(step, index, O, q_size, s_.hidden, out, s_.hidden, 0);
    }

    // Applies head norms and rope, and writes the token's keys and values to the cache.
    template <class Element>
    void place(const Step& step, const Layer& layer, const Cache<Element>& kv, int t) {
        float* row = qkv_.data() + size_t(t) * qkv_stride_;
        const float* cos = cos_.data() + size_t(t) * (s_.rotary_dim / 2);
        const float* sin = sin_.data() + size_t(t) * (s_.rotary_dim / 2);
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
        const int half = s_.rotary_dim / 2;
        for (int i = 0; i < half; i++) {
            float a = head[i], b = head[i + half];
            head[i] = (a * cos[i] - b * sin[i]) * scale;
            head[i + half] = (b * cos[i] + a * sin[i]) * scale;
        }
        for (int i = 2 * half; i < s_.head_dim; i++) head[i] *= scale;
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

    void mlp(const Step& step, int index, float* to, bool add) {
        const Layer& layer = layers_[index];
        const int stride = 2 * s_.inner;
        linear(layer.gate_up, 2, step.tokens, gate_up_.data(), stride, false);
        if (step.adapters) {
            adapt(step, index, GATE, s_.hidden, s_.inner, gate_up_.data(), stride, 0);
            adapt(step, index, UP, s_.hidden, s_.inner, gate_up_.data(), stride, s_.gated ? s_.inner : 0);
        }
        const bool integers = wants_integers(&layer.down, 1);
        each(step.tokens, [&](int t) {
            const float* gate = gate_up_.data() + size_t(t) * stride;
            activate(gate, s_.gated ? gate + s_.inner : nullptr, floats_.data() + size_t(t) * s_.inner);
            ready(t, s_.inner, integers);
        });
        linear(&layer.down, 1, step.tokens, to, s_.hidden, add);
        if (step.adapters) adapt(step, index, DOWN, s_.inner, s_.hidden, to, s_.hidden, 0);
    }

    void activate(const float* gate, const float* up, float* out) const {
        int i = 0;
        if (s_.activation == SILU && up) {
            for (; i + LANES <= s_.inner; i += LANES)
                store(out + i, silu(load<f32x16>(gate + i)) * load<f32x16>(up + i));
            for (; i < s_.inner; i++) out[i] = silu(splat(gate[i])).part[0][0] * up[i];
            return;
        }
        for (; i < s_.inner; i++) {
            const float positive = std::max(gate[i], 0.0f);
            const float value = s_.activation == RELU2  ? positive * positive
                                : s_.activation == GELU ? 0.5f * gate[i] * (1.0f + std::erf(gate[i] * 0.70710678f))
                                                        : silu(splat(gate[i])).part[0][0];
            out[i] = up ? value * up[i] : value;
        }
    }

    void logits(const Step& step) {
        const bool integers = wants_integers(&head_, 1);
        each(step.outputs, [&](int i) {
            norm_row(hidden_.data() + size_t(step.output_rows[i]) * s_.hidden, norm_, s_.hidden,
                     floats_.data() + size_t(i) * s_.hidden);
            if (s_.logit_scale != 1.0f)
                for (int k = 0; k < s_.hidden; k++) floats_.data()[size_t(i) * s_.hidden + k] *= s_.logit_scale;
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
    RecurrentLayers recurrent_;
    Buffer<float> shared_;
};

}  // namespace octet
