"""What is counted of a request however it ends, and whom its copy may be shown."""

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
from router.quality.shadow_copy import ShadowTask
from router.receipts import ReceiptDraft
from router.request import Request
from router.routing.dispatch_plan import DispatchPlan, FleetStatus, IntentKnobs
from router.routing.policy import RoutingPolicy
from router.serving import RequestPipeline
from tests.router.routing.ensembles import ENSEMBLE
from tests.router.routing.standings import Meeting, found, met, never

QUIET = replace(
    ENSEMBLE,
    shadow=ShadowConfig(fresh_rate=0.0, demoted_rate=0.0),
    correctness=CorrectnessConfig(sample_rate=0.0, fresh_sample_rate=0.0),
)
REFUSED = Refusal(error_pb2.ERROR_REASON_NO_REPLICA, "nobody is there")


class Room:
    """An answering whose dispatcher does as it is told; all that it counts is noted."""

    def __init__(self, meeting: Meeting, *, full: tuple[str, ...] = (), accepted: bool = False, fails: bool = False):
        self.meeting = meeting
        self.counted: Counter[str] = Counter()
        self._fate = full, accepted, fails
        control = SimpleNamespace(
            fleet_status=meeting.standing,
            record_accepted=lambda specialist, intent: self.counted.update([f"served {specialist}"]),
            record_refused=lambda specialist, intent: self.counted.update([f"refused {specialist}"]),
        )
        shadows = SimpleNamespace(answered=lambda: self.counted.update(["answered"]))
        nobody: Any = None
        self._answering = RequestPipeline(
            nobody,
            _any(control),
            _any(SimpleNamespace(answer=self._dispatched, quarantine=Quarantine(ManualClock(), lambda: 1.0))),
            nobody,
            _any(shadows),
            nobody,
            ManualClock(),
            never,
        )
        self.plan: DispatchPlan | None = None

    async def decide(self, ask: object, classifier: object) -> object:
        return self.meeting.decision

    async def _dispatched(self, request: Request, plan: DispatchPlan, _: object) -> None:
        full, request.was_accepted, fails = self._fate
        self.plan = plan
        request.full.update(full)
        if fails:
            raise REFUSED

    def asked(self) -> None:
        ask = self.meeting.ask

        async def finish() -> wire.Receipt:
            return wire.Receipt()

        nobody: Any = None
        ask.draft = ReceiptDraft(ask, 0.0, 0)
        ask.policy = RoutingPolicy(self.meeting.ensemble)
        _any(ask.policy).classify_and_decide = self.decide
        asyncio.run(self._answering.answer(ask, nobody, finish))


def _any(part: object) -> Any:
    return part


def sure() -> Meeting:
    return met(QUIET, sure={"algo": 0.9, "stl": 0.05})


@pytest.mark.parametrize(
    ("fate", "counted"),
    [
        ({"accepted": True}, {"served algo": 1, "answered": 1}),
        ({"accepted": True, "full": ("algo",)}, {"refused algo": 1, "answered": 1}),
        ({"accepted": True, "full": ("stl",)}, {"served algo": 1, "answered": 1}),
        ({"accepted": True, "fails": True}, {"served algo": 1}),
        ({"full": ("algo",), "fails": True}, {"refused algo": 1}),
        ({"full": ("algo", "stl"), "fails": True}, {"refused algo": 1}),
        ({"fails": True}, {}),
    ],
)
def test_first_specialist_is_counted_once_and_only_an_answer_earns_a_shadow(
    fate: dict[str, Any], counted: dict[str, int]
) -> None:
    """One that nobody took, for whatever reason but room, says nothing about demand."""
    room = Room(sure(), **fate)
    if fate.get("fails"):
        with pytest.raises(Refusal, match="nobody is there"):
            room.asked()
    else:
        room.asked()
    assert room.counted == counted


def test_a_request_below_its_floor_is_no_demand() -> None:
    meeting = sure()
    standing = replace(meeting.standing, knob_overrides={("unspecified", "algo"): IntentKnobs(0.0, 9)})
    room = Room(replace(meeting, standing=standing), accepted=True)
    with pytest.raises(Refusal):
        room.asked()
    assert not room.counted


def test_a_copy_is_shown_to_no_replica_that_is_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = met(QUIET, found(FleetStatus.initial(QUIET)), sure={"algo": 0.6, "stl": 0.3})
    knobs = {("unspecified", "algo"): IntentKnobs(1.0, 0)}
    standing = replace(meeting.standing, knob_overrides=knobs, cordoned=frozenset({"stl-1"}))
    errands: list[ShadowTask] = []

    class Noted:
        def __init__(self, *given: Any) -> None:
            errands.append(given[-1])
            self.write = None

        def __enter__(self) -> "Noted":
            return self

        def __exit__(self, *_: object) -> None: ...

        def finished(self, *_: object) -> None: ...

    monkeypatch.setattr("router.serving.AnswerTap", Noted)
    Room(replace(meeting, standing=standing), accepted=True).asked()
    (errand,) = errands
    assert errand.order.why == "low_confidence" and errand.order.candidate.specialist == "stl"
    replicas: list[Any] = [SimpleNamespace(name=f"stl-{number}") for number in range(3)]
    assert [errand.may_answer(replica) for replica in replicas] == [True, False, True]


@pytest.mark.parametrize("held", [(), ("fast",), ("fast", "small", "more")])
@pytest.mark.parametrize("revision", [None, "", "r1", "r2"])
@pytest.mark.parametrize("name", ["algo-0", "algo-1"])
@pytest.mark.parametrize("wanted", [(), ("fast", "small")])
def test_a_request_goes_to_no_replica_that_is_shut_of_another_model_or_without_its_adapters(
    name: str, revision: str | None, held: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    """Without a revision it has not reported yet: then it holds nothing that is known of."""
    meeting = sure()
    algo = meeting.standing.specialists["algo"]
    lane_adapters = tuple((each, each) for each in wanted)
    lane = replace(algo.lane, revision="r1", adapters=lane_adapters, unfit=frozenset({"algo-1"}))
    standing = replace(meeting.standing, specialists={**meeting.standing.specialists, "algo": replace(algo, lane=lane)})
    room = Room(replace(meeting, standing=standing), accepted=True)
    room.asked()
    assert room.plan is not None
    fleet: Any = SimpleNamespace(replica_sets=defaultdict(object))
    nothing: Any = None
    dispatcher = Dispatcher(ManualClock(), Random(0), fleet, nothing, nothing, nothing)
    target = dispatcher._target(meeting.ask, room.plan.candidates[0])
    assert not target.is_callers, "the adapters are the lane's"
    report = None if revision is None else SimpleNamespace(revision=revision)
    adapters = frozenset(() if revision is None else held)
    fits = target.may_answer(_any(SimpleNamespace(name=name, report=report, adapters=adapters)))
    assert fits == (name == "algo-0" and revision != "r2" and adapters.issuperset(wanted))
