import json
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.timing import read_result
from octet.cli import main
from octet.config.ensemble import SloTargets
from simulation import capacity
from simulation.capacity import (
    SimulatedAnswer,
    SimulationRun,
    SimulationSetup,
    SpecialistFigures,
    evaluate_specialist,
)
from simulation.search import find_fewest
from simulation.traces import (
    DemandRefused,
    TraceRequest,
    assign_specialists,
    fit_to_context,
    read_demand,
    request_rate,
    scale_demand,
)

SHAPES = [
    TraceRequest(0.0, (10,), (0,), 3),
    TraceRequest(1.0, (4,), (1,), 1),
    TraceRequest(4.0, (7,), (2,), 2),
]
MIX = {"algo": 3.0, "stl": 1.0}


@given(rate=st.floats(0.01, 100), seconds=st.floats(0.1, 200))
def test_accelerated_trace_keeps_its_order_and_has_the_rate(rate: float, seconds: float) -> None:
    played = scale_demand(SHAPES, rate, seconds)
    times = [shape.at for shape in played]
    assert times == sorted(times)
    assert all(0 <= at < seconds for at in times)
    assert abs(len(played) - rate * seconds) <= 2 * len(SHAPES)


def test_trace_without_rate_or_duration_is_unchanged() -> None:
    assert scale_demand(SHAPES, None, None) == SHAPES
    assert request_rate(SHAPES) == 0.5


def test_repeated_trace_repeats_no_prompt() -> None:
    played = scale_demand(SHAPES, None, 30.0)
    texts = [each.text() for each in played]
    assert len(played) > 2 * len(SHAPES)
    assert len(set(texts)) == len(texts)


def test_prefix_is_shared_within_each_repetition() -> None:
    shapes = [TraceRequest(float(at), (512, 3), (7, at), 1) for at in range(4)]
    firsts = [shape.names[0] for shape in scale_demand(shapes, None, 12.0)]
    assert [firsts.count(name) for name in dict.fromkeys(firsts)] == [4, 4, 4]


def test_excessive_rate_is_refused() -> None:
    with pytest.raises(DemandRefused):
        scale_demand(SHAPES, 1e9, 1.0)


def test_requests_that_share_a_prefix_go_to_the_same_specialist() -> None:
    shapes = [TraceRequest(float(at), (512, 3), (at % 7, at), 1) for at in range(700)]
    asks = assign_specialists(shapes, MIX, Random(1))
    by_prefix: dict[int, set[str]] = {}
    for ask in asks:
        by_prefix.setdefault(ask.names[0], set()).add(ask.specialist)
    assert all(len(names) == 1 for names in by_prefix.values())


def test_specialists_get_their_shares_of_requests() -> None:
    asks = assign_specialists([TraceRequest(float(i), (1,), (i,), 1) for i in range(4000)], MIX, Random(1))
    assert 0.70 < sum(ask.specialist == "algo" for ask in asks) / len(asks) < 0.80


@given(
    lengths=st.lists(st.integers(1, 600), min_size=1, max_size=6),
    answer=st.integers(1, 2000),
    context=st.integers(8, 2000),
)
def test_only_requests_that_are_too_long_are_cut(lengths: list[int], answer: int, context: int) -> None:
    ask = TraceRequest(0.0, tuple(lengths), tuple(range(len(lengths))), answer, "algo")
    fit = fit_to_context(ask, context)
    assert fit.prompt_tokens + fit.answer_tokens <= context
    assert fit.prompt_tokens >= 1 and fit.answer_tokens >= 1
    assert len(fit.text()) == fit.prompt_tokens
    assert ask.text().startswith(fit.text()[: sum(fit.prompt[:-1])])
    if sum(lengths) + answer <= context and answer <= context // 2:
        assert fit == ask


def answers(ttft: float, refused: int = 0) -> list[SimulatedAnswer]:
    given = [SimulatedAnswer("algo", ttft, (0.01,), refused=False, failed=False, from_admission=ttft / 2)] * 99
    return given + [SimulatedAnswer("algo", None, (), refused=True, failed=False, from_admission=None)] * refused


