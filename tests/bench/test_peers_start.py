"""The search for settings with which a peer runs, and then for the fastest of them."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.peers import environment
from bench.peers.environment import PEERS, Environment, PeerSpec, PeerUnavailable, PeerWorkspace, link_bench, start_peer
from bench.processes import PeerFailed

SPEC = PeerSpec("toy", ("toy",), "toy.runner", "gguf", variants=(("slow",), ("fast",), ("medium",)), compiled=True)
SECONDS = {"slow": 3.0, "fast": 1.0, "medium": 2.0}


class ToyPeer:
    """A peer whose variant determines how long a call takes. A broken peer dies at its first call."""

    def __init__(self, variant: str, broken: bool) -> None:
        self.name, self.settings, self.closed = "toy", f"toy {variant}", False
        self._seconds = SECONDS[variant]
        self._broken = broken

    def call(self, name: str, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        if self._broken:
            self.close()
            raise PeerFailed("toy", "died of SIGILL", signalled=True)
        return {"times": [[self._seconds]] * len(prompts)}

    def close(self) -> None:
        self.closed = True


class Toys:
    """Launches toy peers instead of real ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: Callable[[str, str], bool]) -> None:
        self.launched: list[ToyPeer] = []
        self.builds: list[bool] = []
        self._broken = broken
        monkeypatch.setattr(environment, "prepare", self._prepare)
        monkeypatch.setattr(environment, "Peer", self._start)

    def _prepare(self, spec: PeerSpec, peers: Path, say: object, *, careful: bool = False) -> Environment:
        self.builds.append(careful)
        return Environment(peers / spec.name, "without AMX" if careful else "native")

    def _start(self, name: str, command: list[str], **_: object) -> ToyPeer:
        build, variant = "without AMX" if self.builds[-1] else "native", command[-1]
        self.launched.append(ToyPeer(variant, self._broken(build, variant)))
        return self.launched[-1]


@pytest.fixture
def place(tmp_path: Path) -> PeerWorkspace:
    return PeerWorkspace(tmp_path, tmp_path, tmp_path / "model.gguf", lambda: tmp_path / "hf", timeout=1.0)


def test_fastest_variant_stays_and_the_others_are_closed(monkeypatch: pytest.MonkeyPatch, place: PeerWorkspace) -> None:
    toys = Toys(monkeypatch, lambda build, variant: False)
    peer, settings = start_peer(SPEC, place, lambda line: None, try_all=True)
    assert settings == "toy fast"
    assert [toy.settings for toy in toys.launched if not toy.closed] == ["toy fast"]
    assert peer is not None


def test_setting_that_kills_the_peer_is_left_out(monkeypatch: pytest.MonkeyPatch, place: PeerWorkspace) -> None:
    toys = Toys(monkeypatch, lambda build, variant: variant == "fast")
    said: list[str] = []
    _, settings = start_peer(SPEC, place, said.append, try_all=True)
    assert settings == "toy medium"
    assert toys.builds == [False]
    assert said.count("toy: died of SIGILL") == 1


def test_killed_native_build_is_rebuilt_without_amx(monkeypatch: pytest.MonkeyPatch, place: PeerWorkspace) -> None:
    toys = Toys(monkeypatch, lambda build, variant: build == "native")
    said: list[str] = []
    _, settings = start_peer(SPEC, place, said.append, try_all=False)
    assert settings == "toy slow, built without AMX: the native build does not run here"
    assert toys.builds == [False, True]
    assert "toy: died of SIGILL; building it again without AMX" in said


@pytest.mark.parametrize("compiled", [True, False])
def test_peer_that_never_runs_fails(monkeypatch: pytest.MonkeyPatch, place: PeerWorkspace, compiled: bool) -> None:
    toys = Toys(monkeypatch, lambda build, variant: True)
    with pytest.raises(PeerFailed, match="SIGILL"):
        start_peer(replace(SPEC, compiled=compiled), place, lambda line: None, try_all=True)
    assert toys.builds == ([False, True] if compiled else [False])
    assert all(toy.closed for toy in toys.launched)


def test_peer_that_reads_only_gguf_refuses_other_models(place: PeerWorkspace, tmp_path: Path) -> None:
    elsewhere = replace(place, model=tmp_path / "directory")
    with pytest.raises(PeerUnavailable, match="toy: reads GGUF files only"):
        start_peer(SPEC, elsewhere, lambda line: None, try_all=True)


def test_peer_can_import_only_the_bench(tmp_path: Path) -> None:
    assert [entry.name for entry in link_bench(tmp_path).iterdir()] == ["bench"]
    for spec in PEERS.values():
        assert tmp_path.joinpath(*spec.module.split(".")).with_suffix(".py").is_file()


def test_the_vllm_runner_needs_no_other_package_of_this_project(tmp_path: Path) -> None:
    missing = "octet", "specialist", "kvpool", "admission", "router", "simulation"
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); import bench.peers.vllm_runner"
    subprocess.run([sys.executable, "-c", code], cwd=link_bench(tmp_path), check=True)
