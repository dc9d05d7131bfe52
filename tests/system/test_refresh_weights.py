"""New weights of a specialist with one replica, with real processes: no caller sees a wrong answer or a failure."""

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event

import pytest
import torch

from octet import Client, Operator
from octet.client.records import LaneInfo
from tests.patience import PATIENCE
from tests.serve.ensemble import ROOT, ServeProcess, serving
from tests.system.models import CHARACTERS, CONTROL, TinyModel, tiny

pytestmark = pytest.mark.slow

ENDS = ("Z", "Y")
"""An answer ends before the first of these characters, so that it does not end at its length."""
ENDLESS = ("Q", "X")
"""What collapsed weights say. An answer that ends at a stop sequence of its caller would show nothing."""
LENGTH = 48
NEEDED = 6
"""Judged answers before a lane is trusted or rolled back."""
CONFIG = f"""
name: refreshing
specialists:
  writer: {{model: first, threads: 1, kv_memory: 16m, verify: non_empty}}
correctness: {{sample_rate: 1, fresh_sample_rate: 1}}
shadow: {{fresh_rate: 1, timeout: 60}}
lanes: {{min_samples: {NEEDED}}}
store: {{url: "sqlite:state.db"}}
"""


def retrained(model: TinyModel) -> TinyModel:
    changed = copy.deepcopy(model.model)
    with torch.no_grad():
        for parameter in changed.model.layers.parameters():
            parameter.mul_(1.05)
    return TinyModel(changed)


def collapsed(model: TinyModel) -> TinyModel:
    """Return weights that answer every prompt with `Q` and `X` only."""
    changed = copy.deepcopy(model.model)
    with torch.no_grad():
        head = changed.lm_head.weight
        direction = head[-1].clone() * 1000
        head.zero_()
        for said, sign in zip(ENDLESS, (1, -1), strict=True):
            head[len(CONTROL) + CHARACTERS.index(said)] = sign * direction
    return TinyModel(changed)


def clear_answers(model: TinyModel, prompts: list[str]) -> dict[str, str]:
    """Return the answers that end at one of ENDS, and not at their beginning."""
    found = {}
    for prompt, text in model.answers(prompts, LENGTH).items():
        cut = min((text.index(end) for end in ENDS if end in text), default=0)
        if cut > 1:
            found[prompt] = text[:cut]
    return found


class Site:
    """A running ensemble with the models `first`, `second` and `bad` in its folder."""

    def __init__(self, served: ServeProcess, folder: Path, prompts: list[str]) -> None:
        self.served, self.folder, self.prompts = served, folder, prompts

    def octet(self, *arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "octet.cli", *arguments, "--address", self.served.address]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == code, (done.stdout, done.stderr, self.served.err[-2000:])
        return done.stdout + done.stderr

    def lanes(self) -> dict[int, LaneInfo]:
        with Operator(self.served.address) as operator:
            return {lane.number: lane for lane in operator.lanes("writer")}

    def replicas(self) -> list[str]:
        with Operator(self.served.address) as operator:
            return sorted(each.name for each in operator.replicas() if each.status == "serving")

    def ask(self, prompt: str) -> str:
        with Client(self.served.address) as client:
            how = {"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, "max_tokens": LENGTH}
            return client.infer(prompt, stop=ENDS, timeout=PATIENCE, **how).text  # type: ignore[arg-type]

    def answers(self) -> dict[str, str]:
        return {prompt: self.ask(prompt) for prompt in self.prompts}

    def kill(self, socket: str) -> None:
        """Kill the process that listens on this socket of the runtime folder, and wait until another one does."""
        path = self.served.sockets("writer")[0].with_name(socket)
        pid = self.served.replica(path)
        os.kill(pid, signal.SIGKILL)
        self.served.until(lambda: pid not in self.served.pids)

    @contextmanager
    def callers(self) -> Iterator[list[tuple[str, str]]]:
        """Ask all the time. Yield the prompts and answers so far. Any failure of a request is raised at the end."""
        over, answers = Event(), list[tuple[str, str]]()

        def ask_on(number: int) -> None:
            while not over.is_set():
                prompt = self.prompts[number % len(self.prompts)]
                answers.append((prompt, self.ask(prompt)))
                number += 1
                over.wait(0.02)

        with ThreadPoolExecutor(2) as pool:
            asking: list[Future[None]] = [pool.submit(ask_on, number) for number in range(2)]
            try:
                yield answers
            finally:
                over.set()
        for each in asking:
            each.result()


def assert_from(answers: list[tuple[str, str]], *models: Mapping[str, str]) -> None:
    assert answers and all(any(text == model[prompt] for model in models) for prompt, text in answers), answers[-5:]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], dict[str, str]]:
    """Return a folder with three models, and the answers that transformers computes with the first two."""
    folder, first, random = tmp_path_factory.mktemp("weights"), tiny(), Random(1)
    second = retrained(first)
    for name, model in (("first", first), ("second", second), ("bad", collapsed(first))):
        model.save(folder / name)
    prompts = ["".join(random.choices("abcdefgh", k=12)) for _ in range(600)]
    old, new = clear_answers(first, prompts), clear_answers(second, prompts)
    both = [prompt for prompt in prompts if prompt in old and prompt in new and old[prompt] != new[prompt]]
    assert len(both) >= 4
    return folder, {each: old[each] for each in both[:8]}, {each: new[each] for each in both[:8]}


