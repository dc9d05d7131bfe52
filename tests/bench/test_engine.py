"""The engine bench from end to end, with a simulated engine and fake peers."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import engine
from bench.engine import EngineOptions, measure_engine, shares
from bench.engine_decode import TARGETS, BenchModel
from bench.engine_parts import capacity, figures
from bench.peers.environment import PeerSpec, PeerUnavailable, PeerWorkspace
from bench.processes import Peer
from bench.timing import Findings, table_of_spreads
from octet.cli import main
from specialist.engines.sim.engine import cost_model_from_json

ROOT = Path(__file__).resolve().parents[2]
MODEL = BenchModel(Path("no-model.gguf"), vocab_size=250, revision=lambda: "0" * 64, hf_directory=Path)
SIM = ("--engine", "sim")


@pytest.fixture
def fake_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the peers with fakes that need no environment of their own. The name of each fake is its fault."""

    def start(spec: PeerSpec, place: PeerWorkspace, say: Any, *, try_all: bool) -> tuple[Peer, str]:
        name = spec.name
        if name == "cannot be installed":
            raise PeerUnavailable(f"{name}: no network")
        command = [sys.executable, "-m", "tests.bench.fake_peer", str(place.model), name, *spec.variants[0]]
        log = place.peers / f"{name}.log"
        peer = Peer(name, command, cwd=ROOT, env=os.environ, log=log, timeout=place.timeout)
        if name == "hangs":
            peer.timeout = 2.0
        return peer, peer.settings

    names = ("well", "dies", "dies later", "hangs", "cuts short", "cannot be installed", "does not load")
    specs = {name: PeerSpec(name, (), "", "gguf") for name in names}
    specs["well"] = replace(specs["well"], mixing=("--adapters",))
    monkeypatch.setattr(engine, "PEERS", specs)
    monkeypatch.setattr(engine, "start_peer", start)


def run(tmp_path: Path, *peers: str, said: list[str], **changes: Any) -> Findings:
    options = EngineOptions(peers, runs=2, cache=tmp_path, timeout=120.0, quick=True, octet=SIM, **changes)
    return measure_engine(MODEL, options, said.append)


def systems(outcome: Findings) -> set[str]:
    return {record.system for record in outcome.records}


@pytest.mark.usefixtures("fake_peers")
def test_all_systems_are_measured_and_compared(tmp_path: Path) -> None:
    outcome = run(tmp_path, "well", said=[], served=True)
    assert outcome.failures == []
    assert systems(outcome) == {"octet", "octet served", "octet served, a call each", "well", "limit"}
    found = {(record.case, record.system, record.metric) for record in outcome.records}
    assert len(found) == len(outcome.records)
    for system in ("octet", "octet served", "well"):
        for metric in ("decode", "TTFT p50", "TTFT p95", "ITL p50", "ITL p95"):
            assert {("1 sequence", system, metric), ("4 sequences", system, metric)} <= found
        assert ("prompt of 64 tokens", system, "prefill") in found
    assert ("1 sequence", "limit", "weights at read bandwidth") in found
    for case in ("4 sequences vs well", "1 sequence vs weights at read bandwidth"):
        assert (case, "octet", "decode") in found
    assert ("prefix of 128 tokens vs cold", "octet", "TTFT, warm") in found
    assert {record.runs for record in outcome.records} == {2}
    assert ("4 sequences vs in process", "octet served", "decode") in found
    assert [note.partition(":")[0] for note in outcome.notes] == ["octet", "octet served", "well"]
    assert table_of_spreads(outcome.records, TARGETS).startswith("case ")


@pytest.mark.usefixtures("fake_peers")
def test_failed_peers_are_reported_once_and_the_others_continue(tmp_path: Path) -> None:
    reply = {
        "cannot be installed": "cannot be installed: no network",
        "does not load": "does not load: failed while loading: ValueError",
        "unknown": "unknown: unknown peer (known: well, ",
        "dies": "dies: died of SIGILL while running 'generate'",
        "cuts short": "cuts short: asked for 1 x 8 tokens, got lengths [7]",
    }
    said: list[str] = []
    outcome = run(tmp_path, *reply, "well", said=said)
    for beginning in reply.values():
        assert len([failure for failure in outcome.failures if failure.startswith(beginning)]) == 1
    assert len(outcome.failures) == len(reply)
    assert [line for line in said if line in outcome.failures] == outcome.failures
    assert systems(outcome) == {"octet", "well", "limit"}


@pytest.mark.usefixtures("fake_peers")
def test_hanging_peer_takes_no_longer_than_the_timeout(tmp_path: Path) -> None:
    outcome = run(tmp_path, "hangs", said=[])
    assert [failure.startswith("hangs: no answer within 2 s") for failure in outcome.failures] == [True]
    assert systems(outcome) == {"octet", "limit"}


@pytest.mark.usefixtures("fake_peers")
@pytest.mark.slow
def test_rounds_before_the_death_of_a_peer_count(tmp_path: Path) -> None:
    """The peer survives the warm-up and the first measured round."""
    outcome = run(tmp_path, "dies later", said=[])
    runs = {record.runs for record in outcome.records if record.system == "dies later"}
    assert len(outcome.failures) == 1
    assert runs == {1}
    ratios = [record for record in outcome.records if record.case == "4 sequences vs dies later"]
    assert {record.metric: record.runs for record in ratios} == {"decode": 1, "throughput": 1}


