"""Benchmarks of several routers: their figures, and the failure of a router."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

import pytest

from bench.peers.environment import Environment, PeerUnavailable
from bench.plots import ADDED, plot_views
from bench.processes import PeerFailed, tree
from bench.router_peers import rounds
from bench.router_peers import site as site_module
from bench.router_peers.callers import Caller, CallFailed, OnTokens, RoutePath, RouterProcess
from bench.router_peers.cases import (
    LIMIT,
    LONG_STREAMS,
    OCTET,
    REPLICA_LIMIT,
    SERIAL,
    SHORT,
    SHORT_STREAMS,
    STOCK,
    FirstTokens,
    Flood,
    Order,
    rate_case,
)
from bench.router_peers.measure import P50, P99, STALL, build_records
from bench.router_peers.rounds import FloodResult, RoundResults, run_rounds
from bench.router_peers.site import RouterPeer, RouterPeersSite, RouterPlace
from bench.timing import Findings
from octet.cli import main
from simulation.results import BenchRecord
from tests.bench.test_serve_peers import become
from tests.patience import PATIENCE

FAKE_ROUTER = Path(__file__).with_name("fake_router.py")
SPIN = "import time\nwhile True: time.process_time()"


def _process(tmp_path: Path, code: str, name: str = "fake") -> RouterProcess:
    return RouterProcess(
        name, [sys.executable, "-c", code], os.environ, tmp_path / f"{name}.log", os.sched_getaffinity(0)
    )


def _find(records: Sequence[BenchRecord], case: str, metric: str, system: str = OCTET) -> BenchRecord:
    (found,) = [each for each in records if (each.case, each.metric, each.system) == (case, metric, system)]
    return found


def test_added_time_is_computed_per_round() -> None:
    found = RoundResults()
    found.first[SERIAL, LIMIT] = [[0.001] * 3, [0.101] * 3, [0.002] * 3]
    found.first[SERIAL, REPLICA_LIMIT] = [[0.002] * 3, [0.102] * 3, [0.003] * 3]
    found.first[SERIAL, OCTET] = [[0.004] * 3, [0.104] * 3, [0.005] * 3]
    found.first[SERIAL, "litellm"] = [[0.021] * 3, [0.121] * 3, [0.022] * 3]
    found.first[SERIAL + STOCK, OCTET] = [[0.005] * 3, [0.105] * 3, [0.006] * 3]
    records = build_records(found, [FirstTokens(SERIAL, (LIMIT, REPLICA_LIMIT, OCTET), 3)], ["litellm"])
    assert _find(records, SERIAL, P50).value == pytest.approx(2), "the time of a replica alone must be subtracted"
    assert _find(records, SERIAL, "first token, p50").value == pytest.approx(5), "the figure must be the whole time"
    assert _find(records, SERIAL, P50, "litellm").high == pytest.approx(20)
    assert _find(records, f"{SERIAL} vs litellm", P50).value == pytest.approx(0.1)
    assert _find(records, SERIAL + STOCK, STALL).value == pytest.approx(1)
    assert not [record for record in records if record.metric == P99]


def test_a_percentile_needs_enough_requests() -> None:
    found, name = RoundResults(), rate_case(100)
    found.first[name, LIMIT] = found.first[name, REPLICA_LIMIT] = [[0.001] * 100] * 2
    found.first[name, OCTET] = [[0.002] * 90 + [0.011] * 10] * 2
    found.first[name, "sglang"] = [[0.0015] * 100]
    case = FirstTokens(name, (LIMIT, REPLICA_LIMIT, OCTET), 100, 100)
    records = build_records(found, [case], ["sglang"])
    assert _find(records, name, P99).value == pytest.approx(10)
    assert _find(records, f"{name} vs sglang", P50).value == pytest.approx(0.5)
    assert [record.system for record in records if record.metric == P99] == [OCTET]


def test_floods_are_counted_by_the_clock_and_by_cpu_time() -> None:
    found = RoundResults(memory={OCTET: 90_000_000})
    found.floods[SHORT_STREAMS, OCTET] = [FloodResult(800, 2.0, 0.5, 800), FloodResult(1600, 2.0, 1.0, 400)]
    found.floods[SHORT_STREAMS, "litellm"] = [FloodResult(80, 2.0, 0.5, 80), FloodResult(80, 2.0, 0.5, 80)]
    records = build_records(found, [Flood(SHORT_STREAMS, (OCTET,), SHORT, 32, 2.0, "streams")], ["litellm"])
    assert _find(records, SHORT_STREAMS, "streams a second").low == 50
    assert _find(records, SHORT_STREAMS, "streams per CPU second").value == 200
    assert _find(records, SHORT_STREAMS, "of its core").high == 50
    assert _find(records, f"{SHORT_STREAMS} vs litellm", "streams per CPU second").value == 10
    assert _find(records, "memory", "router").value == 90


def test_tokens_per_message_are_shown_for_octet() -> None:
    found = RoundResults()
    found.floods[LONG_STREAMS, OCTET] = [FloodResult(800, 2.0, 0.5, 200)]
    found.floods[LONG_STREAMS, "litellm"] = [FloodResult(80, 2.0, 0.5, 80)]
    records = build_records(found, [Flood(LONG_STREAMS, (OCTET,), SHORT, 16, 2.0, "tokens")], ["litellm"])
    assert [(record.system, record.value) for record in records if record.metric == "tokens a message"] == [(OCTET, 4)]


def test_plot_of_incomplete_records_is_reproducible(tmp_path: Path) -> None:
    records = [BenchRecord("router peers", rate_case(rate), OCTET, P50, "ms", 1.0, -0.5, 2.0, 5) for rate in (10, 100)]
    for name in ("a.svg", "b.svg"):
        plot_views(tmp_path / name, [ADDED], records)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_paused_router_uses_no_cpu_time_and_its_children_count(tmp_path: Path) -> None:
    process = _process(tmp_path, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN!r}])")
    try:
        end = monotonic() + PATIENCE
        while process.cpu() < 0.5 and monotonic() < end:
            sleep(0.05)
        assert process.cpu() >= 0.5
        process.pause()
        assert become(list(tree(process.pid)), "T")
        before = process.cpu()
        sleep(0.3)
        assert process.cpu() == before
        assert process.memory() > 1_000_000
        process.resume()
        end = monotonic() + PATIENCE
        while process.cpu() == before and monotonic() < end:
            sleep(0.05)
        assert process.cpu() > before
    finally:
        process.close()


def test_dead_router_is_reported_with_its_last_words(tmp_path: Path) -> None:
    process = _process(tmp_path, "import sys; print('no luck'); sys.exit(3)")
    with pytest.raises(PeerFailed, match="exit code 3; last output: no luck"):
        for _ in range(6000):
            process.check()
            sleep(0.05)
    with pytest.raises(PeerFailed):
        process.cpu()
    for _ in range(2):
        process.close()  # Closing twice is harmless.


class FakeCaller(Caller):
    """A caller whose SHORT calls fail once `most_answers` of them have been answered."""

    def __init__(self, most_answers: int) -> None:
        self.left = most_answers

    async def __aexit__(self, *_: object) -> None: ...

    async def call(self, prompt: str, order: Order, on_tokens: OnTokens | None = None, *, stream: bool = True) -> float:
        self.left -= order == SHORT
        if self.left < 0 and order == SHORT:
            raise CallFailed("refused: too much")
        return 0.001


def test_failed_peer_is_left_out_and_its_earlier_rounds_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_PAUSES", (0.0, 0.0))
    process = _process(tmp_path, "import time; time.sleep(600)", "frail")
    good, frail = FakeCaller(10_000), FakeCaller(8)
    said: list[str] = []
    paths = {LIMIT: RoutePath(LIMIT, None, lambda _: good), "frail": RoutePath("frail", process, lambda _: frail)}
    site = RouterPeersSite(Findings(said.append), paths)
    try:
        found = asyncio.run(run_rounds(site, [FirstTokens(SERIAL, (LIMIT,), 5)], 3))
    finally:
        process.close()
    assert [len(each) for each in found.first[SERIAL, LIMIT]] == [5, 5, 5]
    assert [len(each) for each in found.first[SERIAL, "frail"]] == [5]
    (why,) = site.findings.failures
    assert why == f"frail: {SERIAL}: refused: too much" and why in said
    assert said.count(f"tried again: {why}") == 2
    assert site.findings.notes == [f"tried again: {why}", f"left out: {why}"]
    assert set(site.paths) == {LIMIT}


def _fake_peer(name: str, most: int | None) -> RouterPeer:
    def command(place: RouterPlace) -> Sequence[str]:
        least = [sys.executable, str(FAKE_ROUTER), str(place.port), str(place.backends[0])]
        return [*least, str(most)] if most is not None else least

    return RouterPeer(name, ("fake==1",), command, f"a fake that is called {name}")


@pytest.mark.slow
def test_quick_run_with_some_failing_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes = (_fake_peer("sound", None), _fake_peer("stillborn", 0), _fake_peer("frail", 9), _fake_peer("absent", None))
    monkeypatch.setattr("bench.router_peers.measure.ROUTER_PEERS", {fake.name: fake for fake in fakes})

    def prepare(peer: RouterPeer, peers: Path, say: object) -> Environment:
        if peer.name == "absent":
            raise PeerUnavailable("absent: installing fake==1 failed with exit code 1")
        peers.mkdir(parents=True, exist_ok=True)
        return Environment(peers / peer.name, "native")

    monkeypatch.setattr(site_module, "prepare", prepare)
    monkeypatch.setenv("OCTET_CACHE", str(tmp_path / "cache"))
    out, plot = tmp_path / "out.jsonl", tmp_path / "plot.svg"
    names = ",".join([*(fake.name for fake in fakes), "unknown"])
    asked = ["bench", "router", "--peers", names, "--quick", "--json", str(out), "--plot", str(plot)]
    assert main(asked) == 1
    printed = capsys.readouterr()
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    keys = [(record["case"], record["system"], record["metric"]) for record in records]
    assert len(set(keys)) == len(keys)
    assert {record["system"] for record in records} >= {OCTET, LIMIT, "sound"}
    assert "sound: a fake that is called sound" in printed.out and plot.exists()
    for failed in ("stillborn: died with exit code 3", "frail", "absent: installing", "unknown: unknown router"):
        assert failed in printed.err
