"""Laws of the shadow copies that the router sends."""

from collections.abc import Callable, Mapping
from typing import Any

from octet.config.ensemble import ShadowConfig
from octet.v1 import inference_pb2 as wire
from router.quality.answers import ShadowHandle
from router.quality.shadow import ShadowDispatcher
from router.quality.shadow_copy import OrderedShadow, ShadowTask
from tests.simulation.laws.checker import LawChecker
from tests.simulation.laws.dispatch import KnobLevels, StatusHistory
from tests.simulation.script import ScriptedRequest


class ShadowLaws:
    def __init__(
        self,
        shadows: ShadowDispatcher,
        config: ShadowConfig,
        asks: Mapping[str, ScriptedRequest],
        status_history: StatusHistory,
        knob_levels: KnobLevels,
        checker: LawChecker,
        now: Callable[[], float],
    ) -> None:
        """`asks` maps request ids to scripted requests. The creation of this object is time 0 of the script."""
        self._shadows = shadows
        self._config = config
        self._asks = asks
        self._status_history = status_history
        self._knob_levels = knob_levels
        self._checker = checker
        self._now = now
        self._began = now()
        self._num_answered = 0
        self._num_counted = 0
        watched: Any = shadows
        send, answered = shadows.send, shadows.answered

        def watched_send(task: ShadowTask, ordered: OrderedShadow, primary: wire.Receipt) -> ShadowHandle | None:
            handle: ShadowHandle | None = send(task, ordered, primary)
            if handle is not None:
                self._sent(task, primary)
            return handle

        def watched_answered(intent: str) -> None:
            self._num_answered += 1
            answered(intent)

        watched.send, watched.answered = watched_send, watched_answered

    def at_rest(self) -> None:
        tally = self._shadows.counters
        is_known = tally.ordered == tally.answered + tally.shed + tally.failed
        self._checker.require(is_known, "every shadow's end is counted", tally)
        self._checker.seen["shadow answered"] += tally.answered
        self._checker.seen["shadow shed"] += tally.shed
        self._checker.seen["shadow failed"] += tally.failed

    def _sent(self, task: ShadowTask, primary: wire.Receipt) -> None:
        require, order = self._checker.require, task.order
        name, ask = primary.request_id, self._asks[primary.request_id]
        specialist = order.candidate.specialist
        require(specialist != primary.specialist, "no lane shadows itself", name, specialist)
        require(not ask.adapters, "a request that names adapters has no shadow", name)
        law = "a request that forces specialists is shadowed to no other"
        require(not ask.force or specialist in ask.force[:2], law, name, specialist)
        self._has_a_reason(task, primary)
        self._stays_in_bounds(task)
        self._checker.see(f"shadow: {order.why}")

    def _has_a_reason(self, task: ShadowTask, primary: wire.Receipt) -> None:
        moments = self._status_history.between(self._began + self._asks[primary.request_id].at, self._now())
        decision, order = primary.decision, task.order
        if order.why == "demoted":
            may = any(order.candidate.specialist not in moment.serves for moment in moments)
        else:
            raised = [moment.raised(decision.primary) for moment in moments]
            unsure = decision.HasField("confidence") and any(
                decision.confidence < self._knob_levels.at(steps)[0] for steps in raised
            )
            may = unsure and order.candidate.specialist != decision.primary
        self._checker.require(may, "a shadow has a reason", primary.request_id, order)

    def _stays_in_bounds(self, task: ShadowTask) -> None:
        self._num_counted += task.order.why == "low_confidence"
        most = 1 + self._config.budget * self._num_answered + 1e-6
        self._checker.require(self._num_counted <= most, "shadows stay within their budget", self._num_counted, most)
        at_once = self._shadows.num_inflight
        self._checker.require(
            at_once <= self._config.max_inflight, "shadows in flight stay within their limit", at_once
        )
