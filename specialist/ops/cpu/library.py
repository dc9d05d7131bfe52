"""The C++ kernels' own words, for ctypes. In step with `decoder.cpp` and `sampler.hpp`."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_void_p
from pathlib import Path
from typing import Any

WORKS = ("linear", "attention", "other")
TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


class Linear(Structure):
    _fields_ = (
        ("kind", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
        ("offset", c_int32),
        ("data", c_void_p),
        ("bias", c_void_p),
    )


class LowRank(Structure):
    _fields_ = (("a", c_void_p), ("b", c_void_p), ("rank", c_int32), ("scale", c_float))


class Layer(Structure):
    _fields_ = (
        ("attn_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", Linear * 3),
        ("o", Linear),
        ("gate_up", Linear * 2),
        ("down", Linear),
        ("window", c_int32),
    )


class Shape(Structure):
    _fields_ = (
        *(
            (name, c_int32)
            for name in (
                "layers",
                "hidden",
                "inner",
                "heads",
                "kv_heads",
                "head_dim",
                "vocab",
                "num_blocks",
                "block_size",
                "max_tokens",
                "max_context",
                "max_rank",
                "threads",
                "half_cache",
            )
        ),
        ("eps", c_float),
        ("rope_factor", c_float),
    )


class StepRows(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("tokens", "rows", "outputs", "table_stride", "adapters")),
        *(
            (name, c_void_p)
            for name in (
                "ids",
                "positions",
                "slots",
                "query_start",
                "block_tables",
                "output_rows",
                "low_ranks",
                "logits",
            )
        ),
    )


class Draw(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("logits", "allowed", "tokens", "bias_ids", "bias", "banned")),
        *((name, c_double) for name in ("temperature", "top_p", "min_p", "uniform")),
        *((name, c_float) for name in ("repetition", "presence", "frequency")),
        *((name, c_int32) for name in ("vocab", "num_tokens", "num_prompt", "num_bias", "num_banned", "top_k")),
        ("raw", c_float),
        ("peak", c_float),
        ("token", c_int32),
    )


def load_library(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    library.octet_dot.restype = c_char_p
    library.octet_create.restype = c_void_p
    library.octet_create.argtypes = (
        POINTER(Shape),
        POINTER(Layer),
        POINTER(Linear),
        POINTER(Linear),
        c_void_p,
        c_void_p,
    )
    library.octet_linear.argtypes = (POINTER(Linear), c_void_p, c_int, c_void_p)
    library.octet_destroy.argtypes = (c_void_p,)
    library.octet_forward.argtypes = (c_void_p, POINTER(StepRows))
    library.octet_linear_only.argtypes = (c_void_p, c_int, c_int, c_void_p)
    library.octet_sample.argtypes = (POINTER(Draw), c_int)
    library.octet_zero.argtypes = (c_void_p, c_void_p, c_int)
    library.octet_seconds.restype = POINTER(c_double)
    library.octet_seconds.argtypes = (c_void_p,)
    for name in ("octet_keys", "octet_values"):
        getattr(library, name).restype = c_void_p
        getattr(library, name).argtypes = (c_void_p,)
    return library
