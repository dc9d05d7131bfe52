"""What every caller may rely on, whatever happens behind the router."""

from collections.abc import Sequence

import grpc

from octet.config.ensemble import Ensemble
from octet.telemetry.outcomes import reason_name
from octet.v1 import error_pb2
from router.dispatch.attempts import DEADLINE_SLACK
from router.dispatch.replicas.fleet import WATCH_INTERVAL
from specialist.engines.sim.engine import SimModel
from tests.simulation.ensemble import Told, golden
from tests.simulation.laws.checker import Court

_SLACK = DEADLINE_SLACK + 2 * WATCH_INTERVAL
_CANCEL_SECONDS = 0.5
_UNSAFE = {
    error_pb2.ERROR_REASON_REPLICA_LOST,
    error_pb2.ERROR_REASON_ENGINE_FAILED,
    error_pb2.ERROR_REASON_REPLICA_FAILED,
}
_MOST_UNSAFE = 2
"""A request that is lost with its replica may be why: it is tried once more, and no more."""
_MOST_RETRY_AFTER_MS = 45_000


class RequestLaws:
    def __init__(self, ensemble: Ensemble, context: int, model: SimModel, court: Court) -> None:
        self._ensemble = ensemble
        self._context = context
        self._model = model
        self._court = court

    def ended(self, told: Told) -> None:
        """Exactly once, and in time."""
        require, ask = self._court.require, told.ask
        name = ask.request_id
        code = told.code
        if code is None or told.ended is None:
            require(False, "every request ends", name)
            return
        require(told.num_ends == 1, "exactly one terminal state a request", name, told.num_ends)
        own = ask.pause * (len(told.tokens) + len(told.routed) + 1)
        require(told.ended - told.began <= ask.timeout + _SLACK + own, "no request waits beyond its deadline", name)
        if ask.first_timeout is not None and not told.tokens:
            patience = ask.first_timeout + _SLACK + own
            require(told.ended - told.began <= patience, "no request waits beyond its first-token deadline", name)
        if told.cancelled_at is not None and ask.cancel_how != "leave":
            require(told.ended - told.cancelled_at <= _CANCEL_SECONDS + own, "a cancel ends a request", name)
        require(not told.is_out_of_order, "no replica is tried after the first token", name)
        self._said(told)
        if code is grpc.StatusCode.OK:
            self._answered(told)
        elif not told.cancelled:
            self._refused(told)
        if told.receipt is not None:
            self._receipt(told)
        reason = "" if told.error is None else reason_name(told.error.reason)
        self._court.note(f"{name} {code.name} {reason} {len(told.tokens)}")
        self._court.see(f"ended: {reason or code.name.lower()}")

    def kept_promises(self, all_told: Sequence[Told]) -> None:
        """Where nothing goes wrong, whoever was let in is answered in time; or gives way, to somebody higher."""
        for told in all_told:
            name, error = told.ask.request_id, told.error
            reason = error_pb2.ERROR_REASON_UNSPECIFIED if error is None else error.reason
            late = told.code is grpc.StatusCode.DEADLINE_EXCEEDED or reason == error_pb2.ERROR_REASON_DEADLINE
            if not told.routed or told.cancelled:
                continue
            shed = reason == error_pb2.ERROR_REASON_SHED
            if late or shed:
                what = "an admitted request is in time, or is preempted by a higher priority"
                self._court.require(_above(told, all_told), what, name, error)

    def _said(self, told: Told) -> None:
        """No token is lost, repeated, or from another lane."""
        require = self._court.require
        if not told.routed:
            require(not told.tokens, "no token comes before a replica has accepted", told.ask.request_id)
            return
        specialist = told.routed[-1].specialist
        right = golden(told.ask, specialist, self._context, self._model)[: len(told.tokens)]
        require(tuple(told.tokens) == right, "the right answer", told.ask.request_id, specialist, told.tokens, right)
        require(specialist in self._may_answer(told), "a chosen specialist answers", told.ask.request_id, specialist)

    def _may_answer(self, told: Told) -> set[str]:
        decision, names = told.routed[-1].decision, told.ask.force
        found = {decision.primary, decision.second_choice} if not names else set(names[:2])
        if not names:
            found |= {self._ensemble.specialist(name).fallback or "" for name in (decision.primary,) if name}
        return found | ({self._ensemble.specialist(names[0]).fallback or ""} if len(names) == 1 else set())

    def _answered(self, told: Told) -> None:
        require, name = self._court.require, told.ask.request_id
        receipt = told.receipt
        if receipt is None or not told.routed:
            require(False, "a whole answer has a receipt", name)
            return
        right = golden(told.ask, told.routed[-1].specialist, self._context, self._model)
        require(tuple(told.tokens) == right, "the whole answer", name, told.tokens, right)
        require(receipt.specialist == told.routed[-1].specialist, "the replica that accepted has answered", name)
        require(not receipt.HasField("error"), "a whole answer has no error", name, receipt.error)

    def _refused(self, told: Told) -> None:
        """With a reason, and when to come back where that is known."""
        require, error, name = self._court.require, told.error, told.ask.request_id
        if error is None:
            late = told.code is grpc.StatusCode.DEADLINE_EXCEEDED
            require(late, "every refusal has a reason", name, told.code)
            return
        require(error.reason != error_pb2.ERROR_REASON_UNSPECIFIED, "a refusal has a reason", name, error)
        require(error.reason != error_pb2.ERROR_REASON_INTERNAL, "the router does not fail by itself", name, error)
        if error.HasField("retry_after_ms"):
            worth = 0 < error.retry_after_ms <= _MOST_RETRY_AFTER_MS
            require(worth, "a retry-after is worth something", name, error.retry_after_ms)

    def _receipt(self, told: Told) -> None:
        require, receipt, name = self._court.require, told.receipt, told.ask.request_id
        if receipt is None:
            return
        require(receipt.request_id == name, "one's own receipt", name, receipt.request_id)
        attempts = receipt.attempts
        if len(attempts) > 1:
            self._court.see("retried")
        if receipt.between.spilled:
            self._court.see("spilled")
        if receipt.between.instead_of:
            self._court.see("stood in")
        num_unsafe = sum(attempt.reason in _UNSAFE for attempt in attempts)
        require(num_unsafe <= _MOST_UNSAFE, "what may be poison is tried twice at most", name, num_unsafe)


def _above(told: Told, all_told: Sequence[Told]) -> bool:
    """Somebody of higher priority was there with it, at the same specialist."""
    theirs = {routed.specialist for routed in told.routed}
    return any(
        other.ask.priority > told.ask.priority
        and any(routed.specialist in theirs for routed in other.routed)
        and other.began <= (told.ended or 0.0)
        and told.began <= (other.ended or 0.0)
        for other in all_told
    )
