"""The C++ kernels: compiled once for this CPU, called through ctypes. Structs match `model.hpp`, `sampler.hpp`
and `recurrent.hpp`."""

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from octet.identity import digest_parts

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
COMPILERS = ("c++", "g++", "clang++")
TIMEOUT_SECONDS = 300


class BuildFailed(RuntimeError):
    """There is no compiler, or it cannot compile the kernels. The message states what to do."""


def build(cache: Path, flags: Sequence[str] | None = None) -> Path:
    """Return the shared library for this CPU and compiler, compiled if it is not in the cache. `flags` replace the
    option that selects this CPU. Raises BuildFailed."""
    compiler = find_compiler()
    native = "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"
    flags = (*FLAGS, *((native,) if flags is None else flags))
    library = cache / "kernels" / f"{_key(compiler, flags)}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            fresh = Path(folder) / library.name
            _run([compiler, *flags, *map(str, sorted(SOURCES.glob("*.cpp"))), "-o", str(fresh)])
            fresh.replace(library)
    return library


def find_compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else COMPILERS:
        if found := shutil.which(name):
            return found
    wanted = f"CXX={named}" if named else " or ".join(COMPILERS)
    raise BuildFailed(f"no C++ compiler found ({wanted}): install one, such as Debian's g++, for the fast CPU kernels")


def _key(compiler: str, flags: Sequence[str]) -> str:
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".hpp"))
    version = _run([compiler, "--version"]).encode()
    parts = [part for path in sources for part in (path.name.encode(), path.read_bytes())]
    return digest_parts([version, " ".join(flags).encode(), _cpu(), *parts]).hex()[:32]


def _cpu() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor().encode()
    wanted = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)})).encode()


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"cannot run {command[0]}: {error}") from error
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


WORK_KINDS = ("linear", "attention", "other")


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class LinearStruct(Structure):
    _fields_ = (*_fields(c_int32, "kind rows columns offset"), *_fields(c_void_p, "data bias"))


class LowRankStruct(Structure):
    _fields_ = (("a", c_void_p), ("b", c_void_p), ("rank", c_int32), ("scale", c_float))


class MixerStruct(Structure):
    _fields_ = (
        ("norm", c_void_p),
        ("in_", LinearStruct),
        ("out", LinearStruct),
        *_fields(c_void_p, "conv_weight conv_bias rate skip step_bias gate_norm"),
        *_fields(c_int64, "conv_at ssm_at inputs_at"),
    )


class LayerStruct(Structure):
    _fields_ = (
        *_fields(c_void_p, "attn_norm mlp_norm q_norm k_norm"),
        ("qkv", LinearStruct * 3),
        ("o", LinearStruct),
        ("gate_up", LinearStruct * 2),
        ("down", LinearStruct),
        ("link", LinearStruct),
        ("mixer", MixerStruct),
        *_fields(c_int32, "window cache"),
    )


class RecurrentStruct(Structure):
    _fields_ = (
        *_fields(c_int32, "width channels heads head_dim state_size groups norm norm_groups in_size inner input_size"),
        *_fields(c_float, "norm_eps least_step most_step"),
    )


class ShapeStruct(Structure):
    _fields_ = (
        *_fields(c_int32, "layers hidden inner heads kv_heads head_dim vocab num_blocks block_size max_tokens"),
        *_fields(c_int32, "max_context max_rank threads half_cache kv_layers rotary_dim activation gated"),
        *_fields(c_float, "eps rope_factor embed_scale logit_scale"),
        ("recurrent", RecurrentStruct),
    )


class StepStruct(Structure):
    _fields_ = (
        *_fields(c_int32, "tokens rows outputs table_stride adapters"),
        *_fields(c_void_p, "ids positions slots query_start block_tables output_rows low_ranks logits"),
        *_fields(c_void_p, "states after kept"),
    )


class DrawStruct(Structure):
    _fields_ = (
        *_fields(c_void_p, "logits allowed tokens bias_ids bias banned"),
        *_fields(c_double, "temperature top_p min_p uniform"),
        *_fields(c_float, "repetition presence frequency"),
        *_fields(c_int32, "vocab num_tokens num_prompt num_bias num_banned top_k"),
        *_fields(c_float, "raw peak"),
        ("token", c_int32),
    )


class ConvStruct(Structure):
    _fields_ = (*_fields(c_int32, "channels width"), *_fields(c_void_p, "weight bias"), ("silu", c_bool))


class ScanStruct(Structure):
    _fields_ = (
        *_fields(c_int32, "heads head_dim state_size groups"),
        *_fields(c_void_p, "a d dt_bias"),
        *_fields(c_float, "dt_min dt_max"),
    )


def load_library(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    library.octet_dot.restype = c_char_p
    library.octet_create.restype = c_void_p
    structs = (POINTER(kind) for kind in (ShapeStruct, LayerStruct, LinearStruct, LinearStruct))
    library.octet_create.argtypes = (*structs, c_void_p, c_void_p)
    library.octet_linear.argtypes = (POINTER(LinearStruct), c_void_p, c_int, c_void_p)
    library.octet_destroy.argtypes = (c_void_p,)
    library.octet_forward.argtypes = (c_void_p, POINTER(StepStruct))
    library.octet_linear_only.argtypes = (c_void_p, c_int, c_int, c_void_p)
    library.octet_sample.argtypes = (POINTER(DrawStruct), c_int)
    library.octet_zero.argtypes = (c_void_p, c_void_p, c_int)
    library.octet_replay.argtypes = (c_void_p, c_void_p, c_void_p, c_int, c_void_p)
    library.octet_add_hidden.argtypes = (c_void_p, c_int, c_int, c_void_p)
    library.octet_seconds.restype = POINTER(c_double)
    library.octet_seconds.argtypes = (c_void_p,)
    _declare_recurrent(library)
    for name in ("octet_keys", "octet_values"):
        getattr(library, name).restype = c_void_p
        getattr(library, name).argtypes = (c_void_p,)
    return library


def _declare_recurrent(library: Any) -> None:
    rows, count = (c_void_p, c_size_t), c_int
    states = (c_void_p, c_void_p)
    library.octet_convolve.argtypes = (POINTER(ConvStruct), *rows, count, *states, *rows, count, count)
    inputs = (*rows, c_void_p, c_void_p, *rows)
    library.octet_scan.argtypes = (POINTER(ScanStruct), c_int, count, *inputs, *states, *rows)
    library.octet_gated_norm.argtypes = (c_void_p, c_void_p, c_void_p, count, count, c_float, c_bool, c_void_p)
    for name in ("octet_convolve", "octet_scan", "octet_gated_norm"):
        getattr(library, name).restype = None
