"""Weights that start beside the running ones: what is refused before they are opened, and which process dies if memory
runs out."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import EngineName, SpecialistConfig
from octet.rpc.memory import MemoryUsage
from octet.supervisor.weights import WantedWeights
from specialist.models.fields import ModelRefused
from specialist.models.progress import silent
from specialist.server import new_weights
from specialist.server.new_weights import assemble_new_weights, check_alike, check_memory, free_memory
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings
from tests.native.transformers_models import random_model
from tests.system.models import CHARACTERS, CONTROL, TinyModel, tiny


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny().save(tmp_path_factory.mktemp("weights") / "served")


@pytest.fixture
def score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "oom_score_adj"
    file.write_text("200")
    monkeypatch.setattr(new_weights, "_OOM_SCORE", file)
    return file


def changed(served: Path, folder: Path, file: str, **fields: Any) -> Path:
    """Return a copy of the model in which fields of one of its JSON files are different."""
    shutil.copytree(served, folder)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **fields}))
    return folder


def of_another_architecture(folder: Path) -> Path:
    size = len(CONTROL) + len(CHARACTERS)
    return TinyModel(random_model("qwen2", vocab_size=size, bos_token_id=0, eos_token_id=1)).save(folder)


def test_other_weights_of_the_same_kind_are_alike(served: Path, tmp_path: Path) -> None:
    check_alike(tiny(seed=1).save(tmp_path / "retrained"), served)
    check_alike(changed(served, tmp_path / "renamed", "config.json", _name_or_path="other"), served)


def test_another_architecture_or_tokenizer_is_refused(served: Path, tmp_path: Path) -> None:
    vocabulary = json.loads((served / "tokenizer.json").read_text())["model"]
    *_, last, end = pieces = vocabulary["vocab"]
    swapped = {**pieces, last: pieces[end], end: pieces[last]}
    new = {
        "its architecture is": of_another_architecture(tmp_path / "architecture"),
        "its tokenizer differs": changed(
            served, tmp_path / "tokenizer", "tokenizer.json", model={**vocabulary, "vocab": swapped}
        ),
        "model_type": changed(served, tmp_path / "unknown", "config.json", model_type="unknown"),
    }
    for why, folder in new.items():
        for one, other in ((folder, served), (served, folder)):
            with pytest.raises(ModelRefused, match=why):
                check_alike(one, other)


@given(st.lists(st.integers(0, 5000), max_size=4), st.integers(0, 10_000), st.none() | st.integers(0, 30_000))
def test_weights_are_refused_if_and_only_if_they_do_not_fit(sizes: list[int], kv_bytes: int, free: int | None) -> None:
    with pytest.MonkeyPatch.context() as patched, TemporaryDirectory() as text:
        patched.setattr(new_weights, "free_memory", lambda: free)
        files = [Path(text) / f"{number}.safetensors" for number in range(len(sizes))]
        for file, size in zip(files, sizes, strict=True):
            file.write_bytes(bytes(size))
        for path, size in [(Path(text), sum(sizes)), *zip(files, sizes, strict=True)]:
            if free is None or size + kv_bytes <= free:
                check_memory([path], kv_bytes)
            else:
                with pytest.raises(MemoryError, match="are needed beside the running weights"):
                    check_memory([path], kv_bytes)


@pytest.mark.parametrize(
    ("machine", "usage", "free"),
    [
        ("MemTotal: 9 kB\nMemAvailable:    5 kB\n", None, 5 << 10),
        ("MemAvailable: 5 kB\n", MemoryUsage(used=1000, limit=3000), 2000),
        ("MemAvailable: 1 kB\n", MemoryUsage(used=1000, limit=3000), 1024),
        ("MemAvailable: many\n", MemoryUsage(used=1, limit=3), 2),
        ("", None, None),
    ],
)
def test_the_cgroup_may_leave_less_than_the_machine(
    machine: str, usage: MemoryUsage | None, free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text(machine)
    monkeypatch.setattr(new_weights, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(new_weights, "memory_reader", lambda: lambda: usage)
    assert free_memory() == free


@pytest.mark.parametrize("error", [None, MemoryError("too large"), ModelRefused("refused")])
def test_while_it_opens_weights_a_process_is_killed_first(
    error: Exception | None, served: Path, score: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes this process rather than one that serves. Afterwards it is like all others."""
    scores = []

    def assemble(settings: ReplicaSettings, *_: object) -> Any:
        scores.append(score.read_text())
        if error is not None:
            raise error
        return SimpleNamespace(lane=SimpleNamespace(revision="r1"))

    monkeypatch.setattr(new_weights, "assemble_replica", assemble)
    if error is None:
        assert _assemble(served).lane.revision == "r1"
    else:
        with pytest.raises(type(error)):
            _assemble(served)
    assert scores == ["1000"] and score.read_text() == "200"


def test_weights_are_checked_before_they_are_opened(
    served: Path, score: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path | None] = []

    def assemble(settings: ReplicaSettings, *_: object) -> Any:
        opened.append(settings.model)
        return SimpleNamespace(lane=SimpleNamespace(revision="r1"))

    monkeypatch.setattr(new_weights, "assemble_replica", assemble)
    other = of_another_architecture(tmp_path / "other")
    with pytest.raises(ModelRefused, match="its architecture is"):
        _assemble(other, like=str(served))
    with monkeypatch.context() as patched, pytest.raises(MemoryError, match="MiB are free"):
        patched.setattr(new_weights, "free_memory", lambda: 1 << 20)
        _assemble(served)
    with pytest.raises(ModelRefused, match="has no weights to refresh"):
        _assemble(served, engine="sim")
    assert not opened and score.read_text() == "200"
    with pytest.raises(ModelRefused, match="the digest is r1, but r2 is expected"):
        _assemble(served, revision="r2")
    assert _assemble(served, revision="r1", like=str(served)).lane.revision == "r1"
    assert opened == [served, served]


def test_without_leave_to_change_its_score_a_process_opens_weights_all_the_same(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_weights, "_OOM_SCORE", tmp_path / "missing" / "oom_score_adj")
    monkeypatch.setattr(
        new_weights, "assemble_replica", lambda *_: SimpleNamespace(lane=SimpleNamespace(revision="r1"))
    )
    assert _assemble(served).lane.revision == "r1"


def _assemble(model: Path, *, engine: EngineName = "native", revision: str = "", like: str = "") -> AssembledReplica:
    def settings(specialist: SpecialistConfig) -> ReplicaSettings:
        return ReplicaSettings(model=Path(specialist.model), kv_bytes=1 << 20)

    specialist = SpecialistConfig("writer", model=str(model), engine=engine)
    return assemble_new_weights(settings, specialist, WantedWeights(1, str(model), revision, like), "auto", silent)
