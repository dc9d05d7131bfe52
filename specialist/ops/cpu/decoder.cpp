// Entry points of the decoder.
#include <new>
#include <vector>

#include "decoder.hpp"

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
void octet_replay(Decoder* decoder, const float* state, const float* inputs, int tokens, float* after) {
    decoder->replay(state, inputs, tokens, after);
}
// [WORKS], since the decoder was created.
const double* octet_seconds(Decoder* decoder) { return decoder->seconds(); }
uint8_t* octet_keys(Decoder* decoder) { return decoder->keys(); }
uint8_t* octet_values(Decoder* decoder) { return decoder->values(); }
}
