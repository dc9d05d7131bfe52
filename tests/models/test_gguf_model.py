"""Configuration, weight layout and vocabulary of a model from a GGUF file."""

import struct
from dataclasses import replace
from math import pi
from pathlib import Path

import numpy as np
import pytest
import torch

from specialist.models.checkpoint import Rope
from specialist.models.fields import ModelRefused
from specialist.models.open import inspect_model, open_checkpoint
from specialist.models.weights import Affine, dense
from tests.models.gguf_writer import Blob, Value, random_blob, tiny_gguf, tiny_metadata, tiny_tensors, write_gguf
from tests.models.stories import SPACE


def interleaved(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]], heads: int) -> bytes:
    """Return rows of q or k in the order in which the GGUF converter writes them for Llama."""
    shape = rows.shape
    return bytes(rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape).tobytes())


def test_rows_of_q_and_k_come_back_in_hugging_faces_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    q, k = rng.random((64, 64), np.float32), rng.random((32, 64), np.float32)
    q_bias = rng.random(64, np.float32)
    tensors = tiny_tensors("F32")
    for layer in range(2):
        tensors[f"blk.{layer}.attn_q.weight"] = Blob("F32", (64, 64), interleaved(q, 4))
        tensors[f"blk.{layer}.attn_k.weight"] = Blob("F32", (32, 64), interleaved(k, 2))
        tensors[f"blk.{layer}.attn_q.bias"] = Blob("F32", (64,), interleaved(q_bias, 4))
        for name in "kv":
            tensors[f"blk.{layer}.attn_{name}.bias"] = random_blob("F32", (32,), rng)
    write_gguf(tmp_path / "m.gguf", tiny_metadata(), tensors)
    weights = open_checkpoint(tmp_path / "m.gguf").weights
    for name, expected in {"q": q, "k": k, "q_bias": q_bias}.items():
        assert np.array_equal(dense(weights[f"layers.1.{name}"]).numpy(), expected)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16"])
def test_only_llamas_rows_are_moved_and_only_q_and_k(tmp_path: Path, kind: str) -> None:
    for architecture in ("llama", "qwen2"):
        tiny_gguf(tmp_path / f"{architecture}.gguf", kind, architecture)
    llama = open_checkpoint(tmp_path / "llama.gguf").weights
    tensors = tiny_tensors(kind)
    write_gguf(tmp_path / "as-stored.gguf", {**tiny_metadata("qwen2")}, {**tiny_tensors(kind, "qwen2"), **tensors})
    stored = open_checkpoint(tmp_path / "as-stored.gguf").weights
    for name in ("q", "k"):
        moved, as_stored = dense(llama[f"layers.0.{name}"]), dense(stored[f"layers.0.{name}"])
        assert not torch.equal(moved, as_stored)
        assert torch.equal(moved.sort(0).values, as_stored.sort(0).values)
    for name in ("v", "o", "gate", "up", "down"):
        assert torch.equal(dense(llama[f"layers.0.{name}"]), dense(stored[f"layers.0.{name}"]))


def opened_rope(tmp_path: Path, changes: dict[str, Value], extra: dict[str, Blob] | None = None) -> Rope:
    path = tmp_path / "m.gguf"
    write_gguf(path, {**tiny_metadata(), **changes}, {**tiny_tensors("F32"), **(extra or {})})
    return open_checkpoint(path).config.rope


def test_scaling_of_positions(tmp_path: Path) -> None:
    plain = Rope(10_000.0)
    scaling = "llama.rope.scaling"
    assert opened_rope(tmp_path, {f"{scaling}.type": "none"}) == plain
    linear = opened_rope(tmp_path, {f"{scaling}.type": "linear", f"{scaling}.factor": 4.0})
    assert linear == replace(plain, kind="linear", factor=4.0)
    yarn: dict[str, Value] = {f"{scaling}.type": "yarn", f"{scaling}.factor": 4.0}
    with pytest.raises(ModelRefused, match="original_context_length"):
        opened_rope(tmp_path, yarn)
    found = opened_rope(tmp_path, {**yarn, f"{scaling}.original_context_length": 32})
    assert found == replace(plain, kind="yarn", factor=4.0, original_context=32)
    with pytest.raises(ModelRefused, match="longrope"):
        opened_rope(tmp_path, {f"{scaling}.type": "longrope", f"{scaling}.factor": 4.0})


