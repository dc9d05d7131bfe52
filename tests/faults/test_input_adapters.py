"""Rows 18 and 19 of docs/reliability.md: a replica refuses damaged and hostile adapters and keeps the one it has."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from safetensors.torch import save

from octet.client.replica import SpecialistError
from octet.clock import SystemClock
from octet.v1 import error_pb2
from specialist.adapters.catalog import AdapterRefused
from specialist.server.native_replica import create_native_replica
from specialist.server.replica import assemble_replica
from specialist.server.settings import ReplicaSettings
from tests.adapters.peft_files import SETTINGS, random_tensors, tensor_name, write
from tests.faults.figures import Figure
from tests.models.stories import stories_dir
from tests.specialist.server.harness import (
    ReplicaHarness,
    adapter_directory,
    ask,
    generate_request,
    running_replica,
    small,
)

__all__ = ["stories_dir"]
TENSORS = "adapter_model.safetensors"
Q_A = tensor_name("layers.0.q", "A")
Damage = Callable[[bytes], bytes]


def _header(raw: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    change(header)
    written = json.dumps(header).encode()
    return struct.pack("<Q", len(written)) + written + raw[8 + length :]


def _first(header: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = header[Q_A]
    return found


def _twice(raw: bytes) -> bytes:
    length = struct.unpack("<Q", raw[:8])[0]
    header = raw[8 : 8 + length]
    again = (
        header[:-1].rstrip(b" }")
        + b'}, "'
        + Q_A.encode()
        + b'": '
        + json.dumps(json.loads(header)[Q_A]).encode()
        + b"}"
    )
    return struct.pack("<Q", len(again)) + again + raw[8 + length :]


def _flip(raw: bytes) -> bytes:
    return raw[:-5] + bytes((raw[-5] ^ 1,)) + raw[-4:]


BYTES: dict[str, Damage] = {
    "nothing": lambda raw: b"",
    "truncated": lambda raw: raw[:-100],
    "a tail": lambda raw: raw + b"more",
    "a header of 100 MB": lambda raw: struct.pack("<Q", 100_000_001) + raw[8:],
    "a header without end": lambda raw: struct.pack("<Q", 2**63) + raw[8:],
    "offsets beyond the file": lambda raw: _header(raw, lambda it: _first(it).update(data_offsets=[0, 1 << 40])),
    "offsets that overlap": lambda raw: _header(raw, lambda it: _first(it).update(data_offsets=[4, 8])),
    "a shape that is too large": lambda raw: _header(raw, lambda it: _first(it).update(shape=[1 << 62, 4])),
    "an unknown type": lambda raw: _header(raw, lambda it: _first(it).update(dtype="X7")),
    "a pickle": lambda raw: pickle.dumps({"weights": 1}),
    "a flipped bit": _flip,
    "a key twice": _twice,
}


def _changed(model: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Return complete adapter files with invalid tensors."""
    good = random_tensors(model=model)
    a = good[Q_A]
    return {
        "not a number": {**good, Q_A: torch.full_like(a, torch.nan)},
        "infinite": {**good, Q_A: torch.full_like(a, torch.inf)},
        "another rank": {**good, Q_A: torch.randn(5, a.shape[1])},
        "another shape": {**good, Q_A: torch.randn(a.shape[0], a.shape[1] + 1)},
        "whole numbers": {**good, Q_A: torch.ones(a.shape, dtype=torch.int32)},
    }


_DAMAGED = "truncated or damaged"
WHY = {
    **{name: _DAMAGED for name in BYTES if name not in ("a flipped bit", "a key twice")},
    "not a number": "contains a value that is not finite",
    "infinite": "contains a value that is not finite",
    "another rank": "must be [4, 64], got [5, 64]",
    "another shape": "must be [4, 64], got [4, 65]",
    "whole numbers": "must be float32, float16 or bfloat16, got torch.int32",
}
"""Cases that are refused even without a digest. A flipped bit makes a different valid adapter, which only a digest
detects."""


async def _refused(served: ReplicaHarness, path: str, digest: str = "") -> error_pb2.Error | None:
    """Load the adapter. Return the error, or None if it was loaded."""
    try:
        await served.client.load_adapter("style", path, digest)
    except SpecialistError as failure:
        assert failure.code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT), failure
        assert failure.error is not None
        return failure.error
    return None


async def _answer(served: ReplicaHarness) -> tuple[int, ...]:
    received = await ask(
        served.client, generate_request("Once upon a time", adapters=["style"], max_tokens=12, ignore_eos=True)
    )
    assert received.error is None, received.error
    return received.tokens


def _replica(stories: Path, root: Path, **door: Any) -> Any:
    settings = ReplicaSettings(name="teller", model=stories, num_blocks=64, context=256, kernel="fused", threads=1)
    return running_replica(lambda: create_native_replica(settings, SystemClock()), adapter_root=root, **door)


