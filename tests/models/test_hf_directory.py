"""A model directory is opened if it is complete and valid. Otherwise it is refused with a hint on how to repair it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from specialist.models.checkpoint import expected_shapes
from specialist.models.fields import ModelRefused
from specialist.models.open import open_checkpoint
from specialist.models.weights import dense
from tests.models.tiny import CHAT_TEMPLATE, FAMILIES, tiny_model

Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    tiny_model(directory, "llama")
    return directory


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "model"))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_a_model_arrives(tmp_path: Path, family: str, tied: bool) -> None:
    biased: dict[str, Any] = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    model = tiny_model(tmp_path, family, tie_word_embeddings=tied, **biased)
    checkpoint = open_checkpoint(tmp_path)
    assert {name: tuple(dense(weight).shape) for name, weight in checkpoint.weights.items()} == dict(
        expected_shapes(checkpoint.config)
    )
    ours = sorted((dense(w) for w in checkpoint.weights.values()), key=lambda one: (one.shape, one.sum().item()))
    theirs = [tensor for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")]
    theirs.sort(key=lambda one: (one.shape, one.sum().item()))
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_keep_their_type(copy: Path, dtype: torch.dtype) -> None:
    file = copy / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file)
    weight = open_checkpoint(copy).weights["layers.0.q"]
    assert isinstance(weight, torch.Tensor)
    assert weight.dtype == dtype


def sharded(directory: Path) -> dict[str, str]:
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in sorted(set(weight_map.values())):
        save_file({name: tensors[name] for name, where in weight_map.items() if where == shard}, directory / shard)
    return weight_map


def write_index(directory: Path, weight_map: dict[str, str]) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_with_and_without_an_index_are_one_model(copy: Path) -> None:
    whole = open_checkpoint(copy)
    weight_map = sharded(copy)
    unindexed = open_checkpoint(copy)
    write_index(copy, weight_map)
    indexed = open_checkpoint(copy)
    for name, weight in whole.weights.items():
        assert torch.equal(dense(weight), dense(unindexed.weights[name]))
        assert torch.equal(dense(weight), dense(indexed.weights[name]))


@pytest.mark.parametrize("where", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "", "..", "x\0y"])
def test_an_index_never_leads_out_of_the_directory(copy: Path, where: str) -> None:
    shutil.copy(copy / "model.safetensors", copy.parent / "outside.safetensors")
    weight_map = sharded(copy)
    write_index(copy, {**weight_map, "lm_head.weight": where})
    with pytest.raises(ModelRefused, match="plain name"):
        open_checkpoint(copy)


def test_a_link_out_of_the_directory_is_refused_but_a_hub_cache_is_not(copy: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "hub" / "blobs").mkdir()
    for file in copy.iterdir():
        shutil.copy(file, tmp_path / "hub" / "blobs" / file.name)
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    open_checkpoint(snapshot)
    (copy / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (copy / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(ModelRefused, match="link that leaves"):
        open_checkpoint(copy)


def edit(name: str, **changes: Any) -> Spoil:
    def spoil(directory: Path) -> None:
        content = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps({**content, **changes}))

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Spoil:
    def spoil(directory: Path) -> None:
        file = directory / "model.safetensors"
        save_file(change({name: tensor.clone() for name, tensor in load_file(file).items()}), file)

    return spoil


def spoilt(name: str, value: float) -> Spoil:
    def change(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found[name].view(-1)[-1] = value
        return found

    return tensors(change)


def only_a_pickle(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def fifo(directory: Path) -> None:
    (directory / "config.json").unlink()
    os.mkfifo(directory / "config.json")


NORM = "model.norm.weight"
SPOILS: dict[str, tuple[Spoil, str]] = {
    "a tensor missing": (tensors(lambda t: {k: v for k, v in t.items() if k != NORM}), "norm is missing"),
    "a tensor too long": (tensors(lambda t: {**t, NORM: torch.ones(65)}), r"shape \[65\]"),
    "a tensor too many": (
        tensors(lambda t: {**t, "model.layers.3.mlp.up_proj.weight": torch.ones(1)}),
        "unexpected tensors",
    ),
    "a bias nobody announced": (
        tensors(lambda t: {**t, "model.layers.0.mlp.up_proj.bias": torch.ones(96)}),
        "unexpected tensors",
    ),
    "a foreign tensor": (tensors(lambda t: {**t, "transformer.h.0.weight": torch.ones(1)}), "transformer"),
    "integers": (tensors(lambda t: {**t, NORM: torch.ones(64, dtype=torch.int8)}), "I8"),
    "NaN": (spoilt("model.layers.2.mlp.down_proj.weight", float("nan")), r"layers\.2\.down contains NaN"),
    "infinity": (spoilt("lm_head.weight", float("-inf")), "head contains NaN or infinity"),
    "a tied head that differs": (edit("config.json", tie_word_embeddings=True), "tie_word_embeddings"),
    "only a pickle": (only_a_pickle, "convert it to safetensors"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "no \\*.safetensors"),
    "no config": (lambda d: (d / "config.json").unlink(), "config.json is missing"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "a pipe for a config": (fifo, "regular file"),
    "a config that is no JSON": (lambda d: (d / "config.json").write_text("{"), "not valid JSON"),
    "a config without end": (lambda d: (d / "config.json").write_text("[" * 200_000), "not valid JSON"),
    "a config in latin-1": (lambda d: (d / "config.json").write_bytes(b'{"a": "\xff"}'), "not valid JSON"),
    "a list for a config": (lambda d: (d / "config.json").write_text("[]"), "JSON object"),
    "a tokenizer with more words": (edit("config.json", vocab_size=100), "only 100 vocabulary rows"),
    "an end beyond the words": (edit("generation_config.json", eos_token_id=[2, 9999]), "9999"),
    "an end that is no word": (edit("tokenizer_config.json", **{"eos_token": "<|none|>"}), "eos_token"),
    "a tokenizer of another kind": (edit("tokenizer.json", model={"type": "Unigram", "vocab": []}), "must be BPE"),
    "a tokenizer that does not build": (edit("tokenizer.json", pre_tokenizer={"type": "None"}), "damaged"),
    "a size the weights do not have": (edit("config.json", intermediate_size=97), "belong to different models"),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILS.values(), ids=SPOILS.keys())
def test_every_defect_is_named(copy: Path, spoil: Spoil, message: str) -> None:
    spoil(copy)
    with pytest.raises(ModelRefused, match=message):
        open_checkpoint(copy)


def test_a_tied_model_may_carry_its_head_once_more(tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama", tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    found = load_file(file)
    assert "lm_head.weight" not in found
    save_file({**found, "lm_head.weight": found["model.embed_tokens.weight"].clone()}, file)
    assert "head" not in open_checkpoint(tmp_path).weights


def test_an_old_checkpoints_frequencies_are_passed_over(copy: Path) -> None:
    tensors(lambda t: {**t, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})(copy)
    open_checkpoint(copy)


def test_the_revision_is_of_the_content_alone(copy: Path, llama: Path) -> None:
    os.utime(copy / "config.json", (0, 0))
    (copy / "README.md").write_text("of no consequence")
    assert open_checkpoint(copy).revision == open_checkpoint(llama).revision
    edit("config.json", rms_norm_eps=1e-5)(copy)
    assert open_checkpoint(copy).revision != open_checkpoint(llama).revision


def test_a_missing_model_is_refused() -> None:
    with pytest.raises(ModelRefused, match="no such file"):
        open_checkpoint(Path("/nowhere/at/all"))


def refused_or_finite(directory: Path) -> None:
    try:
        checkpoint = open_checkpoint(directory)
    except ModelRefused:
        return
    assert all(bool(torch.isfinite(dense(weight)).all()) for weight in checkpoint.weights.values())
    checkpoint.vocabulary.tokenizer.encode("the <|im_start|> end")


FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors")


@pytest.fixture(scope="module")
def victim(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(llama, tmp_path_factory.mktemp("victim") / "model"))


@settings(max_examples=200)
@given(name=st.sampled_from(FILES), data=st.data())
def test_flipped_bits_and_cut_files_are_refused_or_harmless(
    llama: Path, victim: Path, name: str, data: st.DataObject
) -> None:
    whole = (llama / name).read_bytes()
    content = bytearray(whole)
    positions = st.one_of(st.integers(0, min(8 * 3000, 8 * len(whole) - 1)), st.integers(0, 8 * len(whole) - 1))
    for bit in data.draw(st.lists(positions, min_size=1, max_size=3)):
        content[bit // 8] ^= 1 << bit % 8
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    (victim / name).unlink()
    (victim / name).write_bytes(content)
    refused_or_finite(victim)
    (victim / name).unlink()
    (victim / name).write_bytes(whole)


def test_every_truncation_of_the_weights_is_refused(copy: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    for length in [*range(0, 64), *range(64, len(whole), 4999), len(whole) - 1]:
        (copy / "model.safetensors").unlink()
        (copy / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(ModelRefused):
            open_checkpoint(copy)


def test_the_vocabulary_of_a_tiny_model(llama: Path) -> None:
    vocabulary = open_checkpoint(llama).vocabulary
    assert vocabulary.control_ids == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert (vocabulary.bos_id, vocabulary.eos_ids) == (None, frozenset({2}))
    assert vocabulary.chat_template == CHAT_TEMPLATE
