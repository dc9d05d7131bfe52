"""Adapters are swapped under load. Every answer matches the digest on its receipt, and requests fail only when a
replica is killed."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
from safetensors.torch import load_file

from octet import Client, OctetError, Operator, ReplicaLost
from octet.client.answer import Answer
from octet.client.records import LaneInfo
from octet.client.replica import SpecialistClient
from tests.patience import PATIENCE
from tests.serve.ensemble import ServeProcess, serving
from tests.system.models import TinyModel, tiny

CONFIG = """
name: swapping
adapter_root: adapters
specialists:
  teller:
    model: model
    replicas: 2
    threads: 1
    kv_memory: 16MiB
    verify: none
intents: {tell: teller}
lanes: {roll_back: false}
store: {url: memory}
"""
NUM_CONTENTS = 4
NUM_CLIENTS = 4
LENGTH = 96
PROMPTS = tuple(f"{number:02}, say it again" for number in range(8))
HOW: dict[str, Any] = {"intent": "tell", "temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, "timeout": 60.0}
Golden = Mapping[tuple[str, ...], Mapping[str, str]]
"""The expected answers, by the digests of the adapters and by prompt."""


@dataclass
class ReceivedAnswers:
    """The answers and errors that all clients received."""

    answers: list[tuple[str, int, Answer]] = field(default_factory=list)
    """Prompt, requested number of tokens, and answer."""
    failures: list[OctetError] = field(default_factory=list)

    @property
    def digests(self) -> set[tuple[str, ...]]:
        return {answer.receipt.lane.adapter_digests for _, _, answer in self.answers}

    def of(self, replica: str, since: int = 0) -> list[Answer]:
        """Return the answers of the replica, leaving out the first `since` answers of all replicas."""
        return [answer for _, _, answer in self.answers[since:] if answer.receipt.replica == replica]


class AdapterSwapper:
    """An operator that swaps adapters continually."""

    def __init__(self, operator: Operator, digests: list[str]) -> None:
        self._operator = operator
        self._digests = digests
        self._contents = cycle(range(NUM_CONTENTS))
        own, same = self.promote, partial(self.promote, "style")
        self._moves: Iterator[Callable[[], None]] = cycle(
            [own, same, same, self.roll_back, own, self.try_one, same, own]
        )
        self.num_moves = 0

    def move(self) -> None:
        next(self._moves)()
        self.num_moves += 1

    def promote(self, name: str = "") -> None:
        """Load and promote the next adapter. It gets the name `name`, which an older adapter may have had, or a new
        name if `name` is empty."""
        loaded = self._load(name)
        serving = self._operator.promote("teller", loaded.adapter)
        assert (serving.status, serving.digests) == ("serving", loaded.digests)

    def roll_back(self) -> None:
        assert self._operator.roll_back("teller", why="the one before was better").status == "serving"

    def try_one(self) -> None:
        """Load a candidate and discard it before it serves."""
        self._load("")
        self._operator.roll_back("teller", why="it is not what was meant")

    def _load(self, name: str) -> LaneInfo:
        number = next(self._contents)
        lane = self._operator.load_adapter("teller", f"content-{number}", name=name)
        assert (lane.status, lane.digests) == ("candidate", (self._digests[number],))
        wait_until(lambda: self._operator.lanes("teller")[0].resident > 0)
        return lane


@dataclass(frozen=True)
class SwapSetup:
    served: ServeProcess
    golden: Golden
    digests: list[str]
    adapters: Path

    @property
    def sockets(self) -> list[Path]:
        return self.served.sockets("teller")

    def listener(self, socket: Path) -> int | None:
        try:
            return self.served.replica(socket)
        except (LookupError, OSError):  # The process does not exist yet, or has exited.
            return None


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return tiny()


@pytest.fixture
def setup(model: TinyModel, tmp_path: Path) -> Iterator[SwapSetup]:
    model.save(tmp_path / "model")
    folders = [tmp_path / "adapters" / f"content-{number}" for number in range(NUM_CONTENTS)]
    digests = [model.adapter(folder, seed) for seed, folder in enumerate(folders, 1)]
    golden: dict[tuple[str, ...], Mapping[str, str]] = {(): model.answers(PROMPTS, LENGTH)}
    for folder, digest in zip(folders, digests, strict=True):
        golden[(digest,)] = model.answers(PROMPTS, LENGTH, load_file(folder / "adapter_model.safetensors"))
    assert len({text for answers in golden.values() for text in answers.values()}) > NUM_CONTENTS * len(PROMPTS) // 2
    with serving(tmp_path, CONFIG) as served:
        yield SwapSetup(served, golden, digests, tmp_path / "adapters")


@contextmanager
def load_on(setup: SwapSetup, received: ReceivedAnswers) -> Iterator[None]:
    """Keep clients sending requests without a pause while the context is open."""
    over = Event()
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        clients = [pool.submit(ask_on, setup, received, over, seed) for seed in range(NUM_CLIENTS)]
        try:
            yield
        finally:
            over.set()
        for client in clients:
            client.result()


def ask_on(setup: SwapSetup, received: ReceivedAnswers, over: Event, seed: int) -> None:
    random = Random(seed)
    prompts = sorted(set[str].intersection(*(set(answers) for answers in setup.golden.values())))
    with Client(setup.served.address) as client:
        while not over.is_set():
            prompt, length = random.choice(prompts), random.choice((8, 40, LENGTH))
            home = random.choice((None, "one", "two", "three", "four"))
            try:
                received.answers.append((prompt, length, client.infer(prompt, max_tokens=length, session=home, **HOW)))
            except OctetError as error:
                received.failures.append(error)


def check_golden(setup: SwapSetup, received: ReceivedAnswers) -> None:
    for prompt, length, answer in received.answers:
        lane = answer.receipt.lane
        assert answer.text == setup.golden[lane.adapter_digests][prompt][:length], (prompt, answer.receipt)


def check_no_replica_was_asked_for_an_adapter_it_lacks(received: ReceivedAnswers) -> None:
    reasons = {attempt.reason for _, _, answer in received.answers for attempt in answer.receipt.attempts}
    assert "" in reasons and "unknown_adapter" not in reasons


def num_swapped_under(received: ReceivedAnswers, operator: Operator) -> int:
    """Return the number of answers that were being generated when the serving lane changed."""
    entries = list(operator.audit("teller", most=1000))
    swaps = [entry.at_unix_ms for entry in entries if entry.what in ("promote", "roll_back")]
    receipts = [answer.receipt for _, _, answer in received.answers]
    spans = [(each.created_unix_ms, each.created_unix_ms + 1000 * each.timings.total) for each in receipts]
    return sum(any(start < swap < end for swap in swaps) for start, end in spans)


def check_only_wanted_adapters_are_held(setup: SwapSetup, operator: Operator) -> None:
    lanes = [lane for lane in operator.lanes("teller") if lane.status in ("serving", "candidate", "previous")]
    wanted = sorted(digest for lane in lanes for digest in lane.digests)
    assert wanted
    wait_until(lambda: all(sorted(held_by(path)) == wanted for path in setup.sockets))


def held_by(socket: Path) -> list[str]:
    """Return the digests of the adapters that a replica holds, one entry per adapter name."""

    async def ask() -> list[str]:
        async with SpecialistClient(f"unix:{socket}") as client:
            return [each.digest for each in (await client.describe()).adapters]

    return asyncio.run(ask())


def swap_for(seconds: float, pause: float, swapper: AdapterSwapper, received: ReceivedAnswers) -> None:
    """Swap adapters for this many seconds. After every swap, wait for further answers, so that requests are served
    between swaps even on a busy machine."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        swapper.move()
        enough = len(received.answers) + 2 * NUM_CLIENTS
        wait_until(lambda enough=enough: len(received.answers) >= enough)  # type: ignore[misc]
        time.sleep(max(0.0, began + pause - time.monotonic()))


