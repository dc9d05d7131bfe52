"""How a request is counted for each way in which it can end, and which replicas may get the request or its shadow."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from octet.clock import ManualClock
from octet.config.ensemble import CorrectnessConfig, ShadowConfig
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.dispatch.attempts import Quarantine
from router.dispatch.dispatcher import Dispatcher
from router.quality.shadow_copy import ShadowCounters, ShadowTask
from router.receipts import ReceiptDraft
from router.request import Request
from router.routing.dispatch_plan import DispatchPlan, FleetStatus, IntentKnobs
from router.routing.policy import RoutingPolicy
from router.serving import RequestPipeline
from tests.router.routing.ensembles import ENSEMBLE
from tests.router.routing.sample_states import PlanCase, never, plan_case, with_reported_lanes

QUIET = replace(
    ENSEMBLE,
    shadow=ShadowConfig(fresh_rate=0.0, demoted_rate=0.0),
    correctness=CorrectnessConfig(sample_rate=0.0, fresh_sample_rate=0.0),
)
REFUSED = Refusal(error_pb2.ERROR_REASON_NO_REPLICA, "no replica")


class PipelineHarness:
    """A request pipeline with fakes that record how a request is counted."""

    def __init__(self, case: PlanCase, *, full: tuple[str, ...] = (), accepted: str = "", fails: bool = False):
        self.case = case
        self.counted: Counter[str] = Counter()
        self.given_up: list[Request] = []
        self._outcome = full, accepted, fails
        control = SimpleNamespace(
            fleet_status=case.status,
            record_demand=lambda specialist, intent, kind, outcome: self.counted.update([f"{outcome} {specialist}"]),
        )
        shadows = SimpleNamespace(counters=ShadowCounters(), answered=lambda intent: self.counted.update(["answered"]))
        unused: Any = None
        self._pipeline = RequestPipeline(
            unused,
            _any(control),
            _any(
                SimpleNamespace(
                    answer=self._dispatch,
                    give_place_up=self.given_up.append,
                    quarantine=Quarantine(ManualClock(), lambda: 1.0),
                )
            ),
            unused,
            _any(shadows),
            unused,
            ManualClock(),
            never,
        )
        self.plan: DispatchPlan | None = None

    async def decide(self, ask: object, classifier: object) -> object:
        return self.case.decision

    async def _dispatch(self, request: Request, plan: DispatchPlan, _: object) -> None:
        full, request.accepted_by, fails = self._outcome
        self.plan = plan
        request.full.update(full)
        if fails:
            raise REFUSED

    def asked(self) -> None:
        ask = self.case.ask

        async def finish() -> wire.Receipt:
            return wire.Receipt()

        unused: Any = None
        ask.draft = ReceiptDraft(ask, 0.0, 0)
        ask.policy = RoutingPolicy(self.case.ensemble)
        _any(ask.policy).classify_and_decide = self.decide
        asyncio.run(self._pipeline.answer(ask, unused, finish))


def _any(part: object) -> Any:
    return part


def sure() -> PlanCase:
    return plan_case(QUIET, sure={"algo": 0.9, "stl": 0.05})


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        ({"accepted": "algo"}, {"accepted algo": 1, "answered": 1}),
        ({"accepted": "stl", "full": ("algo",)}, {"refused algo": 1, "accepted stl": 1, "answered": 1}),
        ({"accepted": "algo", "full": ("stl",)}, {"accepted algo": 1, "answered": 1}),
        ({"accepted": "stl"}, {"accepted stl": 1, "answered": 1}),
        ({"accepted": "algo", "fails": True}, {"accepted algo": 1}),
        ({"full": ("algo",), "fails": True}, {"refused algo": 1}),
        ({"full": ("algo", "stl"), "fails": True}, {"refused algo": 1}),
        ({"fails": True}, {}),
    ],
)
def test_first_specialist_is_counted_once_and_only_an_answer_earns_a_shadow(
    outcome: dict[str, Any], counted: dict[str, int]
) -> None:
    """A request refused for a reason other than capacity does not count as demand."""
    harness = PipelineHarness(sure(), **outcome)
    if outcome.get("fails"):
        with pytest.raises(Refusal, match="no replica"):
            harness.asked()
    else:
        harness.asked()
    assert harness.counted == counted


@pytest.mark.parametrize(("floor_by", "counted"), [("escalation", {"withheld algo": 1}), ("operator", {}), ("", {})])
def test_a_request_below_a_floor_counts_as_withheld_if_escalation_raised_it(
    floor_by: str, counted: dict[str, int]
) -> None:
    """A request below a floor that is configured or set by an operator is no sign of pressure."""
    case = sure()
    both = {("unspecified", name): IntentKnobs(0.0, 9, floor_by, floor_by) for name in ("algo", "stl")}
    harness = PipelineHarness(replace(case, status=replace(case.status, knob_overrides=both)))
    with pytest.raises(Refusal):
        harness.asked()
    assert harness.counted == counted
    assert harness.given_up == [harness.case.ask], "a request that is not dispatched needs no place"


def test_a_request_below_its_floor_is_offered_to_the_second_choice() -> None:
    case = plan_case(QUIET, sure={"algo": 0.6, "stl": 0.3})
    by = ("escalation", "escalation")
    status = replace(case.status, knob_overrides={("unspecified", "algo"): IntentKnobs(0.0, 9, *by)})
    harness = PipelineHarness(replace(case, status=status), accepted="stl")
    harness.asked()
    assert harness.counted == {"withheld algo": 1, "accepted stl": 1, "answered": 1}


def test_a_shadow_does_not_go_to_a_drained_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    case = plan_case(QUIET, with_reported_lanes(FleetStatus.initial(QUIET)), sure={"algo": 0.6, "stl": 0.3})
    knobs = {("unspecified", "algo"): IntentKnobs(1.0, 0)}
    status = replace(case.status, knob_overrides=knobs, drained=frozenset({"stl-1"}))
    tasks: list[ShadowTask] = []

    class RecordingTap:
        write = None
        shadow: Any = None

        def __init__(self, *given: Any, **named: Any) -> None: ...

        def __enter__(self) -> "RecordingTap":
            tasks.append(self.shadow)
            return self

        def __exit__(self, *_: object) -> None: ...

        def answered(self) -> None: ...

        def finished(self, *_: object) -> None: ...

    monkeypatch.setattr("router.serving.AnswerTap", RecordingTap)
    PipelineHarness(replace(case, status=status), accepted="algo").asked()
    (task,) = tasks
    assert task.order.why == "low_confidence" and task.order.candidate.specialist == "stl"
    replicas: list[Any] = [SimpleNamespace(name=f"stl-{number}") for number in range(3)]
    assert [task.may_answer(replica) for replica in replicas] == [True, False, True]


@pytest.mark.parametrize("held", [(), ("fast",), ("fast", "small", "more")])
@pytest.mark.parametrize("revision", [None, "", "r1", "r2"])
@pytest.mark.parametrize("name", ["algo-0", "algo-1"])
@pytest.mark.parametrize("wanted", [(), ("fast", "small")])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_request_avoids_replicas_that_are_drained_have_another_model_or_lack_adapters(
    name: str, revision: str | None, held: tuple[str, ...], wanted: tuple[str, ...], is_mixed: bool
) -> None:
    """If `revision` is None, the replica has not reported yet, so its adapters are unknown. Beside replicas of other
    weights (`is_mixed`), a replica without a revision may run those."""
    case = sure()
    algo = case.status.specialists["algo"]
    lane_adapters = tuple((each, each) for each in wanted)
    lane = replace(algo.lane, revision="r1", adapters=lane_adapters, unfit=frozenset({"algo-1"}))
    status = replace(case.status, specialists={**case.status.specialists, "algo": replace(algo, lane=lane)})
    harness = PipelineHarness(replace(case, status=status))
    harness.asked()
    assert harness.plan is not None
    fleet: Any = SimpleNamespace(replica_sets=defaultdict(lambda: SimpleNamespace(is_mixed=is_mixed)))
    nothing: Any = None
    dispatcher = Dispatcher(ManualClock(), Random(0), fleet, nothing, nothing, nothing, nothing)
    target = dispatcher._target(case.ask, harness.plan.candidates[0])
    assert not target.is_callers, "the lane must determine the adapters"
    report = None if revision is None else SimpleNamespace(revision=revision)
    adapters = frozenset(() if revision is None else held)
    fits = target.may_answer(_any(SimpleNamespace(name=name, report=report, adapters=adapters)))
    is_same_model = revision == "r1" or (not revision and not is_mixed)
    assert fits == (name == "algo-0" and is_same_model and adapters.issuperset(wanted))