@pytest.mark.usefixtures("fake_peers")
@pytest.mark.slow
def test_failure_of_octet_is_reported_too(tmp_path: Path) -> None:
    options = EngineOptions(("well",), runs=1, cache=tmp_path, timeout=120.0, quick=True, octet=("--no-such-option",))
    outcome = measure_engine(MODEL, options, lambda line: None)
    assert [failure.startswith("octet: died with exit code 2 while loading") for failure in outcome.failures] == [True]
    assert systems(outcome) == {"well"}


def test_written_calibration_can_be_read_by_a_simulation(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    outcome = run(tmp_path, said=[], calibrate=file)
    assert outcome.failures == []
    cost = cost_model_from_json(file.read_text())
    assert 0 < cost.decode_step + cost.decode_token < 0.1
    assert any(note.startswith(str(file)) for note in outcome.notes)


def test_missing_model_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", "--model", str(tmp_path / "none.gguf")]) == 2
    assert "none.gguf: no such file or directory" in capsys.readouterr().err


def test_help_explains_the_measurement_and_the_spread(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "engine", "--help"])
    assert caught.value.code == 0
    reply = capsys.readouterr().out
    assert all(word in reply for word in ("hf", "llamacpp", "vllm", "OCTET_CACHE", "10th and 90th percentiles"))


@pytest.mark.parametrize("option", ["--runs", "--timeout"])
def test_counts_are_at_least_one(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "engine", option, "0"])
    assert "must be a whole number of at least 1, got '0'" in capsys.readouterr().err


def test_shares_are_percentages_of_the_total() -> None:
    assert shares({"linear": 3.0, "attention": 0.5, "around it": 0.5}) == "linear 75 %, attention 12 %, around it 12 %"


@pytest.mark.usefixtures("fake_peers")
@pytest.mark.slow
def test_open_loop_and_interleaved_adapters_are_measured(tmp_path: Path) -> None:
    outcome = run(tmp_path, "well", said=[], parts=("open-loop", "adapters"))
    assert outcome.failures == []
    assert systems(outcome) == {"octet", "octet served", "octet interleaved"}
    found = {(record.case, record.system, record.metric): record.value for record in outcome.records}
    check_open_loop(found)
    check_adapters(found)
    assert any("well cannot accept requests while it computes: left out" in note for note in outcome.notes)
    assert any("well was not started with adapters: left out" in note for note in outcome.notes)
    assert any("of a capacity of" in note for note in outcome.notes)


@pytest.mark.usefixtures("fake_peers")
@pytest.mark.slow
def test_peer_started_for_adapters_shares_a_batch_among_them(tmp_path: Path) -> None:
    outcome = run(tmp_path, "well", "dies", said=[], parts=("adapters",))
    assert outcome.failures == ["dies: cannot mix adapters in one batch"]
    found = {(record.case, record.system, record.metric): record.value for record in outcome.records}
    check_adapters(found)
    for case in ("16 sequences, 1 adapter", "16 sequences, 16 adapters"):
        assert found[case, "well", "throughput"] > 0 and (case, "well", "steps a turn") not in found
        ours, theirs = found[case, "octet", "throughput"], found[case, "well", "throughput"]
        assert found[f"{case} vs well", "octet", "throughput"] == pytest.approx(ours / theirs, rel=1.0)


Found = Mapping[tuple[str, str, str], float]


def check_open_loop(found: Found) -> None:
    for share in (30, 60, 90):
        for system in ("octet", "octet served"):
            case = f"open loop at {share} % of capacity"
            assert found[case, system, "goodput"] <= found[case, system, "offered"]
            assert found[case, system, "TTFT p50"] > 0
            assert (case, system, "TTFT p99") not in found, "too few samples for a 99th percentile"
        assert found[case, "octet", "offered"] == found[case, "octet served", "offered"]


def check_adapters(found: Found) -> None:
    alone = "16 sequences, 1 adapter"
    assert found[alone, "octet", "longest wait of an adapter"] == 0
    for number in (4, 16):
        case = f"16 sequences, {number} adapters"
        assert found[case, "octet", "steps a turn"] >= found[case, "octet interleaved", "steps a turn"] >= 1
        assert found[case, "octet interleaved", "longest wait of an adapter"] > 0
        assert (f"{case} vs interleaved", "octet", "throughput") in found


def test_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "engine", "--parts", "decode,encode"])
    assert "--parts must name decode or open-loop or adapters, got 'decode,encode'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--device", "cuda", "--peers", "vllm"], "on cuda, --peers need --peer-path"),
        (["--peers", "vllm", "--peer-path", "."], "--peer-path needs --device cuda"),
        (["--model", "shape:9b"], "unknown shape (known: shape:0.6b, shape:8b)"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "engine", *options])
    assert why in capsys.readouterr().err


def test_capacity_is_measured_from_arrival_to_last_answer() -> None:
    times = [[1.0, 8.0], [2.0, 9.0], [], [3.0, 10.0]]
    assert capacity(times) == pytest.approx(0.3)


def test_good_answer_meets_the_limits_of_first_token_and_gaps() -> None:
    good, late, slow = [0.9, 1.0, 1.05], [1.1, 1.2], [0.1, 0.2, 0.31]
    found = {each.metric: each.value for each in figures([good, late, slow, good, []], seconds=2.0)}
    assert found["goodput"] == 1.0
    assert found["goodput share"] == 40
    assert found["offered"] == 2.5
    assert found["refused"] == pytest.approx(20)
