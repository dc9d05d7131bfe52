"""A valid adapter is read without change; an invalid one is refused with a typed error before it serves."""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from specialist.adapters.adapter import matrix_shapes, read_adapter
from specialist.adapters.catalog import AdapterRefused
from tests.adapters.peft_files import MODEL, SETTINGS, random_tensors, tensor_name, write

TENSORS = "adapter_model.safetensors"


def test_every_target_comes_with_its_numbers_and_its_scale(tmp_path: Path) -> None:
    adapter = read_adapter(write(tmp_path), MODEL)
    tensors = random_tensors()
    assert set(adapter.targets) == {"layers.0.q", "layers.1.q", "layers.0.down", "layers.1.down"}
    for name, low in adapter.targets.items():
        assert torch.equal(low.a, tensors[tensor_name(name, "A")])
        assert torch.equal(low.b, tensors[tensor_name(name, "B")])
        assert low.scale == 8 / 4
    assert adapter.rank == 4
    assert adapter.nbytes == 4 * sum(tensor.numel() for tensor in tensors.values())


def test_patterns_decide_for_the_modules_they_end(tmp_path: Path) -> None:
    tensors = random_tensors() | {
        name: torch.randn(2, 24) if "lora_A" in name else torch.randn(24, 2)
        for name in random_tensors(("q",))
        if ".layers.1." in name
    }
    write(
        tmp_path,
        tensors,
        use_rslora=True,
        rank_pattern={"layers.1.self_attn.q_proj": 2},
        alpha_pattern={"down_proj": 3, "proj": 99},
    )
    adapter = read_adapter(tmp_path, MODEL)
    assert adapter.targets["layers.0.q"].scale == 8 / sqrt(4)
    assert adapter.targets["layers.1.q"].scale == 8 / sqrt(2)
    assert adapter.targets["layers.1.down"].scale == 3 / sqrt(4)


def test_only_the_layers_named_need_tensors(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in random_tensors().items() if ".layers.1." in name}
    adapter = read_adapter(write(tmp_path, tensors, layers_to_transform=1), MODEL)
    assert set(adapter.targets) == {"layers.1.q", "layers.1.down"}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"peft_type": None}, "peft_type"),
        ({"r": 0}, "r"),
        ({"r": 257}, "r"),
        ({"r": 4.0}, "r"),
        ({"r": True}, "r"),
        ({"r": 5}, TENSORS),
        ({"lora_alpha": 0}, "lora_alpha"),
        ({"lora_alpha": -1}, "lora_alpha"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
        ({"lora_alpha": 10**400}, "lora_alpha"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"use_rslora": "yes"}, "use_rslora"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"a_variant_of_tomorrow": True}, "a_variant_of_tomorrow"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": 1}, "init_lora_weights"),
        ({"target_modules": "all-linear"}, "target_modules"),
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": ["q_proj", 7]}, "target_modules"),
        ({"target_modules": ["q_proj", "down_proj", "lm_head"]}, "target_modules"),
        ({"target_modules": ["q_proj"]}, TENSORS),
        ({"target_modules": ["q_proj", "down_proj", "v_proj"]}, TENSORS),
        ({"layers_to_transform": [0, 2]}, "layers_to_transform"),
        ({"layers_to_transform": [-1]}, "layers_to_transform"),
        ({"layers_to_transform": "0"}, "layers_to_transform"),
        ({"layers_to_transform": [0]}, TENSORS),
        ({"rank_pattern": {"q_proj": 999}}, "rank_pattern"),
        ({"rank_pattern": {".*": 4}}, "rank_pattern"),
        ({"rank_pattern": [1]}, "rank_pattern"),
        ({"alpha_pattern": {"(a+)+$": 4}}, "alpha_pattern"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern"),
    ],
    ids=str,
)
def test_unsupported_settings_are_refused(settings: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused) as refused:
        read_adapter(write(tmp_path, **settings), MODEL)
    assert refused.value.field == field


def changed(name: str, tensor: torch.Tensor | None) -> dict[str, torch.Tensor]:
    tensors = random_tensors()
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    return tensors


Q_A, Q_B = tensor_name("layers.0.q", "A"), tensor_name("layers.0.q", "B")


