"""Valid GGUF files for tests, small enough to be damaged byte by byte."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from tests.models.tiny import CHAT_TEMPLATE, CONTROL, MERGES

Value = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
KIND_NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
BLOCKS = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q6_K": (256, 210)}
"""Columns and bytes of a block of each format."""
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Byte offsets in a block at which its scales are stored as half floats."""


class Blob(NamedTuple):
    kind: str
    shape: tuple[int, ...]
    """Dimensions; the number of rows comes first."""
    data: bytes


def write_gguf(
    path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, Blob], *, version: int = 3, alignment: int = 32
) -> None:
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    header += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    body = b""
    for name, blob in tensors.items():
        header += _text(name) + struct.pack(f"<I{len(blob.shape)}Q", len(blob.shape), *reversed(blob.shape))
        header += struct.pack("<IQ", KIND_NUMBERS[blob.kind], len(body))
        body += blob.data + bytes(-len(blob.data) % alignment)
    path.write_bytes(header + bytes(-len(header) % alignment) + body)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool | int | float):
        number, code = _scalar(value)
        return struct.pack(f"<I{code}", number, value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(str(one)) for one in value)
    number, code = (6, "f") if isinstance(value[0], float) else (5, "i")
    return struct.pack(f"<IIQ{len(value)}{code}", 9, number, len(value), *value)


def _scalar(value: bool | int | float) -> tuple[int, str]:
    if isinstance(value, bool):
        return 7, "?"
    return (4, "I") if isinstance(value, int) else (6, "f")


def random_blob(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Blob:
    """Return a random tensor: floats, or blocks of random integers with reasonable scales."""
    if kind not in BLOCKS:
        values = (rng.standard_normal(shape) * 0.1).astype(np.float32)
        raw = values.view(np.uint32) >> 16 if kind == "BF16" else values
        return Blob(kind, shape, raw.astype({"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[kind]).tobytes())
    columns, num_bytes = BLOCKS[kind]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // columns, num_bytes), dtype=np.uint8)
    for at in HALVES[kind]:
        scale = (rng.standard_normal((len(blocks), 1)) * 0.01).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8)
    return Blob(kind, shape, blocks.tobytes())


def byte_level_words() -> dict[str, Value]:
    """Return the tokenizer of tests.models.tiny as GGUF metadata."""
    alphabet = sorted(ByteLevel.alphabet())
    merged = ["".join(pair) for pair in MERGES]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*CONTROL, *alphabet, *merged],
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(alphabet) + len(merged)),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


NUM_WORDS = len(CONTROL) + 256 + len(MERGES)


def tiny_metadata(architecture: str = "llama", *, hidden: int = 64, inner: int = 96) -> dict[str, Value]:
    return {
        "general.architecture": architecture,
        f"{architecture}.block_count": 2,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": hidden,
        f"{architecture}.feed_forward_length": inner,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10_000.0,
        **byte_level_words(),
    }


def tiny_tensors(
    kind: str, architecture: str = "llama", *, hidden: int = 64, inner: int = 96, tied: bool = True, seed: int = 0
) -> dict[str, Blob]:
    """Return the tensors of a two-layer model: every matrix stored as `kind`, norms and biases as F32."""
    rng = np.random.default_rng(seed)
    kv = hidden // 2
    matrices = {
        "attn_q": (hidden, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    tensors = {"token_embd.weight": random_blob(kind, (NUM_WORDS, hidden), rng)}
    for layer in range(2):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}.weight"] = random_blob("F32", (hidden,), rng)
        for name, shape in matrices.items():
            tensors[f"blk.{layer}.{name}.weight"] = random_blob(kind, shape, rng)
            if architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                tensors[f"blk.{layer}.{name}.bias"] = random_blob("F32", shape[:1], rng)
    tensors["output_norm.weight"] = random_blob("F32", (hidden,), rng)
    if not tied:
        tensors["output.weight"] = random_blob(kind, (NUM_WORDS, hidden), rng)
    return tensors


def tiny_gguf(path: Path, kind: str = "F32", architecture: str = "llama", *, tied: bool = True, seed: int = 0) -> Path:
    """Write a whole random model, with matrices stored as `kind`, to `path`."""
    hidden, inner = (256, 512) if BLOCKS.get(kind, (1,))[0] == 256 else (64, 96)
    metadata = tiny_metadata(architecture, hidden=hidden, inner=inner)
    tensors = tiny_tensors(kind, architecture, hidden=hidden, inner=inner, tied=tied, seed=seed)
    write_gguf(path, metadata, tensors)
    return path