def test_weights_are_refreshed_and_undone(models: tuple[Path, dict[str, str], dict[str, str]]) -> None:
    folder, old, new = models

    def until(site: Site, condition: Callable[[], object]) -> None:
        site.served.until(condition)

    with serving(folder, CONFIG) as served:
        site = Site(served, folder, list(old))
        assert site.answers() == old
        with site.callers() as answers:  # collapsed weights never answer a caller
            assert "is candidate" in site.octet("refresh", "writer", "--model", "bad", "--reason", "a drill")
            until(site, lambda: site.lanes()[2].status == "rolled_back")
        assert_from(answers, old)
        assert site.lanes()[2].by == "lanes" and site.lanes()[1].status == "serving"
        assert "no such file" in site.octet("refresh", "writer", "--model", "missing", code=2)
        assert "is expected" in site.octet("refresh", "writer", "--model", "second", "--digest", "0" * 64, code=2)

        until(site, lambda: site.replicas() == ["writer-0"])
        with site.callers() as answers:
            site.octet("refresh", "writer", "--model", "second")
        number = max(site.lanes())
        name = next(each for each in site.replicas() if each != "writer-0").removeprefix("writer-0.")
        site.kill(f"0-w{name}.sock")
        assert site.answers() == old
        site.kill("0-writer.sock")
        assert site.answers() == old, "the candidate must not stand in for the serving lane"
        os.kill(served.router, signal.SIGKILL)
        served.until(lambda: served.err.count("octet router ready on") == 2)
        assert site.answers() == old and site.lanes()[number].status == "candidate"
        until(site, lambda: len(site.replicas()) == 2)
        with site.callers() as answers:
            site.octet("adapters", "promote", "writer")
            until(site, lambda: answers and answers[-1][1] == new[answers[-1][0]])
            site.octet("adapters", "rollback", "writer", "--reason", "undo before it is trusted")
        assert_from(answers, old, new)
        assert site.answers() == old

        with site.callers() as answers:
            site.octet("refresh", "writer", "--model", "second", "--reason", "again")
            site.octet("adapters", "promote", "writer")
            until(site, lambda: site.lanes()[number + 1].outlook == "serving")
            until(site, lambda: len(site.replicas()) == 1)
        assert_from(answers, old, new)
        assert site.replicas() != ["writer-0"] and site.answers() == new
        assert "trust_lane" in site.octet("audit", "writer")
        serving_socket = f"0-w{site.replicas()[0].removeprefix('writer-0.')}.sock"
        site.kill(serving_socket)
        assert site.answers() == new
        os.kill(served.popen.pid, signal.SIGKILL)
        served.popen.wait()

    with serving(folder, CONFIG) as served:  # the promoted weights serve, not those that the configuration names
        site = Site(served, folder, list(old))
        assert "writer was refreshed: starting" in served.err
        assert site.answers() == new
        with site.callers() as answers:
            site.octet("adapters", "rollback", "writer", "--reason", "undo after it was trusted")
            until(site, lambda: site.lanes()[1].status == "serving")
        assert_from(answers, old, new)
        assert site.answers() == old
        until(site, lambda: site.replicas() == ["writer-0"])