def lose_one(setup: SwapSetup, operator: Operator, received: ReceivedAnswers) -> str:
    """Kill a replica while the adapter files are missing, and return its name. The replica restarts, but must serve no
    request before it has loaded its adapters again."""
    socket, away = setup.sockets[0], setup.adapters.with_name("away")
    victim = next(each.name for each in operator.replicas() if each.address == f"unix:{socket}")
    setup.adapters.rename(away)
    killed = setup.served.replica(socket)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: setup.listener(socket) not in (None, killed))
    wait_until(lambda: any(each.name == victim and each.status == "serving" for each in operator.replicas()))
    since = len(received.answers) + NUM_CLIENTS
    wait_until(lambda: len(received.answers) > since + 20)
    assert not received.of(victim, since), "the replica answered without the adapter of the serving lane"
    away.rename(setup.adapters)
    return victim


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def swap_with_a_loss(setup: SwapSetup, seconds: float, pause: float) -> dict[str, int]:
    """Swap adapters with both replicas up, kill one replica, and swap again. Return counts of what happened."""
    received = ReceivedAnswers()
    with Operator(setup.served.address, who="swapper") as operator:
        wait_until(lambda: operator.lanes("teller"))
        swapper = AdapterSwapper(operator, setup.digests)
        with load_on(setup, received):
            swap_for(seconds / 2, pause, swapper, received)
            assert received.failures == []
            victim = lose_one(setup, operator, received)
            back = len(received.answers)
            swap_for(seconds / 2, pause, swapper, received)
            wait_until(lambda: received.of(victim, back))
        assert len(received.failures) <= NUM_CLIENTS and all(
            isinstance(each, ReplicaLost) for each in received.failures
        )
        check_golden(setup, received)
        check_no_replica_was_asked_for_an_adapter_it_lacks(received)
        assert len(received.digests) >= min(NUM_CONTENTS, swapper.num_moves // 2)
        num_under = num_swapped_under(received, operator)
        assert num_under > 0
        check_only_wanted_adapters_are_held(setup, operator)
    return {
        "moves": swapper.num_moves,
        "answers": len(received.answers),
        "answers of the restarted replica": len(received.of(victim, back)),
        "digests": len(received.digests),
        "answers during a swap": num_under,
        "lost with the killed replica": len(received.failures),
    }


@pytest.mark.slow
def test_every_answer_matches_the_digest_on_its_receipt(setup: SwapSetup) -> None:
    """With OCTET_SWAP_SECONDS=60 and OCTET_SWAP_PAUSE=2, adapters are swapped every two seconds for about a minute."""
    seconds = float(os.environ.get("OCTET_SWAP_SECONDS", "10"))
    swap_with_a_loss(setup, seconds=seconds, pause=float(os.environ.get("OCTET_SWAP_PAUSE", "1")))