@pytest.mark.parametrize(
    ("name", "tensor", "why"),
    [
        (Q_A, torch.randn(4, 25), r"layers.0.q lora_A must be \[4, 24\], got \[4, 25\]"),
        (Q_A, torch.randn(5, 24), r"must be \[4, 24\]"),
        (Q_A, torch.randn(96), r"got \[96\]"),
        (Q_B, torch.randn(4, 24), r"layers.0.q lora_B must be \[24, 4\]"),
        (Q_B, None, r"layers.0.q must have lora_A and lora_B, but has only lora_A"),
        (Q_A, torch.full((4, 24), torch.nan), "not finite"),
        (Q_A, torch.full((4, 24), -torch.inf, dtype=torch.bfloat16), "not finite"),
        (Q_A, torch.ones(4, 24, dtype=torch.int8), "got torch.int8"),
        (Q_A.replace("layers.0", "layers.2"), torch.randn(4, 24), "beyond the model's 2 layers"),
        (Q_A.replace("layers.0", "layers.00"), torch.randn(4, 24), "is not a lora_A or lora_B weight"),
        (Q_A.replace("q_proj", "c_attn"), torch.randn(4, 24), "is not a lora_A or lora_B weight"),
        (Q_A.replace("lora_A", "lora_magnitude_vector"), torch.randn(4), "is not a lora_A or lora_B weight"),
        ("base_model.model.lm_head.weight", torch.randn(4, 24), "is not a lora_A or lora_B weight"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name: str, tensor: torch.Tensor | None, why: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused, match=why):
        read_adapter(write(tmp_path, changed(name, tensor)), MODEL)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / TENSORS).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(AdapterRefused, match=r"convert it to adapter_model\.safetensors"):
        read_adapter(tmp_path, MODEL)


@pytest.mark.parametrize("name", ["adapter_config.json", TENSORS])
def test_a_file_outside_the_directory_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / "real")
    directory = write(tmp_path / "adapter")
    place = directory / name
    place.unlink()
    with pytest.raises(AdapterRefused, match="cannot be read"):
        read_adapter(directory, MODEL)
    place.symlink_to(tmp_path / "real" / name)
    with pytest.raises(AdapterRefused, match="a symbolic link that leaves its directory"):
        read_adapter(directory, MODEL)
    place.unlink()
    place.symlink_to(place)
    with pytest.raises(AdapterRefused, match="cannot be read"):
        read_adapter(directory, MODEL)
    place.unlink()
    place.mkdir()
    with pytest.raises(AdapterRefused, match="not a regular file"):
        read_adapter(directory, MODEL)


def test_a_link_within_the_directory_is_followed(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / TENSORS).rename(tmp_path / "blob")
    (tmp_path / TENSORS).symlink_to("blob")
    assert read_adapter(tmp_path, MODEL).rank == 4


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b" " * (1 << 20) + b"{}"])
def test_an_invalid_config_is_refused(content: bytes, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "adapter_config.json").write_bytes(content)
    with pytest.raises(AdapterRefused) as refused:
        read_adapter(tmp_path, MODEL)
    assert refused.value.field == "adapter_config.json"


def test_a_file_larger_than_any_adapter_is_refused_unread(tmp_path: Path) -> None:
    write(tmp_path)
    limit = (1 << 20) + sum(4 * 256 * sum(shape) for shape in matrix_shapes(MODEL).values())
    with (tmp_path / TENSORS).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(AdapterRefused, match=f"larger than the limit of {limit:,} bytes"):
        read_adapter(tmp_path, MODEL)


WHOLE = save(random_tensors())


@settings(max_examples=60)
@given(length=st.integers(0, len(WHOLE) - 1))
def test_a_truncated_file_is_refused(length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.getbasetemp() / "truncated"
    write(directory)
    (directory / TENSORS).write_bytes(WHOLE[:length])
    with pytest.raises(AdapterRefused):
        read_adapter(directory, MODEL)


@settings(max_examples=150)
@given(bit=st.one_of(st.integers(0, 8 * 1200 - 1), st.integers(0, 8 * len(WHOLE) - 1)))
def test_a_flipped_bit_is_refused_or_makes_another_adapter(bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """If the damaged file is accepted, all its weights must be finite, and its digest must differ from the original's
    if and only if a tensor does."""
    directory = tmp_path_factory.getbasetemp() / "flipped"
    whole = read_adapter(write(directory), MODEL)
    flipped = bytearray(WHOLE)
    flipped[bit // 8] ^= 1 << bit % 8
    (directory / TENSORS).write_bytes(flipped)
    try:
        adapter = read_adapter(directory, MODEL)
    except AdapterRefused:
        return
    same = all(
        torch.equal(low.a, whole.targets[name].a) and torch.equal(low.b, whole.targets[name].b)
        for name, low in adapter.targets.items()
    )
    assert (adapter.digest == whole.digest) == same
    assert all(low.a.isfinite().all() and low.b.isfinite().all() for low in adapter.targets.values())


def test_the_digest_names_content_and_nothing_else(tmp_path: Path) -> None:
    digest = read_adapter(write(tmp_path / "a"), MODEL).digest
    renamed = write(tmp_path / "b", dict(reversed(random_tensors().items())), base_model_name_or_path="elsewhere")
    assert read_adapter(renamed, MODEL).digest == digest
    halved = write(tmp_path / "c", {name: tensor.half().float() for name, tensor in random_tensors().items()})
    stored_as_half = write(tmp_path / "d", {name: tensor.half() for name, tensor in random_tensors().items()})
    assert read_adapter(halved, MODEL).digest == read_adapter(stored_as_half, MODEL).digest != digest
    others = [write(tmp_path / "e", lora_alpha=9), write(tmp_path / "f", random_tensors(seed=1))]
    digests = {digest, *(read_adapter(other, MODEL).digest for other in others)}
    assert len(digests) == 3


def test_what_peft_writes_by_default_is_read(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    defaults = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]).to_dict()
    known = {name: sorted(value) if isinstance(value, set) else value for name, value in defaults.items()}
    write(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({**SETTINGS, **known}, default=str))
    assert read_adapter(tmp_path, MODEL).targets["layers.0.q"].scale == 2.0