def _model(served: ReplicaHarness) -> Any:
    return served.replica.adapters.model  # type: ignore[attr-defined]  # of the native store


async def test_18_damaged_adapters_are_refused_and_the_old_one_serves(
    stories_dir: Path, tmp_path: Path, figure: Figure
) -> None:
    async with _replica(stories_dir, tmp_path) as served:
        good = {name: tensor * 0.3 for name, tensor in random_tensors(model=_model(served)).items()}
        write(tmp_path / "good", good)
        digest = (await served.client.load_adapter("style", "good")).digest
        before = await _answer(served)
        changed = _changed(_model(served))
        assert WHY.keys() | {"a flipped bit", "a key twice"} == BYTES.keys() | changed.keys()
        for name, tensors in changed.items():
            write(tmp_path / name, tensors)
        for name, damage in BYTES.items():
            write(tmp_path / name, good)
            (tmp_path / name / TENSORS).write_bytes(damage(save(good)))
        num_changed = 0
        for name in WHY:
            refusal = await _refused(served, name)
            assert refusal is not None and refusal.field == TENSORS and WHY[name] in refusal.message, (
                name,
                refusal,
            )
            num_changed += await _answer(served) != before
        for name in (*WHY, "a flipped bit"):
            assert await _refused(served, name, digest) is not None, name
            num_changed += await _answer(served) != before
        assert (await _refused(served, "a flipped bit", digest) or error_pb2.Error()).field == "digest"
        assert served.server.handler.state == "open"
        assert {each.name: each.digest for each in (await served.client.describe()).adapters} == {"style": digest}
        figure(18, "damaged adapters, each refused with its reason", len(WHY), "cases", ">= 12 cases")
        figure(18, "refusals that changed the serving adapter", num_changed, "refusals", "== 0")
        assert await _refused(served, "a key twice", digest) is None, "equal tensors must be the same adapter"
        assert await _refused(served, "a flipped bit") is None and await _answer(served) != before


async def test_19_hostile_adapters_are_refused(stories_dir: Path, tmp_path: Path, figure: Figure) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with _replica(stories_dir, root) as served:
        good = {name: tensor * 0.3 for name, tensor in random_tensors(model=_model(served)).items()}
        for place in (root / "good", tmp_path / "outside", root / "other"):
            write(place, good)
        write(root / "other", random_tensors(seed=5, model=_model(served)))
        _links(root, tmp_path)
        digest = (await served.client.load_adapter("style", "good")).digest
        before = await _answer(served)
        paths = ["../outside", str(tmp_path / "outside"), "linked", "linked-file", "good/../../outside", "pickled"]
        refusals = [await _refused(served, path) for path in paths]
        wrong = await _refused(served, "other", digest)
        assert wrong is not None and digest in wrong.message and wrong.field == "digest", wrong
        nonsense = await _refused(served, "good", "0" * 63)
        assert nonsense is not None and nonsense.field == "digest"
        loaded = [path for path, refusal in zip(paths, refusals, strict=True) if refusal is None]
        figure(19, "hostile adapters that were loaded", len(loaded), "adapters", "== 0 adapters")
        assert await _answer(served) == before
        (root / "good" / "adapter_model.bin").write_bytes(pickle.dumps("beside"))
        (root / "good" / "evil.py").write_text("raise SystemExit")
        assert await _refused(served, "good", digest) is None, "other files in the folder must not be opened"
        assert await _answer(served) == before


def _links(root: Path, outside: Path) -> None:
    (root / "linked").symlink_to(outside / "outside")
    (root / "linked-file").mkdir()
    (root / "linked-file" / "adapter_config.json").write_text(json.dumps(SETTINGS))
    (root / "linked-file" / TENSORS).symlink_to(outside / "outside" / TENSORS)
    (root / "pickled").mkdir()
    (root / "pickled" / "adapter_config.json").write_text(json.dumps(SETTINGS))
    (root / "pickled" / "adapter_model.bin").write_bytes(pickle.dumps({"weights": 1}))


async def test_19_a_pinned_adapter_accepts_no_other_content(tmp_path: Path) -> None:
    one, two = adapter_directory(tmp_path, "one", b"one"), adapter_directory(tmp_path, "two", b"two")
    digest = assemble_replica(small(adapters={"style": one}), SystemClock()).adapters.resolve("style")
    pins = {"style": digest}
    with pytest.raises(AdapterRefused, match=digest):
        assemble_replica(small(adapters={"style": two}, adapter_digests=pins), SystemClock())
    settings = small(adapters={"style": one}, adapter_digests=pins)
    async with running_replica(
        lambda: assemble_replica(settings, SystemClock()), adapter_root=tmp_path, adapter_digests=pins
    ) as served:
        for asked in ("", digest, "0" * 64):
            refusal = await _refused(served, "two", asked)
            assert refusal is not None and refusal.field == "digest" and digest in refusal.message
        assert await _refused(served, "one") is None
        assert {each.name: each.digest for each in (await served.client.describe()).adapters} == pins
