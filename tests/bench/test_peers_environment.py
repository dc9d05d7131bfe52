"""Environments for peers, prepared with a fake pip."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.environment import PeerSpec, PeerUnavailable, cpu_flags, prepare, without_amx

SPEC = PeerSpec("toy", ("toy==1", "helper"), "toy.runner", "gguf", unwanted=("ballast",))
FAKE_PYTHON = """\
#!/bin/sh
echo "CMAKE_ARGS=$CMAKE_ARGS $@" >> "{record}"
case "$*" in
  *venv*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python" ;;
  *"{fails_at}"*) echo "cannot do that"; exit 3 ;;
esac
"""


class FakePip:
    """A fake Python interpreter that records its arguments. It replaces `sys.executable` and the interpreter of the new
    environment."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._record = directory / "record"
        self._python = directory / "python"
        self.fail_at("nothing at all")
        monkeypatch.setattr(sys, "executable", str(self._python))
        monkeypatch.delenv("CMAKE_ARGS", raising=False)

    def fail_at(self, what: str) -> None:
        self._python.write_text(FAKE_PYTHON.format(record=self._record, fails_at=what))
        self._python.chmod(0o755)

    def take_runs(self) -> list[str]:
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        self._record.unlink(missing_ok=True)
        return lines


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    return FakePip(tmp_path, monkeypatch)


@pytest.fixture
def said() -> list[str]:
    return []


def test_environment_is_installed_once(pip: FakePip, tmp_path: Path, said: list[str]) -> None:
    peers = tmp_path / "peers"
    made = prepare(SPEC, peers, said.append)
    assert (made.python, made.build) == (peers / "toy" / "bin" / "python", "native")
    assert [line.partition(" -m ")[2] for line in pip.take_runs()] == [
        f"venv --clear {peers / 'toy'}",
        "pip install toy==1 helper",
        "pip uninstall --yes ballast",
    ]
    assert said == [
        "toy: creating its environment",
        "toy: installing toy==1 helper",
        "toy: removing ballast",
    ]
    assert prepare(SPEC, peers, said.append) == made
    assert pip.take_runs() == []


def test_other_packages_or_a_damaged_marker_are_installed_anew(pip: FakePip, tmp_path: Path, said: list[str]) -> None:
    prepare(SPEC, tmp_path, said.append)
    pip.take_runs()
    prepare(replace(SPEC, packages=("toy==2",)), tmp_path, said.append)
    assert any("install toy==2" in line for line in pip.take_runs())
    (tmp_path / "toy" / "ready.json").write_text("{")
    prepare(SPEC, tmp_path, said.append)
    assert len(pip.take_runs()) == 3


@pytest.mark.parametrize("fails_at", ["pip install", "pip uninstall"])
def test_failed_install_is_reported_in_one_line_and_repeated(
    pip: FakePip, tmp_path: Path, said: list[str], fails_at: str
) -> None:
    pip.fail_at(fails_at)
    with pytest.raises(PeerUnavailable, match=r"toy: .* failed with exit code 3 \(cannot do that\); see .*toy.log"):
        prepare(SPEC, tmp_path, said.append)
    pip.fail_at("nothing at all")
    assert prepare(SPEC, tmp_path, said.append).build == "native"


def test_careful_build_replaces_a_native_build_and_stays(pip: FakePip, tmp_path: Path, said: list[str]) -> None:
    prepare(SPEC, tmp_path, said.append)
    assert all(line.startswith("CMAKE_ARGS= ") for line in pip.take_runs())
    assert prepare(SPEC, tmp_path, said.append, careful=True).build == "without AMX"
    [_, install, _] = pip.take_runs()
    assert install.startswith("CMAKE_ARGS=-DGGML_NATIVE=OFF")
    assert "--no-cache-dir" in install
    assert prepare(SPEC, tmp_path, said.append).build == "without AMX"
    assert prepare(SPEC, tmp_path, said.append, careful=True).build == "without AMX"
    assert pip.take_runs() == []
    assert json.loads((tmp_path / "toy" / "ready.json").read_text())["build"] == "without AMX"


def test_without_a_compiler_nothing_is_installed(
    pip: FakePip, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(PeerUnavailable, match=r"toy has to be compiled, .* no C\+\+ compiler"):
        prepare(replace(SPEC, compiled=True), tmp_path, said.append)
    assert pip.take_runs() == []


def test_careful_build_uses_all_cpu_features_except_amx(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fma avx2 avx amx_int8 amx_tile avx512_vnni\nbugs : none\n")
    assert without_amx(cpu_flags(cpuinfo)).split() == [
        "-DGGML_NATIVE=OFF",
        "-DGGML_AVX=ON",
        "-DGGML_AVX2=ON",
        "-DGGML_FMA=ON",
        "-DGGML_AVX512_VNNI=ON",
    ]
    assert cpu_flags(tmp_path / "nothing") == []
