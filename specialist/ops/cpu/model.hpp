// What Python passes: a model once, the rows of each step. Must match `library.py`.
#pragma once

#include "linear.hpp"

namespace octet {

enum Target : int { Q, K, V, O, GATE, UP, DOWN, TARGETS };

struct LowRank {
    const float* a;  // packed [rank, in]
    const float* b;  // packed [out, rank]
    int32_t rank;    // 0: no adapter for this target
    float scale;
};

// A recurrent layer. Where its state is in a sequence's memory, and its inputs in a staged row, counts in floats.
struct Mixer {
    const float* norm;  // null: reads what attention reads
    Linear in;          // ABSENT: the layer is not recurrent
    Linear out;
    const float* conv_weight;  // [width, channels]
    const float* conv_bias;
    const float* rate;  // the rest is null for a short convolution
    const float* skip;
    const float* step_bias;
    const float* gate_norm;
    int64_t conv_at, ssm_at, inputs_at;
};

struct Layer {
    const float* attn_norm;  // null: no attention
    const float* mlp_norm;   // null: no MLP
    const float* q_norm;
    const float* k_norm;
    Linear qkv[3];
    Linear o;
    Linear gate_up[2];
    Linear down;
    Linear link;     // not ABSENT: attention and MLP are a shared block, and add to the mixer's input only
    Mixer mixer;
    int32_t window;  // 0: unlimited
    int32_t cache;   // its number among the layers with attention
};

enum Activation : int32_t { SILU, GELU, RELU2 };
enum GateNorm : int32_t { NO_NORM, GATE_FIRST, GATE_LAST };

// The sizes that all recurrent layers of a model share; no heads: they are short convolutions.
struct Recurrent {
    int32_t width, channels, heads, head_dim, state_size, groups, norm, norm_groups, in_size, inner, input_size;
    float norm_eps, least_step, most_step;
};

struct Shape {
    int32_t layers, hidden, inner, heads, kv_heads, head_dim, vocab;
    int32_t num_blocks, block_size, max_tokens, max_context, max_rank, threads, half_cache;
    int32_t kv_layers, rotary_dim, activation, gated;
    float eps, rope_factor, embed_scale, logit_scale;
    Recurrent recurrent;
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
    const float* const* states;   // [rows], for models with recurrent layers
    float* const* after;          // [rows]: the states after the last tokens
    float* const* kept;           // [rows]: [tokens of the row, input_size], or null
};

}  // namespace octet
