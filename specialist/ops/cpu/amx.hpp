// Sixteen tokens at once on CPUs with matrix tiles (AMX). The integers are exact and the floats are added in the same
// order, so the result equals that of `affine_tile` to the bit. Included by linear.hpp.
#pragma once

#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octet {

#if defined(__AMX_INT8__) && defined(__linux__)

constexpr int AMX_PAYS_FROM = 8;

// The kernel lets a process use the tiles only after it has requested permission.
inline bool amx_allowed() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    static const bool allowed = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return allowed;
}

// Tiles 0 to 3: 16 tokens x 16 sums. 4 and 5: 16 tokens x 32 bytes. 6 and 7: 8 quads of columns x 16 rows.
class AmxSession {
 public:
    AmxSession() {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 32, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8, 8};
        } layout;
        _tile_loadconfig(&layout);
    }
    ~AmxSession() { _tile_release(); }
};

// A tile load right after a store of its bytes stalls, and so does a load of bytes that a tile was just stored to.
// Therefore every stage runs over a few groups before the next stage starts.
constexpr int STAGE = 6;

// The integers of a 4-bit group, followed by the same times 16, which are multiplied with the high bytes: one sum then
// contains both products.
inline void amx_unpack(const uint8_t* group, uint8_t* bytes) {
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(char(240));
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512i both = _mm512_loadu_si512(group + 64 * j);
        const __m512i even = _mm512_and_si512(both, low), odd = _mm512_and_si512(both, high);
        _mm512_store_si512(bytes + 128 * j, even);
        _mm512_store_si512(bytes + 128 * j + 64, _mm512_srli_epi16(odd, 4));
        _mm512_store_si512(bytes + 512 + 128 * j, _mm512_slli_epi16(even, 4));
        _mm512_store_si512(bytes + 512 + 128 * j + 64, odd);
    }
}

// Neighbouring groups use different tiles, so that they do not wait for each other. A tile number must be a literal.
#define OCTET_AMX_SUM_FOUR(TILE, bytes, x_highs, x_lows, sums) \
    _tile_loadd(6, bytes, 64);                                 \
    _tile_loadd(7, bytes + 8 * 64, 64);                        \
    _tile_loadd(4, x_highs, GROUP);                            \
    _tile_loadd(5, x_lows, GROUP);                             \
    _tile_zero(TILE);                                          \
    _tile_dpbsud(TILE, 4, 7);                                  \
    _tile_dpbsud(TILE, 5, 6);                                  \
    _tile_stored(TILE, sums, 64)

#define OCTET_AMX_SUMS_EIGHT(HIGH, LOW, bytes, x_highs, x_lows, highs, lows) \
    _tile_loadd(6, bytes, 64);                                               \
    _tile_loadd(4, x_highs, GROUP);                                          \
    _tile_loadd(5, x_lows, GROUP);                                           \
    _tile_zero(HIGH);                                                        \
    _tile_zero(LOW);                                                         \
    _tile_dpbsud(HIGH, 4, 6);                                                \
    _tile_dpbsud(LOW, 5, 6);                                                 \
    _tile_stored(HIGH, highs, 64);                                           \
    _tile_stored(LOW, lows, 64)

// The whole block of tokens that begins at `first`, even if only some of them are used.
template <int BITS>
inline void amx_tile(const uint8_t* tile, const Input& x, int first, f32x16* out) {
    constexpr int VALUES = GROUP * LANES * BITS / 8, STRIDE = VALUES + 4 * LANES;
    alignas(64) uint8_t bytes[BITS == 4 ? STAGE : 1][2 * 8 * 64];
    alignas(64) int32_t sums[STAGE][BLOCK * LANES], lows[BITS == 8 ? STAGE : 1][BLOCK * LANES];
    const int groups = x.columns / GROUP;
    f32x16 acc[BLOCK];
#pragma GCC unroll 16
    for (int t = 0; t < BLOCK; t++) acc[t] = f32x16{};
    for (int begin = 0; begin < groups; begin += STAGE, tile += STAGE * STRIDE) {
        const int count = std::min(STAGE, groups - begin);
        const size_t at = x.group_of(first, begin);
        if constexpr (BITS == 4) {
            for (int i = 0; i < count; i++) amx_unpack(tile + i * STRIDE, bytes[i]);
            asm volatile("" ::"r"(bytes) : "memory");  // compilers do not know that a tile load reads memory
        }
        for (int i = 0; i < count; i++) {
            fetch_ahead<STRIDE>(tile + i * STRIDE);
            const int8_t *highs = x.highs + (at + i * BLOCK) * GROUP, *x_lows = x.lows + (at + i * BLOCK) * GROUP;
            if constexpr (BITS == 4) {
                if (i % 2) {
                    OCTET_AMX_SUM_FOUR(1, bytes[i], highs, x_lows, sums[i]);
                } else {
                    OCTET_AMX_SUM_FOUR(0, bytes[i], highs, x_lows, sums[i]);
                }
            } else {
                const uint8_t* weights = tile + i * STRIDE;
                if (i % 2) {
                    OCTET_AMX_SUMS_EIGHT(2, 3, weights, highs, x_lows, sums[i], lows[i]);
                } else {
                    OCTET_AMX_SUMS_EIGHT(0, 1, weights, highs, x_lows, sums[i], lows[i]);
                }
            }
        }
#pragma GCC unroll 1
        for (int i = 0; i < count; i++) {
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(tile + i * STRIDE + VALUES);
            const f32x16 scale = from_half(halves), minimum = from_half(halves + LANES);
            const size_t of_first = size_t(first) * groups + begin + i;
            const float *x_scales = x.scales + of_first, *x_sums = x.sums + of_first;
#pragma GCC unroll 16
            for (int t = 0; t < BLOCK; t++) {
                i32x16 dot = load<i32x16>(sums[i] + t * LANES);
                if constexpr (BITS == 8) dot = (dot << LOW_BITS) + load<i32x16>(lows[i] + t * LANES);
                acc[t] = add_group(acc[t], dot, scale, minimum, x_scales[t * groups], x_sums[t * groups]);
            }
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < BLOCK; t++) out[t] = acc[t];
}

#undef OCTET_AMX_SUM_FOUR
#undef OCTET_AMX_SUMS_EIGHT

#else

constexpr int AMX_PAYS_FROM = 1 << 30;

inline bool amx_allowed() { return false; }

struct AmxSession {};

template <int BITS>
inline void amx_tile(const uint8_t*, const Input&, int, f32x16*) {}

#endif

}  // namespace octet
