"""Streams of OpenAI's client, with its default retries, while replicas and the router are killed or stopped."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

import pytest

from tests.later import Later
from tests.octet.supervisor.test_supervisor import is_alive
from tests.patience import PATIENCE
from tests.serve.ensemble import ServeProcess, serving
from tests.serve.test_http import url_of

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

CALLERS = 8
STOPPED_SECONDS = 5
_ENSEMBLE = """
name: streams
specialists:
  shell:
    engine: sim
    replicas: 3
    describe: Shell scripts, pipes and quoting in bash.
    examples: ["loop over files in bash", "quote this variable in a script"]
dispatch: {hang_seconds: 1.2}
router: {http: {port: 0}}
"""


@dataclass(frozen=True)
class CutStream:
    """A stream that broke off after its first token. Times are on the monotonic clock of the caller."""

    begun: float
    ended: float
    error: str

    def was_open_during(self, fault: tuple[float, float]) -> bool:
        before, after = fault
        return self.begun <= after and before <= self.ended


@dataclass
class Tally:
    """How the streams ended: answered, cut after their first token, or failed before it."""

    started: int = 0
    answered: int = 0
    cut: list[CutStream] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    faults: list[tuple[float, float]] = field(default_factory=list)  # from just before each signal to just after it
    slowest_first_token: float = 0.0
    lock: Lock = field(default_factory=Lock)


def _stream(url: str, stop: Event, tally: Tally) -> None:
    """Stream one answer after the other. The client retries as it does by default."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=PATIENCE) as client:
        while not stop.is_set():
            with tally.lock:
                tally.started += 1
            begun, finished, first_at, error = time.monotonic(), False, None, "no last chunk"
            try:
                with client.chat.completions.create(
                    model="octet/shell",
                    messages=[{"role": "user", "content": "loop over files in bash"}],
                    max_tokens=60,
                    extra_body={"ignore_eos": True},
                    stream=True,
                ) as chunks:
                    for chunk in chunks:
                        first_at = first_at or time.monotonic()
                        finished = finished or chunk.choices[0].finish_reason is not None
            except Exception as raised:  # the client lets errors of its HTTP library through
                error = repr(raised)
            with tally.lock:
                if finished:
                    tally.answered += 1
                elif first_at is not None:
                    tally.cut.append(CutStream(begun, time.monotonic(), error))
                else:
                    tally.failed.append(f"{error} after {time.monotonic() - begun:.1f} s")
                tally.slowest_first_token = max(tally.slowest_first_token, (first_at or begun) - begun)


@contextmanager
def streaming(url: str) -> Iterator[Tally]:
    stop, tally = Event(), Tally()
    threads = [Thread(target=_stream, args=(url, stop, tally)) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)


def _until_more_answers(served: ServeProcess, tally: Tally) -> None:
    wanted = tally.answered + 2 * CALLERS
    served.until(lambda: tally.answered >= wanted)


def _signal(pid: int, number: signal.Signals, tally: Tally) -> None:
    before = time.monotonic()
    os.kill(pid, number)
    tally.faults.append((before, time.monotonic()))


def kill_replica(served: ServeProcess, tally: Tally) -> None:
    num_ready = served.err.count("shell/1 | ready after")
    _signal(served.replica(served.sockets("shell")[0]), signal.SIGKILL, tally)
    served.until(lambda: served.err.count("shell/1 | ready after") > num_ready)


def stop_replica(served: ServeProcess, tally: Tally) -> None:
    pid = served.replica(served.sockets("shell")[1])
    _signal(pid, signal.SIGSTOP, tally)
    time.sleep(STOPPED_SECONDS)
    os.kill(pid, signal.SIGCONT)


def kill_router(served: ServeProcess, tally: Tally) -> None:
    victim = served.router
    _signal(victim, signal.SIGKILL, tally)
    served.until(lambda: not is_alive(victim))


Fault = Callable[[ServeProcess, Tally], None]


def _check(folder: Path, faults: list[Fault]) -> None:
    with serving(folder, _ENSEMBLE) as served:
        with streaming(url_of(served)) as tally:
            _until_more_answers(served, tally)
            for fault in faults:
                fault(served, tally)
                _until_more_answers(served, tally)
        print(
            f"{tally.started} streams: {tally.answered} answered, {len(tally.cut)} cut mid-answer, "
            f"{len(tally.failed)} failed before their first token; "
            f"the slowest first token came after {tally.slowest_first_token:.1f} s"
        )
        assert tally.failed == []
        for cut in tally.cut:  # each was open when a process was killed or stopped; no fault cut more than were open
            assert any(cut.was_open_during(signalled) for signalled in tally.faults), cut
        for signalled in tally.faults:
            assert sum(cut.was_open_during(signalled) for cut in tally.cut) <= CALLERS
        assert tally.answered + len(tally.cut) == tally.started


def test_only_streams_in_progress_fail_when_the_router_is_killed(tmp_path: Path) -> None:
    _check(tmp_path, [kill_router])


@pytest.mark.slow
@pytest.mark.parametrize("run", range(3))
def test_only_streams_in_progress_fail(tmp_path: Path, run: int) -> None:
    _check(tmp_path, [kill_replica, stop_replica, kill_router])
