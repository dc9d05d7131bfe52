"""A peer's process: its answers are read, and each of its failures is reported in one line."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench.processes import Peer, PeerFailed
from tests.patience import PATIENCE

Start = Callable[..., Peer]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    peers: list[Peer] = []

    def start(behaviour: str = "", timeout: float = 120.0) -> Peer:
        command = [sys.executable, "-m", "tests.bench.fake_peer", "model", behaviour]
        log = tmp_path / "fake.log"
        peers.append(Peer("fake", command, cwd=ROOT, env=os.environ, log=log, timeout=timeout))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


def state_of(pid: int) -> str:
    """Return the state of the process as ps shows it, such as "T" for a stopped process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(condition: Callable[[], bool]) -> None:
    stop = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.01)


def test_runner_answers_although_its_libraries_print(start: Start) -> None:
    peer = start()
    assert peer.settings == "fake"
    assert peer.calls == {"generate", "spin"}
    for _ in range(2):
        generated = peer.call("generate", prompts=[[5, 6], [50, 60]], new_tokens=3)
        assert generated["tokens"] == [[5, 6, 7], [50, 51, 52]]
        assert all(times == sorted(times) and times[0] > 0 for times in generated["times"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_waiting_peer_is_stopped_with_all_its_processes(start: Start) -> None:
    peer = start()
    spinning = peer.call("spin", seconds=60)
    wait_for(lambda: state_of(spinning) == "T")
    assert peer.call("generate", prompts=[[5]], new_tokens=1)["tokens"] == [[5]]
    wait_for(lambda: state_of(spinning) == "T")
    peer.close()
    with suppress(FileNotFoundError):
        wait_for(lambda: state_of(spinning) == "Z")


@pytest.mark.parametrize(
    ("behaviour", "mixed", "signalled"),
    [
        ("dies", "fake: died of SIGILL while running 'generate'; last output: an illegal thing was done; see ", True),
        ("raises", "fake: failed while running 'generate': RuntimeError: no luck; see ", False),
    ],
)
def test_failed_call_is_reported_in_one_line(start: Start, behaviour: str, mixed: str, signalled: bool) -> None:
    peer = start(behaviour)
    with pytest.raises(PeerFailed) as caught:
        peer.call("generate", prompts=[[5]], new_tokens=1)
    assert str(caught.value).startswith(mixed)
    assert "\n" not in str(caught.value)
    assert caught.value.signalled == signalled


def test_hanging_peer_is_killed(start: Start) -> None:
    peer = start("hangs")
    peer.timeout = 1.0
    with pytest.raises(PeerFailed, match="fake: no answer within 1 s while running 'generate'; see "):
        peer.call("generate", prompts=[[5]], new_tokens=1)
    assert not list_group(peer)


def list_group(peer: Peer) -> list[int]:
    with suppress(ProcessLookupError):
        os.killpg(peer._process.pid, 0)
        return [peer._process.pid]
    return []


@pytest.mark.parametrize(
    ("behaviour", "timeout", "mixed"),
    [
        ("does not load", 120.0, "failed while loading: ValueError: the model is not to its taste"),
        ("never ready", 1.0, "no answer within 1 s while loading"),
    ],
)
def test_a_peer_that_is_never_ready_does_not_start(start: Start, behaviour: str, timeout: float, mixed: str) -> None:
    with pytest.raises(PeerFailed, match=mixed):
        start(behaviour, timeout)


def test_death_between_two_calls_is_reported_by_the_next(start: Start) -> None:
    peer = start()
    os.killpg(peer._process.pid, signal.SIGKILL)
    with pytest.raises(PeerFailed, match="died of SIGKILL"):
        peer.call("generate", prompts=[[5]], new_tokens=1)


def test_a_process_without_the_protocol_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('hello')"]
    with pytest.raises(PeerFailed, match=r"answered while loading with 'hello\\n'"):
        Peer("fake", command, cwd=tmp_path, env=os.environ, log=tmp_path / "log", timeout=120.0)
