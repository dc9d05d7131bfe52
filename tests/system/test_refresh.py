"""A new adapter whose C++ does not compile is rolled back before it serves. A good adapter is promoted. Both decisions
are automatic and audited."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from octet import Client, Operator
from octet.client.answer import Answer
from octet.client.records import LaneInfo
from specialist.adapters.adapter import read_adapter
from specialist.models.checkpoint import ModelConfig
from specialist.models.open import open_checkpoint
from tests.adapters.peft_files import random_tensors, write
from tests.models.demo import demo_gguf
from tests.patience import PATIENCE
from tests.serve.ensemble import ROOT, ServeProcess, serving

__all__ = ["demo_gguf"]

pytestmark = pytest.mark.slow

NEEDED = 6
"""Number of evaluated answers before a lane is promoted or rolled back."""
CONFIG = f"""
name: refreshing
specialists:
  writer:
    verify: cpp:required
    floor: 0.8
    threads: 1
intents: {{code: writer}}
correctness: {{sample_rate: 1, fresh_sample_rate: 1, verify_seconds: 60}}
shadow: {{fresh_rate: 1, timeout: 300}}
lanes: {{promote: auto, min_samples: {NEEDED}}}
store: {{url: memory}}
"""
PROMPTS = tuple(
    f"Write a C++ function {signature}. Answer with code only."
    for signature in ("int square(int x)", "int twice(int x)", "int negate(int x)", "int zero()")
)
HOW: dict[str, Any] = {
    "intent": "code",
    "temperature": 0.0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "max_tokens": 80,
    "stop": ("\n```", "\n\nint main"),
}
"""The stop strings end the answer after the function. On a CPU with int8 kernels, the requests that share a step change
logits by up to 0.7, so the model may or may not add a `main`. Without the stop strings, 64 tokens were too few for a
`main`, and the verdict depended on chance."""
NUM_CLIENTS = 2
BREATH = 1.0
"""Seconds between two requests of a client. Shadow requests and compilers run at low priority and need the time."""
"""Seconds to wait for a decision or an answer. The limit is long because compilers run at low priority."""


@dataclass(frozen=True)
class RefreshSetup:
    served: ServeProcess
    folder: Path
    model: ModelConfig

    def adapter(self, name: str, strength: float, seed: int = 1) -> str:
        """Write an adapter of random weights into the ensemble's folder. Return its digest."""
        tensors = random_tensors(seed=seed, model=self.model)
        write(self.folder / name, {name: tensor * strength for name, tensor in tensors.items()})
        return read_adapter(self.folder / name, self.model).digest

    def octet(self, *arguments: str) -> str:
        """Run `octet` with these arguments. Return its output."""
        command = [sys.executable, "-m", "octet.cli", *arguments, "--address", self.served.address]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def audit(self) -> list[dict[str, Any]]:
        """Return the audit entries that `octet audit` prints, oldest first."""
        entries: list[dict[str, Any]] = json.loads(self.octet("audit", "writer", "--json"))["audit"]
        return entries[::-1]

    def ask_until_decided(self, digest: str) -> tuple[LaneInfo, list[Answer]]:
        """Send requests until the lane is no longer a candidate. Return the lane and the answers that callers
        received."""
        over, answers = Event(), list[Answer]()
        with Operator(self.served.address) as operator, ThreadPoolExecutor(NUM_CLIENTS) as pool:
            clients = [pool.submit(self._ask, over, number, answers) for number in range(NUM_CLIENTS)]
            try:
                lane = _decided(operator, digest)
            finally:
                over.set()
            for client in clients:
                client.result()
        return lane, answers

    def _ask(self, over: Event, number: int, answers: list[Answer]) -> None:
        with Client(self.served.address) as client:
            while not over.is_set():
                answers.append(client.infer(PROMPTS[number % len(PROMPTS)], timeout=PATIENCE, **HOW))
                number += 1
                over.wait(BREATH)


def _decided(operator: Operator, digest: str) -> LaneInfo:
    end = time.monotonic() + PATIENCE
    while True:
        lane = next(lane for lane in operator.lanes("writer") if lane.digests == (digest,))
        if lane.status != "candidate":
            return lane
        assert time.monotonic() < end, lane
        time.sleep(0.1)


@pytest.fixture(scope="module")
def setup(demo_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefreshSetup]:
    folder = tmp_path_factory.mktemp("refresh")
    with serving(folder, CONFIG) as served, Operator(served.address) as operator:
        served.until(lambda: operator.lanes("writer"))
        yield RefreshSetup(served, folder, open_checkpoint(demo_gguf).config)


def lanes_that_answered(answers: list[Answer]) -> set[tuple[str, ...]]:
    return {answer.receipt.lane.adapter_digests for answer in answers}


def test_random_weights_never_serve(setup: RefreshSetup) -> None:
    digest = setup.adapter("random-lora", strength=0.5)
    said = setup.octet("adapters", "load", "writer", "./random-lora", "--reason", "the nightly refresh", "--as", "ann")
    assert said == f"lane 2 of writer, random-lora, is candidate: shadows: 0 of {NEEDED} samples\n"
    lane, answers = setup.ask_until_decided(digest)
    assert (lane.status, lane.by, lane.pass_rate) == ("rolled_back", "lanes", 0.0)
    assert lanes_that_answered(answers) == {()}, "a caller got an answer from the candidate"
    begun, loaded, rolled_back = setup.audit()
    assert (begun["what"], begun["after"]) == ("begin_lane", "lane 1 (bare model) serving")
    assert (loaded["who"], loaded["what"], loaded["why"]) == ("ann", "load_lane", "the nightly refresh")
    assert loaded["after"] == rolled_back["before"] == "lane 2 (random-lora) candidate"
    assert (rolled_back["who"], rolled_back["what"]) == ("lanes", "roll_back")
    assert re.match(r"0 of \d+ passed \(0\.0%\), below \d\d\.\d%", rolled_back["why"])
    assert rolled_back["after"] == "lane 1 (bare model)"
    assert re.search(r"^writer +2 +random-lora +rolled_back .* 0\.0% ", setup.octet("lanes", "writer"), re.MULTILINE)
    assert re.search(r"^code +writer +writer\+random-lora +fresh_lane ", setup.octet("shadow", "report"), re.MULTILINE)


def test_a_harmless_adapter_is_promoted(setup: RefreshSetup) -> None:
    digest = setup.adapter("gentle-lora", strength=0.001)
    setup.octet("adapters", "load", "writer", "./gentle-lora", "--reason", "the next night's", "--as", "ann")
    lane, answers = setup.ask_until_decided(digest)
    assert (lane.status, lane.by, lane.adapter) == ("serving", "lanes", "gentle-lora")
    assert lanes_that_answered(answers[: NEEDED - NUM_CLIENTS]) == {()}, (
        "the candidate served before it had enough samples"
    )
    with Client(setup.served.address) as client:
        assert client.infer(PROMPTS[0], timeout=PATIENCE, **HOW).receipt.lane.adapter_digests == (digest,)
    promoted = next(entry for entry in setup.audit() if entry["what"] == "promote")
    assert promoted["who"] == "lanes" and promoted["after"].endswith("(gentle-lora) serving")
    assert re.match(r"\d+ of \d+ passed \((100|9\d|8\d)\.\d%\)", promoted["why"])