def llama3_divisors(theta: float, head_dim: int, factor: float, original: int) -> list[float]:
    divisors = []
    for i in range(0, head_dim, 2):
        length = 2 * pi * theta ** (i / head_dim)
        if length < original / 4:
            divisors.append(1.0)
        elif length > original:
            divisors.append(factor)
        else:
            smooth = (original / length - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def test_llama_3s_scaling_is_found_in_its_tensor_of_divisors(tmp_path: Path) -> None:
    divisors = np.array(llama3_divisors(500_000.0, 16, 32.0, 8192), np.float32)
    theta: dict[str, Value] = {"llama.rope.freq_base": 500_000.0}
    rope = opened_rope(tmp_path, theta, {"rope_freqs.weight": Blob("F32", (8,), divisors.tobytes())})
    assert (rope.kind, rope.factor, rope.original_context) == ("llama3", 32.0, 8192)
    divisors[5] *= 1.1
    with pytest.raises(ModelRefused, match="rope_freqs"):
        opened_rope(tmp_path, theta, {"rope_freqs.weight": Blob("F32", (8,), divisors.tobytes())})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "gemma"}, "architecture 'gemma'"),
        ({"llama.attention.head_count_kv": 3}, "evenly"),
        ({"llama.attention.head_count": 0}, "head_count"),
        ({"llama.context_length": 1 << 30}, "context_length"),
        ({"llama.block_count": 1 << 30}, "block_count"),
        ({"llama.block_count": 3}, r"layers\.2"),
        ({"llama.block_count": 1}, "unexpected tensors"),
        ({"llama.embedding_length": 128}, "shape"),
        ({"llama.rope.dimension_count": 8}, "dimension_count"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon"),
        ({"llama.expert_count": 8}, "experts"),
        ({"split.count": 2}, "merge"),
        ({"general.type": "adapter"}, "adapter"),
        ({"llama.vocab_size": 5}, "vocab_size"),
        ({"tokenizer.ggml.model": "bert"}, "gpt2 or llama"),
        ({"tokenizer.ggml.pre": "mystery"}, "pre"),
        ({"tokenizer.ggml.eos_token_id": 999_999}, "eos_token_id"),
        ({"tokenizer.ggml.merges": ["a"]}, "two words"),
        ({"tokenizer.ggml.merges": ["zz q"]}, "damaged"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path, changes: dict[str, Value], message: str) -> None:
    write_gguf(tmp_path / "m.gguf", {**tiny_metadata(), **changes}, tiny_tensors("F32"))
    with pytest.raises(ModelRefused, match=message):
        open_checkpoint(tmp_path / "m.gguf")


def test_norms_come_as_floats(tmp_path: Path) -> None:
    tensors = tiny_tensors("F32")
    tensors["output_norm.weight"] = random_blob("Q8_0", (64,), np.random.default_rng(0))
    write_gguf(tmp_path / "m.gguf", tiny_metadata(), tensors)
    with pytest.raises(ModelRefused, match="only matrices"):
        open_checkpoint(tmp_path / "m.gguf")


def test_infinite_weights_are_refused(tmp_path: Path) -> None:
    tensors = tiny_tensors("F32")
    tensors["output_norm.weight"] = Blob("F32", (64,), struct.pack("<64f", *[1.0] * 63, float("inf")))
    write_gguf(tmp_path / "m.gguf", tiny_metadata(), tensors)
    with pytest.raises(ModelRefused, match="NaN or infinity"):
        open_checkpoint(tmp_path / "m.gguf")


def test_the_revision_is_of_the_content_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    one = open_checkpoint(tiny_gguf(tmp_path / "a.gguf"))
    same = open_checkpoint(tiny_gguf(tmp_path / "elsewhere" / "b.gguf"))
    other = open_checkpoint(tiny_gguf(tmp_path / "c.gguf", seed=1))
    assert one.revision == same.revision != other.revision


def test_matrices_in_blocks_stay_in_blocks(tmp_path: Path) -> None:
    weights = open_checkpoint(tiny_gguf(tmp_path / "m.gguf", "Q4_1")).weights
    blocks = {name for name, weight in weights.items() if isinstance(weight, Affine)}
    assert blocks == {name for name in weights if not name.endswith("norm")}


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_1", "Q8_0"])
def test_an_inspection_states_the_bits_of_every_quantised_matrix(tmp_path: Path, kind: str) -> None:
    path = tiny_gguf(tmp_path / "model.gguf", kind)
    weights = open_checkpoint(path).weights
    assert inspect_model(path).bits == {
        name: weight.bits for name, weight in weights.items() if isinstance(weight, Affine)
    }


def sentencepiece(*, prefix: bool = True) -> dict[str, Value]:
    letters = [SPACE, *"abcdeh t".replace(" ", "")]
    words = ["th", "the", SPACE + "t", SPACE + "the", "ab"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    scores = [0.0] * (259 + len(letters)) + [-1.0, -2.0, -5.0, -3.0, -9.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_vocabulary(tmp_path: Path, prefix: bool) -> None:
    words = sentencepiece(prefix=prefix)
    num_words = len(words["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    metadata = {key: value for key, value in tiny_metadata().items() if not key.startswith("tokenizer")}
    tensors = {
        **tiny_tensors("F32"),
        "token_embd.weight": random_blob("F32", (num_words, 64), np.random.default_rng(0)),
    }
    write_gguf(tmp_path / "m.gguf", {**metadata, **words}, tensors)
    vocabulary = open_checkpoint(tmp_path / "m.gguf").vocabulary
    tokenizer = vocabulary.tokenizer
    assert (vocabulary.bos_id, vocabulary.eos_ids) == (1, frozenset({2}))
    assert vocabulary.control_ids == {"<unk>": 0, "<s>": 1, "</s>": 2}
    tokens = tokenizer.encode("the ab").tokens
    assert tokens == [SPACE + "the" if prefix else "the", SPACE, "ab"]
    for text in ("the ab", "<s>the</s>", "\N{GREEK SMALL LETTER ALPHA}\n", "<0x41>", " the"):
        ids = tokenizer.encode(text).ids
        assert not {0, 1, 2} & set(ids)
        assert tokenizer.decode(ids) == text
