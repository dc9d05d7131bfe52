"""What every caller may rely on, whatever happens behind the router."""

from collections.abc import Sequence

import grpc

from octet.config.ensemble import Ensemble
from octet.telemetry.outcomes import reason_name
from octet.v1 import error_pb2
from router.dispatch.attempts import DEADLINE_SLACK
from router.dispatch.replicas.fleet import WATCH_INTERVAL
from specialist.engines.sim.engine import SimModel
from tests.simulation.ensemble import CallRecord, golden
from tests.simulation.laws.checker import LawChecker

_SLACK = DEADLINE_SLACK + 2 * WATCH_INTERVAL
_CANCEL_SECONDS = 0.5
_UNSAFE = {
    error_pb2.ERROR_REASON_REPLICA_LOST,
    error_pb2.ERROR_REASON_ENGINE_FAILED,
    error_pb2.ERROR_REASON_REPLICA_FAILED,
}
_MOST_UNSAFE = 2
"""Attempts that may be lost with their replica. The request may be the cause, so it is retried only once."""
_MOST_RETRY_AFTER_MS = 45_000


class RequestLaws:
    def __init__(self, ensemble: Ensemble, context: int, model: SimModel, checker: LawChecker) -> None:
        self._ensemble = ensemble
        self._context = context
        self._model = model
        self._checker = checker

    def ended(self, record: CallRecord) -> None:
        """Check how the request ended: exactly once, in time, and with a correct answer or a valid refusal."""
        require, ask = self._checker.require, record.ask
        name = ask.request_id
        code = record.code
        if code is None or record.ended is None:
            require(False, "every request ends", name)
            return
        require(record.num_ends == 1, "a request has exactly one terminal state", name, record.num_ends)
        own = ask.pause * (len(record.tokens) + len(record.routed) + 1)
        require(record.ended - record.began <= ask.timeout + _SLACK + own, "no request waits beyond its deadline", name)
        if ask.first_timeout is not None and not record.tokens:
            patience = ask.first_timeout + _SLACK + own
            require(record.ended - record.began <= patience, "no request waits beyond its first-token deadline", name)
        if record.cancelled_at is not None and ask.cancel_how != "leave":
            require(record.ended - record.cancelled_at <= _CANCEL_SECONDS + own, "a cancel ends a request", name)
        require(not record.is_out_of_order, "no replica is tried after the first token", name)
        self._said(record)
        if code is grpc.StatusCode.OK:
            self._answered(record)
        elif not record.cancelled:
            self._refused(record)
        if record.receipt is not None:
            self._receipt(record)
        reason = "" if record.error is None else reason_name(record.error.reason)
        self._checker.note(f"{name} {code.name} {reason} {len(record.tokens)}")
        self._checker.see(f"ended: {reason or code.name.lower()}")

    def kept_promises(self, records: Sequence[CallRecord]) -> None:
        """Check that every admitted request met its deadline, or was preempted by one of higher priority. Call this
        only for scripts without faults."""
        for record in records:
            name, error = record.ask.request_id, record.error
            reason = error_pb2.ERROR_REASON_UNSPECIFIED if error is None else error.reason
            late = record.code is grpc.StatusCode.DEADLINE_EXCEEDED or reason == error_pb2.ERROR_REASON_DEADLINE
            if not record.routed or record.cancelled:
                continue
            shed = reason == error_pb2.ERROR_REASON_SHED
            if late or shed:
                what = "an admitted request is in time, or is preempted by a higher priority"
                self._checker.require(_above(record, records), what, name, error)

    def _said(self, record: CallRecord) -> None:
        """Check that the tokens so far are correct and come from a specialist that may answer."""
        require = self._checker.require
        if not record.routed:
            require(not record.tokens, "no token comes before a replica has accepted", record.ask.request_id)
            return
        specialist = record.routed[-1].specialist
        right = golden(record.ask, specialist, self._context, self._model)[: len(record.tokens)]
        require(
            tuple(record.tokens) == right,
            "the tokens are correct",
            record.ask.request_id,
            specialist,
            record.tokens,
            right,
        )
        require(
            specialist in self._may_answer(record),
            "only a chosen specialist answers",
            record.ask.request_id,
            specialist,
        )

    def _may_answer(self, record: CallRecord) -> set[str]:
        decision, names = record.routed[-1].decision, record.ask.force
        found = {decision.primary, decision.second_choice} if not names else set(names[:2])
        if not names:
            found |= {self._ensemble.specialist(name).fallback or "" for name in (decision.primary,) if name}
        return found | ({self._ensemble.specialist(names[0]).fallback or ""} if len(names) == 1 else set())

    def _answered(self, record: CallRecord) -> None:
        require, name = self._checker.require, record.ask.request_id
        receipt = record.receipt
        if receipt is None or not record.routed:
            require(False, "a whole answer has a receipt", name)
            return
        right = golden(record.ask, record.routed[-1].specialist, self._context, self._model)
        require(tuple(record.tokens) == right, "the answer is complete", name, record.tokens, right)
        require(receipt.specialist == record.routed[-1].specialist, "the replica that accepted has answered", name)
        require(not receipt.HasField("error"), "a whole answer has no error", name, receipt.error)

    def _refused(self, record: CallRecord) -> None:
        """Check a refusal. It must have a reason, unless the request's deadline passed, and its retry-after must be
        within bounds."""
        require, error, name = self._checker.require, record.error, record.ask.request_id
        if error is None:
            late = record.code is grpc.StatusCode.DEADLINE_EXCEEDED
            require(late, "every refusal has a reason", name, record.code)
            return
        require(error.reason != error_pb2.ERROR_REASON_UNSPECIFIED, "a refusal has a reason", name, error)
        require(error.reason != error_pb2.ERROR_REASON_INTERNAL, "the router does not fail by itself", name, error)
        if error.HasField("retry_after_ms"):
            worth = 0 < error.retry_after_ms <= _MOST_RETRY_AFTER_MS
            require(worth, "a retry-after is within its bounds", name, error.retry_after_ms)

    def _receipt(self, record: CallRecord) -> None:
        require, receipt, name = self._checker.require, record.receipt, record.ask.request_id
        if receipt is None:
            return
        require(receipt.request_id == name, "the receipt belongs to the request", name, receipt.request_id)
        attempts = receipt.attempts
        if len(attempts) > 1:
            self._checker.see("retried")
        if receipt.between.spilled:
            self._checker.see("spilled")
        if receipt.between.instead_of:
            self._checker.see("stood in")
        num_unsafe = sum(attempt.reason in _UNSAFE for attempt in attempts)
        require(num_unsafe <= _MOST_UNSAFE, "a request that may be poisonous is tried at most twice", name, num_unsafe)


def _above(record: CallRecord, records: Sequence[CallRecord]) -> bool:
    """Return whether a request of higher priority was at the same specialist at the same time."""
    theirs = {routed.specialist for routed in record.routed}
    return any(
        other.ask.priority > record.ask.priority
        and any(routed.specialist in theirs for routed in other.routed)
        and other.began <= (record.ended or 0.0)
        and record.began <= (other.ended or 0.0)
        for other in records
    )