def test_objective_is_met_up_to_its_exact_target() -> None:
    targets = SloTargets(ttft_p95=1.0, admission_to_first_token_p95=0.5, itl_p99=0.01)
    assert evaluate_specialist("algo", 1, answers(1.0), targets, 0.5, 0.01).misses == ()
    late = evaluate_specialist("algo", 1, answers(1.1), targets, 0.5, 0.01)
    assert [miss.objective for miss in late.misses] == ["ttft_p95", "admission_to_first_token_p95"]


def test_refused_requests_count_as_misses() -> None:
    assert not evaluate_specialist("algo", 1, answers(0.1, refused=1), SloTargets(), 0.5, 0.01).misses
    (miss,) = evaluate_specialist("algo", 1, answers(0.1, refused=2), SloTargets(), 0.5, 0.01).misses
    assert str(miss) == "2.0 % not answered, allowed 1.0 %"


NEEDS = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(1, 40), min_size=1)


@given(needs=NEEDS, most=st.integers(1, 40))
def test_fewest_replicas_are_found_if_more_are_never_worse(needs: dict[str, int], most: int) -> None:
    model = ReplicaModel({name: (need, 0.0) for name, need in needs.items()})
    found = find_fewest(tuple(needs), model.trial, model.alone, [], most)
    assert found.replicas == {name: min(need, most) for name, need in needs.items()}
    assert found.missing == tuple(name for name, need in needs.items() if need > most)
    assert not found.limits, "a specialist that more replicas help has no other limit"
    assert len(model.tried) <= 2 * most.bit_length() + 2


class ReplicaModel:
    """Specialists whose TTFT falls with the number of replicas, down to what a request takes alone."""

    def __init__(self, needs: Mapping[str, tuple[int, float]]) -> None:
        self._needs = needs
        self.tried: list[Mapping[str, int]] = []

    def trial(self, counts: Mapping[str, int]) -> dict[str, SpecialistFigures]:
        assert counts not in self.tried, "the same numbers were simulated twice"
        self.tried.append(dict(counts))
        return {name: self._figures(name, count) for name, count in counts.items()}

    def alone(self, name: str) -> SpecialistFigures:
        return self._figures(name, 10**9)

    def _figures(self, name: str, count: int) -> SpecialistFigures:
        need, least = self._needs[name]
        found = answers(max(least, need / count))
        return evaluate_specialist(name, count, found, SloTargets(ttft_p95=1.0), 0.5, 0.01)


@given(
    needs=st.dictionaries(
        st.sampled_from(["a", "b", "c"]), st.tuples(st.integers(1, 100), st.sampled_from([0.0, 2.0])), min_size=1
    )
)
def test_search_stops_where_more_replicas_do_not_help(needs: dict[str, tuple[int, float]]) -> None:
    asks = [TraceRequest(0.0, (9,), (0,), 1, name) for name in needs]
    model = ReplicaModel(needs)
    found = find_fewest(tuple(needs), model.trial, model.alone, asks, 128)
    hopeless = {name for name, (_, least) in needs.items() if least > 1}
    assert set(found.limits) == set(found.missing) == hopeless
    for name, (need, _) in needs.items():
        assert found.replicas[name] == need or name in hopeless
        assert found.replicas[name] <= 2 * need, "replicas that do not help are not part of the answer"
        tried = max(counts[name] for counts in model.tried)
        assert tried <= 4 * need, "the search went on after more replicas did not help"


def test_bursts_limit_a_specialist_whose_requests_are_fast_alone() -> None:
    asks = [TraceRequest(at, (9,), (0,), 1, "a") for at in (0.0, 5.0, 5.5, 6.0, 6.5)]
    model, fast = ReplicaModel({"a": (3, 2.0)}), ReplicaModel({"a": (1, 0.0)})
    found = find_fewest(("a",), model.trial, fast.alone, asks, 128)
    assert found.replicas == {"a": 2} and found.missing == ("a",)
    assert found.limits["a"].startswith(
        "more than 2 replicas do not help; the trace has bursts: up to 3 of its requests"
    )
    assert [counts["a"] for counts in model.tried] == [1, 2, 4, 8], "one doubling without help may be chance, not two"
    hopeless = find_fewest(("a",), ReplicaModel({"a": (1, 2.0)}).trial, fast.alone, asks, 128)
    assert hopeless.limits["a"].startswith("more than 1 replica does not help;")


