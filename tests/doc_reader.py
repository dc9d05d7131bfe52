"""A reader of the documentation: a folder with the files that the pages name, and a running ensemble to call."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import pytest
import yaml

from specialist.models.checkpoint import ModelConfig
from tests.adapters.peft_files import MODEL, random_tensors, write
from tests.doc_examples import (
    ADDRESS_VARIABLE,
    BASH,
    ROOT,
    Example,
    read_examples,
    run_octet,
    run_shell,
    shell_environment,
    write_programs,
)
from tests.models.plain import write_model
from tests.serve.ensemble import ServeProcess
from tests.specialist.server.test_tls import openssl

QUICK = dict.fromkeys(
    ("prefill_step", "prefill_token", "prefill_pair", "decode_step", "decode_token", "decode_pair", "adapter_switch",
     "preemption"),
    1e-5,
)  # fmt: skip
SMOLLM2 = replace(
    MODEL,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
)
TINY_QWEN3 = replace(
    MODEL,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
)
DEFAULT_URL = "http://127.0.0.1:8051"
_READY = re.compile(r"ready on (\S+)(?: and (https?://\S+))?")


@dataclass(frozen=True)
class Ensemble:
    served: ServeProcess
    engine: str
    folder: Path

    @property
    def address(self) -> str:
        return self.served.address

    @property
    def url(self) -> str:
        (url,) = re.findall(r"octet ready on \S+ and (https?://[^\s,;)]+)", self.served.out)
        return str(url)


def simulated(folder: Path) -> dict[str, str]:
    """Return the settings of quick simulated engines."""
    (folder / "quick.json").write_text(json.dumps({"cost": QUICK, "about": {}}))
    return {"engine": "sim", "cost_model": str(folder / "quick.json")}


class Scene:
    """A reader with one page: a folder with the files that the page names, and the ensemble."""

    def __init__(
        self, ensemble: Ensemble, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.ensemble = ensemble
        self.folder = folder
        self.environ = monkeypatch
        self.address, self.url = ensemble.address, ensemble.url
        self.names: dict[str, str] = {}  # what the reader fills in for a name in capitals, or three dots
        self.assigned = ""  # the shell variables that the page has set
        self.outputs: list[str] = []  # of all commands so far
        self._capsys = capsys
        self._servers: list[subprocess.Popen[str]] = []
        write_programs(folder)
        (folder / "docs").symlink_to(ROOT / "docs")
        (folder / "home" / ".config" / "fish" / "completions").mkdir(parents=True)
        self.write_files()

    def write_files(self) -> None:
        """Write the files that the pages name, as a reader has them."""
        (shop,) = (each.text for each in read_examples("docs/configuration.md") if each.text.startswith("name: shop"))
        own = yaml.safe_load(shop) | ({} if self.ensemble.engine == "demo" else simulated(self.folder))
        (self.folder / "my-ensemble.yaml").write_text(yaml.safe_dump(own, sort_keys=False))
        shutil.copy(self.ensemble.served.file, self.folder / "ensemble.yaml")
        sockets = [f"unix:{path}" for path in self.ensemble.served.sockets("template")]
        hello = {"describe": "Greetings.", "examples": ["hello", "hello there"], "addresses": sockets}
        (self.folder / "my.yaml").write_text(yaml.safe_dump({"name": "my", "specialists": {"template": hello}}))
        self.write_own_models()
        times = (f"2026-01-01 00:00:{second:02}.0,40,8\n" for second in range(20))
        (self.folder / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(times))
        (self.folder / "container.json").write_text(json.dumps({"type": "object"}))
        self.write_adapter("my-lora", SMOLLM2)

    def write_own_models(self) -> None:
        """Write the models and adapters of a reader. They are tiny."""
        write_model(self.folder / "models" / "Qwen3-1.7B", "qwen3")
        for name in ("loras/sql", "loras/shell"):
            self.write_adapter(name, TINY_QWEN3)
        mine = write_model(self.folder / "mine" / "tiny-llama")
        for name in ("mine/loras/sql", "mine/loras/shell", "new/sql-v2"):
            self.write_adapter(name, mine)

    def write_adapter(self, name: str, model: ModelConfig) -> None:
        """Write an adapter that no other page has loaded."""
        tensors = random_tensors(targets=("q",), rank=1, seed=crc32(str(self.folder / name).encode()), model=model)
        write(self.folder / name, tensors, r=1, target_modules=["q_proj"])

    @property
    def printed(self) -> str:
        """The output of the last command."""
        return self.outputs[-1]

    def place(self, text: str) -> str:
        """Return the text with the addresses of this ensemble, and with the values that a reader fills in."""
        text = text.replace(DEFAULT_URL, self.url)
        if self.ensemble.engine == "demo":  # a busy machine may take longer than a reader's
            text = re.sub(r"\btimeout=\d+", "timeout=600", text)
        for name in ("localhost", "127.0.0.1", "router.example"):
            text = text.replace(f"{name}:50051", self.address)
        for name, value in self.names.items():
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", value, text)
        return text.replace("/models/", f"{self.folder}/models/")

    def octet(self, line: str, *, status: int = 0) -> str:
        """Run `octet ...` in this process and return its output."""
        example = Example("", 0, "command", self.place(line))
        self._capsys.readouterr()
        with patch.object(sys, "argv", ["octet", *example.words[1:]]):  # printed commands begin as this one did
            done = run_octet(example.words[1:])
        output = self._capsys.readouterr()
        self.outputs.append(output.out + output.err)
        assert done == status, f"{line}: exit status {done}: {self.printed}"
        return self.printed

    def shell(self, line: str) -> str:
        text, assigned = self.assigned + self.place(line), re.match("([a-z]+)=", line)
        if assigned:
            text += f'\nprintf %s "${assigned[1]}"'
        status, printed = run_shell(text, self.folder, self.environment)
        self.outputs.append(printed)
        if assigned:
            self.assigned += f"{assigned[0]}{shlex.quote(printed)}\n"
        assert status == 0, f"{line}: exit status {status}: {self.printed}"
        return self.printed

    @property
    def environment(self) -> dict[str, str]:
        return shell_environment(self.folder, self.address)

    def start(self, line: str) -> None:
        """Start a server, wait until it is ready, and let the following commands call it."""
        process = subprocess.Popen(
            [BASH, "-c", f"{self.place(line)} 2>&1"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._servers.append(process)
        assert process.stdout is not None
        printed = ""
        for text in process.stdout:
            printed += text
            if found := _READY.search(text):
                self.address, self.url = found[1].replace("0.0.0.0", "127.0.0.1"), found[2] or self.url  # noqa: S104
                self.environ.setenv(ADDRESS_VARIABLE, self.address)
                return
        raise AssertionError(f"{line} is not ready: {printed}")

    def return_to_ensemble(self) -> None:
        """Let the following commands call the ensemble of all pages again."""
        self.address, self.url = self.ensemble.address, self.ensemble.url
        self.environ.setenv(ADDRESS_VARIABLE, self.address)

    def tidy(self) -> None:
        """Undo what the page has done to a replica and to a breaker, because the next page expects them in order."""
        self.return_to_ensemble()
        for line in ("octet undrain template-1", "octet breaker release template --reason tidy"):
            with suppress(AssertionError):
                self.octet(line)

    def close(self) -> None:
        for process in reversed(self._servers):
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=60)


def write_certificates(folder: Path) -> None:
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(folder, *new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE")
    names = ("-subj", "/CN=router", "-addext", "subjectAltName=IP:127.0.0.1")
    openssl(folder, *new, *signed, *names, "-keyout", "own.key", "-out", "own.pem")
