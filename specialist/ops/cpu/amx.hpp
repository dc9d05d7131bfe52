// Sixteen tokens at once on CPUs with matrix tiles. The integers are exact and the floats are added in the same order, so
// the result is that of `affine_tile` to the bit. Included by linear.hpp.
#pragma once

#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octet {

#if defined(__AMX_INT8__) && defined(__linux__)

constexpr int AMX_PAYS_FROM = 6;

// The kernel lets a process use the tiles only when it has asked.
inline bool amx_allowed() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    static const bool allowed = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return allowed;
}

// Tiles 0 to 3: 16 tokens x 16 sums. 4 and 5: 16 tokens x 32 bytes. 6: 8 quads of columns x 16 rows.
class AmxSession {
   public:
    AmxSession() {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 32, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8};
        } layout;
        _tile_loadconfig(&layout);
    }
    ~AmxSession() { _tile_release(); }
};

// The sums of one group. Neighbouring groups take different tiles, so that one need not wait for the other.
template <int BITS, int SIDE>
inline void amx_group(const uint8_t* group, const int8_t* x_highs, const int8_t* x_lows, int32_t* highs, int32_t* lows) {
    if constexpr (BITS == 4) {
        alignas(64) uint8_t bytes[8 * 64];
        u8x64 w[8];
        unpack<4>(group, w);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) store(bytes + 64 * j, w[j]);
        asm volatile("" ::"r"(bytes) : "memory");  // compilers do not know that a tile load reads memory
        _tile_loadd(6, bytes, 64);
    } else {
        _tile_loadd(6, group, 64);
    }
    _tile_loadd(4, x_highs, GROUP);
    _tile_loadd(5, x_lows, GROUP);
    if constexpr (SIDE == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 5, 6);
        _tile_stored(0, highs, 64);
        _tile_stored(1, lows, 64);
    } else {
        _tile_zero(2);
        _tile_zero(3);
        _tile_dpbsud(2, 4, 6);
        _tile_dpbsud(3, 5, 6);
        _tile_stored(2, highs, 64);
        _tile_stored(3, lows, 64);
    }
}

// The whole block of tokens that begins at `first`, however many of them count.
template <int BITS>
inline void amx_tile(const uint8_t* tile, const Input& x, int first, f32x16* out) {
    constexpr int VALUES = GROUP * LANES * BITS / 8, STRIDE = VALUES + 4 * LANES;
    const int groups = x.columns / GROUP;
    alignas(64) int32_t highs[2][BLOCK * LANES], lows[2][BLOCK * LANES];
    f32x16 acc[BLOCK];
#pragma GCC unroll 16
    for (int t = 0; t < BLOCK; t++) acc[t] = f32x16{};
    size_t at = x.group_of(first, 0);
    amx_group<BITS, 0>(tile, x.highs + at * GROUP, x.lows + at * GROUP, highs[0], lows[0]);
#pragma GCC unroll 1
    for (int g = 0; g < groups; g++, at += BLOCK) {
        const uint8_t* now = tile + g * STRIDE;
        const int8_t *next_highs = x.highs + (at + BLOCK) * GROUP, *next_lows = x.lows + (at + BLOCK) * GROUP;
        if (g + 1 < groups) {  // the tiles work on the next group while this one's sums are added up
            if (g % 2) amx_group<BITS, 0>(now + STRIDE, next_highs, next_lows, highs[0], lows[0]);
            else amx_group<BITS, 1>(now + STRIDE, next_highs, next_lows, highs[1], lows[1]);
        }
        const f32x16 scale = from_half(reinterpret_cast<const uint16_t*>(now + VALUES));
        const f32x16 minimum = from_half(reinterpret_cast<const uint16_t*>(now + VALUES + 2 * LANES));
        const int32_t *high = highs[g % 2], *low = lows[g % 2];
#pragma GCC unroll 16
        for (int t = 0; t < BLOCK; t++) {
            i32x16 dot = (load<i32x16>(high + t * LANES) << 8) + load<i32x16>(low + t * LANES);
            acc[t] = add_group(acc[t], dot, scale, minimum, x.scales[at + t], x.sums[at + t]);
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < BLOCK; t++) out[t] = acc[t];
}

#else

constexpr int AMX_PAYS_FROM = 1 << 30;

inline bool amx_allowed() { return false; }

struct AmxSession {};

template <int BITS>
inline void amx_tile(const uint8_t*, const Input&, int, f32x16*) {}

#endif

}  // namespace octet
