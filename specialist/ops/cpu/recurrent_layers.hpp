// The recurrent layers of a step: every row has a state of its own. Tasks are (row, channels) and (row, head).
#pragma once

#include <algorithm>

#include "buffer.hpp"
#include "model.hpp"
#include "recurrent.hpp"
#include "threads.hpp"

namespace octet {

constexpr int CHANNELS_AT_ONCE = 256;  // of a convolution, by one thread

// Of each token, the input projection gives: for a state space, the gate [inner], x, b and c [channels] and the step
// sizes [heads]; for a short convolution, two gates and the input, [channels] each.
class RecurrentLayers {
 public:
    RecurrentLayers(const Recurrent& sizes, int max_tokens, Threads& threads)
        : s_(sizes), threads_(threads), projected_(size_t(max_tokens) * sizes.in_size) {}

    float* projected() const { return projected_.data(); }

    // Writes the outputs [tokens, inner] of a state space, and each row's state after its last token. The outputs of a
    // short convolution replace its inputs.
    void mix(const Mixer& mixer, const Step& step, float* out) {
        if (!s_.heads)
            threads_.run(step.tokens, [&](int t, int) {
                float* gates = row(t);
                for (int i = 0; i < s_.channels; i++) gates[2 * s_.channels + i] *= gates[i];
            });
        for (int r = 0; r < step.rows; r++)
            if (float* kept = step.kept[r])
                for (int t = step.query_start[r]; t < step.query_start[r + 1]; t++, kept += s_.input_size)
                    std::copy_n(row(t) + first_input(), num_inputs(), kept + mixer.inputs_at);
        auto count = [&](int r) { return step.query_start[r + 1] - step.query_start[r]; };
        const int parts = channel_parts();
        threads_.run(step.rows * parts, [&](int task, int) {
            const int r = task / parts;
            convolve_some(mixer, step.query_start[r], count(r), step.states[r], step.after[r], task % parts);
        });
        if (!s_.heads) return;
        threads_.run(step.rows * s_.heads, [&](int task, int) {
            const int r = task / s_.heads, begin = step.query_start[r];
            scan_head(mixer, begin, count(r), step.states[r], step.after[r], task % s_.heads,
                      out + size_t(begin) * s_.inner);
        });
    }

    // Gates the output y [inner] of a token.
    void gate(const Mixer& mixer, int token, float* y) const {
        const float* gate = row(token);
        if (!s_.heads)
            for (int i = 0; i < s_.channels; i++) y[i] = gate[s_.channels + i] * gate[2 * s_.channels + i];
        else if (s_.norm == NO_NORM) gate_row(y, gate, s_.inner, y);
        else
            gated_norm_row(y, gate, mixer.gate_norm, s_.inner, s_.norm_groups, s_.norm_eps, s_.norm == GATE_FIRST, y);
    }

    // Writes the state after `state` and the tokens with these inputs [tokens, input_size].
    void replay(const Mixer& mixer, const float* state, const float* inputs, int tokens, float* after) {
        for (int t = 0; t < tokens; t++)
            std::copy_n(inputs + size_t(t) * s_.input_size + mixer.inputs_at, num_inputs(), row(t) + first_input());
        threads_.run(channel_parts(), [&](int part, int) { convolve_some(mixer, 0, tokens, state, after, part); });
        threads_.run(s_.heads, [&](int head, int) { scan_head(mixer, 0, tokens, state, after, head, nullptr); });
    }

 private:
    float* row(int token) const { return projected_.data() + size_t(token) * s_.in_size; }
    int num_inputs() const { return s_.channels + s_.heads; }
    int first_input() const { return s_.in_size - num_inputs(); }
    int channel_parts() const { return (s_.channels + CHANNELS_AT_ONCE - 1) / CHANNELS_AT_ONCE; }

    void convolve_some(const Mixer& mixer, int begin, int tokens, const float* state, float* after, int part) {
        const Conv conv{s_.channels, s_.width, mixer.conv_weight, mixer.conv_bias, s_.heads != 0};
        float* x = row(begin) + first_input();
        const int first = part * CHANNELS_AT_ONCE, last = std::min(first + CHANNELS_AT_ONCE, s_.channels);
        convolve(conv, x, s_.in_size, tokens, state + mixer.conv_at, after + mixer.conv_at, x, s_.in_size, first, last);
    }

    void scan_head(const Mixer& mixer, int begin, int tokens, const float* state, float* after, int head, float* y) {
        const Scan parts{s_.heads,   s_.head_dim,     s_.state_size, s_.groups,   mixer.rate,
                         mixer.skip, mixer.step_bias, s_.least_step, s_.most_step};
        const float* x = row(begin) + s_.inner;
        const float* b = x + s_.inner;
        const size_t at = mixer.ssm_at + size_t(head) * s_.state_size * s_.head_dim;
        scan(parts, head, tokens, x, s_.in_size, b, b + s_.groups * s_.state_size, x + s_.channels, s_.in_size,
             state + at, after + at, y, s_.inner);
    }

    const Recurrent s_;
    Threads& threads_;
    Buffer<float> projected_;
};

}  // namespace octet