@pytest.fixture
def site(tmp_path: Path) -> tuple[Path, Path]:
    config, trace = tmp_path / "ensemble.yaml", tmp_path / "trace.csv"
    cost = dict.fromkeys(("prefill_pair", "decode_pair", "adapter_switch", "preemption"), 0.0)
    cost |= {"prefill_step": 0.05, "prefill_token": 0.001, "decode_step": 0.01, "decode_token": 0.001}
    (tmp_path / "cost.json").write_text(json.dumps({"cost": cost, "about": {}}))
    config.write_text(
        "engine: sim\ncost_model: cost.json\nspecialists:\n"
        "  algo: {describe: one, slo: {ttft_p95: 1s}}\n  stl: {describe: two, slo: {ttft_p95: 1s}}\n"
    )
    lines = [f"2023-11-16 18:17:{second // 4:02}.{second % 4 * 25:02},200,10\n" for second in range(120)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(lines))
    return config, trace


def test_traces_of_both_formats_are_read(site: tuple[Path, Path], tmp_path: Path) -> None:
    assert request_rate(read_demand(site[1])) == pytest.approx(4.0)
    mooncake = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 500 * i, "input_length": 600, "output_length": 5, "hash_ids": [1, 2 + i]} for i in range(3)]
    mooncake.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shapes = read_demand(mooncake)
    assert [shape.at for shape in shapes] == [0.0, 0.5, 1.0]
    first, second, _ = assign_specialists(shapes, {"algo": 1.0}, Random(0))
    assert first.text()[:512] == second.text()[:512] and first.text() != second.text()


