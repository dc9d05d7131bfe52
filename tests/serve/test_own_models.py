"""The first minutes with models of one's own: `octet init`, `check --models`, `serve`, a new adapter, a rollback."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import httpx2
import pytest

from tests.models.hub_server import Hub, files_of, running_hub
from tests.models.plain import write_adapter, write_model
from tests.patience import PATIENCE
from tests.serve.ensemble import ROOT, ServeProcess

pytestmark = pytest.mark.slow
PROMPT = "hello there"
FIVE_MINUTES = 300.0


@dataclass
class Trial:
    """Runs commands as a user does, in one folder, and times each step."""

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started
        print(f"{name:<32} {self.seconds[name]:6.1f} s")

    def octet(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "octet.cli", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, errors="replace"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def answer(self, specialist: str, address: str) -> str:
        greedy = ("--force", specialist, "--temperature", "0", "--max-tokens", "12")
        return self.octet("generate", PROMPT, *greedy, "--address", address)


def test_from_a_folder_to_a_promoted_adapter_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    config = write_model(home / "tiny-llama")
    for seed, name in enumerate(("sql", "shell"), start=1):
        write_adapter(home / "loras" / name, config, seed=seed, base_model_name_or_path="org/tiny-llama")
    trial = Trial(home)
    with capsys.disabled():
        print()
        with trial.step("octet init"):
            found = trial.octet("init")
        assert "found    shell: adapter loras/shell on model tiny-llama" in found
        with trial.step("octet check --models"):
            assert "opened      1 model, 2 adapters" in trial.octet("check", "--models", "octet.yaml")
        served = ServeProcess(home / "octet.yaml", tmp_path, "--http-port", "0")
        try:
            with trial.step("octet serve"):
                served.until(lambda: "octet ready" in served.out, FIVE_MINUTES)
            with trial.step("dashboard"):
                (http,) = re.findall(r"http://127\.0\.0\.1:\d+", served.out)[:1]
                assert httpx2.get(f"{http}/dashboard").status_code == 200
            with trial.step("an answer of each specialist"):
                before = {name: trial.answer(name, served.address) for name in ("sql", "shell")}
            assert before["sql"] != before["shell"]
            write_adapter(home / "loras" / "sql-v2", config, seed=9)
            at = ("--address", served.address, "--reason", "trial")
            with trial.step("octet adapters load, promote"):
                assert "sql-v2, is candidate" in trial.octet("adapters", "load", "sql", "loras/sql-v2", *at)
                assert trial.answer("sql", served.address) == before["sql"]
                assert "sql-v2, is serving" in trial.octet("adapters", "promote", "sql", *at)
                assert trial.answer("sql", served.address) not in before.values()
            with trial.step("octet adapters rollback"):
                trial.octet("adapters", "rollback", "sql", *at)
                assert trial.answer("sql", served.address) == before["sql"]
        finally:
            served.end()
    assert sum(trial.seconds.values()) < FIVE_MINUTES


def test_hub_model_is_downloaded_once_before_replicas_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_model(tmp_path / "tiny")
    write_adapter(tmp_path / "lora", config)
    file = tmp_path / "shop.yaml"
    file.write_text("model: hf:org/tiny\nspecialists:\n  a: {replicas: 2}\n  b: {adapters: {x: hf:org/lora}}\n")
    monkeypatch.setenv("OCTET_CACHE", str(tmp_path / "octet"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        commit = hub.repository("org/tiny").commit(files_of(tmp_path / "tiny"))
        hub.repository("org/lora").commit(files_of(tmp_path / "lora"))
        interrupt_download(hub, file, tmp_path)
        first = start_and_end(file, tmp_path)
        weights = [path for path in hub.downloads() if path.startswith("/blobs/org/tiny/") and "safetensors" in path]
        assert len(weights) == 1
    assert f"hf:org/tiny is resolved to the commit {commit}; to pin it, write hf:org/tiny@{commit}\n" in first.err
    assert "downloading hf:org/tiny: done\n" in first.err
    assert first.out.count(f"org/tiny@{commit[:12]}") == 3
    offline = start_and_end(file, tmp_path)  # the hub is gone
    assert f"hf:org/tiny is commit {commit}; delete " in offline.err
    assert "downloading" not in offline.err
    shutil.rmtree(tmp_path / "hf")
    refused = ServeProcess(file, tmp_path)
    assert refused.popen.wait(FIVE_MINUTES) == 2
    assert "octet serve: hf:org/tiny: http://127.0.0.1:" in refused.err
    assert " cannot be reached (" in refused.err


def interrupt_download(hub: Hub, file: Path, folder: Path) -> None:
    """Press Ctrl-C while the weights are downloaded. The whole files are kept, so only the weights are left to do."""
    hub.held["model.safetensors"] = Event()
    served = ServeProcess(file, folder)
    assert hub.held["model.safetensors"].wait(FIVE_MINUTES)
    os.killpg(served.popen.pid, signal.SIGINT)
    assert served.popen.wait(PATIENCE) == 130
    assert "Traceback" not in served.err
    del hub.held["model.safetensors"]
    hub.requests.clear()


def start_and_end(file: Path, folder: Path) -> ServeProcess:
    served = ServeProcess(file, folder)
    try:
        served.until(lambda: "octet ready" in served.out, FIVE_MINUTES)
    finally:
        served.end()
    return served
