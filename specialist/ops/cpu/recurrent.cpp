// Entry points to the recurrent layers, one call on the calling thread, for tests.
#include "recurrent.hpp"

using namespace octet;

extern "C" {

void octet_convolve(const Conv* conv, const float* x, size_t x_stride, int tokens, const float* state, float* next,
                    float* y, size_t y_stride, int first_channel, int last_channel) {
    convolve(*conv, x, x_stride, tokens, state, next, y, y_stride, first_channel, last_channel);
}

void octet_scan(const Scan* parts, int head, int tokens, const float* x, size_t stride, const float* b, const float* c,
                const float* dt_raw, size_t dt_stride, const float* state, float* next, float* y, size_t y_stride) {
    scan(*parts, head, tokens, x, stride, b, c, dt_raw, dt_stride, state, next, y, y_stride);
}

void octet_gated_norm(const float* y, const float* gate, const float* weight, int count, int groups, float eps,
                      bool gate_first, float* out) {
    gated_norm_row(y, gate, weight, count, groups, eps, gate_first, out);
}
}