def test_needed_replicas_are_found_and_suffice(
    site: tuple[Path, Path], runs: list[tuple[object, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, trace = map(str, site)
    out, plot = tmp_path / "out.json", tmp_path / "plot.svg"
    words = ["simulate", config, "--trace", trace, "--rate", "12", "--seconds", "4"]
    assert main([*words, "--json", str(out), "--plot", str(plot)]) == 0
    assert 1 < len(runs) == len(set(runs)), "no run is played twice"
    needed: dict[str, int] = json.loads(out.read_text())["replicas"]
    assert "replicas are needed" in capsys.readouterr().out
    assert plot.stat().st_size > 0
    assert min(needed.values()) > 1, "the load proves nothing: one replica is enough for it"
    fewer = ",".join(f"{name}={count - 1}" for name, count in needed.items())
    assert main([*words, "--replicas", fewer]) == 1
    assert "not enough" in capsys.readouterr().out
    same = ",".join(f"{name}={count}" for name, count in needed.items())
    assert main([*words, "--replicas", same]) == 0
    ample = str(2 * max(needed.values()))
    assert main([*words, "--replicas", ample, "--routers", "2"]) == 0, (
        "two routers must choose replicas almost as well as one"
    )


def test_need_above_the_limit_is_reported(
    site: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, trace = map(str, site)
    out, result = tmp_path / "out.json", tmp_path / "result.json"
    words = ["simulate", config, "--trace", trace, "--rate", "40", "--seconds", "2", "--most", "1"]
    assert main([*words, "--json", str(out), "--result", str(result)]) == 1
    said = capsys.readouterr()
    assert "2 replicas are not enough" in said.out and "algo: --most 1 is too few; more may help" in said.out
    assert "needed" not in said.out
    assert json.loads(out.read_text())["replicas"] == {"algo": 1, "stl": 1}
    assert "--most 1" in read_result(result).command


def test_specialist_without_objectives_is_shown_as_such() -> None:
    assert evaluate_specialist("algo", 1, answers(0.1), SloTargets(), 0.5, 0.01).format_misses() == "no objectives"
    assert evaluate_specialist("algo", 1, answers(0.1), SloTargets(ttft_p95=1.0), 0.5, 0.01).format_misses() == "met"


def test_overloaded_router_is_a_miss() -> None:
    assert SimulationRun({}, 1.0, 1.0, 1, (0.7, 0.1)).misses == ()
    (miss,) = SimulationRun({}, 1.0, 1.0, 1, (0.2, 0.71)).misses
    assert miss == "routers: 2 are too few, the busiest takes 71 % of a core"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Record every simulated run: how many requests, replicas and the seed."""
    played: list[tuple[object, ...]] = []
    play = capacity.play

    def record(
        setup: SimulationSetup,
        asks: list[TraceRequest],
        replicas: Mapping[str, int],
        *rest: object,
        alone: bool = False,
    ) -> SimulationRun:
        played.append((len(asks), *replicas.items(), setup.seed, alone))
        return play(setup, asks, replicas, alone=alone)

    monkeypatch.setattr(capacity, "play", record)
    return played


def write_objectives(config: Path, algo: str, stl: str) -> None:
    sim = "engine: sim\ncost_model: cost.json\n"
    config.write_text(f"{sim}specialists:\n  algo: {{describe: one{algo}}}\n  stl: {{describe: two{stl}}}\n")


@pytest.mark.parametrize(
    ("algo", "options", "said", "most_runs"),
    [
        # 200 tokens of prefill take 0.25 s, and a decode step 0.011 s.
        (", slo: {ttft_p95: 100ms}", [], "no number of replicas is enough; the prefill of one prompt alone", 4),
        (", slo: {itl_p95: 2ms}", [], "no number of replicas is enough; the decode of one request alone", 4),
        (", slo: {ttft_p95: 100ms}", ["--replicas", "1"], "no number of replicas is enough", 2),
    ],
)
def test_objectives_out_of_reach_are_explained(
    algo: str,
    options: list[str],
    said: str,
    most_runs: int,
    site: tuple[Path, Path],
    runs: list[tuple[object, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, trace = map(str, site)
    write_objectives(site[0], algo, ", slo: {ttft_p95: 9s}")
    words = ["simulate", config, "--trace", trace, "--rate", "4", "--seconds", "2", "--most", "64"]
    assert main([*words, *options]) == 1
    shown = capsys.readouterr().out
    assert f"algo: {said}" in shown
    assert "needed" not in shown
    assert ("the others need: stl 1" in shown) is ("--replicas" not in options)
    assert len(runs) == len(set(runs)) <= most_runs


def test_one_run_is_enough_if_one_replica_is(site: tuple[Path, Path], runs: list[tuple[object, ...]]) -> None:
    config, trace = map(str, site)
    assert main(["simulate", config, "--trace", trace, "--rate", "1", "--seconds", "4"]) == 0
    assert len(runs) == 1


def test_replicas_without_objectives_are_not_called_needed(
    site: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config, trace = map(str, site)
    write_objectives(site[0], "", "")
    assert main(["simulate", config, "--trace", trace, "--seconds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2 replicas can answer the requests: algo 1, stl 1" in shown and "needed" not in shown
    assert "no objectives (slo): algo, stl" in shown


def test_unused_specialist_is_not_judged(site: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    config, trace = map(str, site)
    assert main(["simulate", config, "--trace", trace, "--seconds", "2", "--mix", "algo=1"]) == 0
    shown = capsys.readouterr().out
    assert "no requests: stl; the simulation says nothing" in shown
    assert next(line for line in shown.splitlines() if line.startswith("stl")).endswith("no requests")


def test_outputs_are_checked_before_the_first_run(
    site: tuple[Path, Path],
    runs: list[tuple[object, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, trace = map(str, site)
    assert main(["simulate", config, "--trace", trace, "--json", str(tmp_path / "absent" / "out.json")]) == 2
    assert capsys.readouterr().err == f"octet simulate: {tmp_path}/absent: no such folder\n"
    monkeypatch.setattr("simulation.plots.find_spec", lambda name: None)
    assert main(["simulate", config, "--trace", trace, "--plot", str(tmp_path / "plot.svg")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("octet simulate: plotting needs matplotlib: pip install") and "bench]" in said
    assert not runs


@pytest.mark.parametrize("requests", [0, 1])
def test_empty_trace_is_reported_in_one_line(
    requests: int, site: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config, trace = site
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[: 1 + requests]))
    assert main(["simulate", str(config), "--trace", str(trace)]) == 2
    assert f"a trace must have at least 2 requests, got {requests}" in capsys.readouterr().err


def test_short_run_does_not_judge_a_router() -> None:
    assert SimulationRun({}, 0.9, 1.0, 1, (1.5,)).misses == ()


@pytest.mark.parametrize("options", [["--mix", "absent=1"], ["--replicas", "absent=2"], ["--rate", "1e8"]])
def test_impossible_options_are_reported_in_one_line(
    options: list[str], site: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config, trace = map(str, site)
    assert main(["simulate", config, "--trace", trace, *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1
