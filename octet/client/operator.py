"""The operator's client: inspect and change a running ensemble."""

import getpass
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from octet.client import records
from octet.client.base import DEFAULT_ADDRESS, LOOKUP_TIMEOUT_S, SyncClientBase, rpc
from octet.client.channel import PathName
from octet.client.errors import OctetError, closed_error, is_unexplained_cancel
from octet.client.receipts import Receipt
from octet.client.request import build_message, check_timeout
from octet.client.wire_record import WireRecord
from octet.v1 import operator_pb2 as wire

_RecordT = TypeVar("_RecordT", bound=WireRecord)
LOAD_TIMEOUT_S = 120.0  # for calls that make every replica read an adapter
LIST_TIMEOUT_S = 120.0  # for calls that stream all stored entries
DEFAULT_REASON = "by hand"
_NOT_DELIVERED = ("failed to connect", "lookup failed")  # gRPC's details for a call that reached no server


def default_operator_name() -> str:
    """Return USER@MACHINE, for the user and the machine that run this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


class RequestExplanation(WireRecord):
    """All stored facts about one request."""

    receipt: Receipt
    comparison: records.Comparison | None
    """Comparison with the shadow's answer; None without a shadow, or until the comparison is complete."""
    judged: str
    """The later verdict: passed, failed, skipped (a cut answer that could not be judged), or empty if not evaluated."""
    judged_kind: str  # what gave it: verifier, cut (the verifier, on what is there), degenerate (the check of its text)
    judged_why: str  # why a degenerate answer failed
    changes: tuple[records.AuditEntry, ...]
    """Changes to its specialist, knobs and replicas in the hour before the request and during it, newest first."""


class Operator(SyncClientBase):
    """The operator's client, which threads may share: `with Operator("localhost:50051", who="ann") as operator: ...`.
    Every change has an author and a reason and is stored before the call returns. A failed call raises a subclass of
    OctetError. Lookups are retried if the router does not respond; changes and streams never are."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        who: str | None = None,
        timeout: float | None = None,
        ca: PathName | None = None,
        certificate: PathName | None = None,
        key: PathName | None = None,
        api_key: str | None = None,
        insecure: bool = False,
        max_retries: int = 2,
        keepalive: float | None = None,
    ) -> None:
        """`who` is the author of all changes, by default USER@MACHINE. `timeout` applies to every call, in seconds. The
        other options are those of `Client`."""
        self.who = default_operator_name() if who is None else who
        self._timeout = check_timeout(timeout)
        tls = {"ca": ca, "certificate": certificate, "key": key}
        super().__init__(
            address, **tls, api_key=api_key, insecure=insecure, max_retries=max_retries, keepalive=keepalive
        )

    def breakers(self) -> records.BreakerList:
        return self._read(records.BreakerList, "ListBreakers")

    def hold_breaker(self, specialist: str, hold: str, *, why: str) -> records.BreakerInfo:
        """Hold the breaker "open", so that the specialist gets only shadow traffic, or "closed", so that it serves."""
        return self._change(records.BreakerInfo, "HoldBreaker", why, specialist=specialist, hold=hold)

    def release_breaker(self, specialist: str, *, why: str = DEFAULT_REASON) -> records.BreakerInfo:
        return self._change(records.BreakerInfo, "ReleaseBreaker", why, specialist=specialist)

    def relearn_floor(self, specialist: str, *, why: str = DEFAULT_REASON) -> records.BreakerInfo:
        """Forget the specialist's learned floors. New ones are learned from the answers judged from now on."""
        return self._change(records.BreakerInfo, "RelearnFloor", why, specialist=specialist)

    def knobs(self) -> tuple[records.KnobInfo, ...]:
        return self._list(records.KnobInfo, "ListKnobs")

    def set_knob(self, name: str, value: float, *, why: str = DEFAULT_REASON) -> records.KnobInfo:
        """Set a knob until it is released. `name` is INTENT.shadow_threshold or INTENT.priority_floor, with
        INTENT/SPECIALIST instead of INTENT for a single specialist."""
        return self._change(records.KnobInfo, "SetKnob", why, name=name, value=value)

    def release_knob(self, name: str, *, why: str = DEFAULT_REASON) -> records.KnobInfo:
        return self._change(records.KnobInfo, "ReleaseKnob", why, name=name)

    def lanes(self, specialist: str = "") -> tuple[records.LaneInfo, ...]:
        return self._list(records.LaneInfo, "ListLanes", specialist=specialist)

    def load_adapter(
        self, specialist: str, path: str, *, name: str = "", why: str = DEFAULT_REASON
    ) -> records.LaneInfo:
        """Load an adapter as a candidate (shadow traffic only). `path` is below the replicas' adapter root."""
        return self._change(records.LaneInfo, "LoadAdapter", why, specialist=specialist, path=path, name=name)

    def refresh(self, specialist: str, model: str, *, digest: str = "", why: str = DEFAULT_REASON) -> records.LaneInfo:
        """Start other weights beside the running ones, and return their lane: a candidate, or `starting` if they need
        longer. `model` is an absolute path on the replicas' machine or hf:ORG/NAME; its content must have `digest`."""
        fields = {"specialist": specialist, "model": model, "digest": digest}
        return self._change(records.LaneInfo, "RefreshModel", why, **fields)

    def promote(self, specialist: str, name: str = "", *, why: str = DEFAULT_REASON) -> records.LaneInfo:
        """Make the candidate the serving lane, and return it. If `name` is given, the candidate must have that name."""
        return self._change(records.LaneInfo, "PromoteLane", why, specialist=specialist, name=name)

    def roll_back(self, specialist: str, *, why: str = DEFAULT_REASON) -> records.LaneInfo:
        """Drop the candidate; if there is none, restore the previous lane. Return the lane that serves now."""
        return self._change(records.LaneInfo, "RollBackLane", why, specialist=specialist)

    def replicas(self) -> tuple[records.ReplicaInfo, ...]:
        return self._list(records.ReplicaInfo, "ListReplicas")

    def drain(self, replica: str, *, why: str = DEFAULT_REASON) -> records.ReplicaInfo:
        """Send no new requests to the replica, which finishes its running requests."""
        return self._change(records.ReplicaInfo, "DrainReplica", why, replica=replica)

    def undrain(self, replica: str, *, why: str = DEFAULT_REASON) -> records.ReplicaInfo:
        return self._change(records.ReplicaInfo, "UndrainReplica", why, replica=replica)

    def shadow_report(self, last: float = 0.0) -> records.ShadowReport:
        """Report on the last `last` seconds; 0 covers all stored comparisons."""
        return self._read(records.ShadowReport, "ShadowReport", last_seconds=last)

    def comparisons(self, last: float = 0.0) -> Iterator[records.Comparison]:
        """Yield the comparisons of the last `last` seconds, oldest first; 0 covers all stored comparisons."""
        return self._stream(records.Comparison, "ListComparisons", last_seconds=last)

    def audit(self, subject: str = "", *, most: int = 100) -> Iterator[records.AuditEntry]:
        """Yield entries of the audit log, newest first."""
        return self._stream(records.AuditEntry, "ListAudit", subject=subject, most=most)

    def events(self) -> Iterator[records.OperatorEvent]:
        """Yield new events; raise DeadlineExceeded after the client's timeout. Closing the iterator ends the call."""
        return self._stream(records.OperatorEvent, "WatchEvents")

    def slo(self, specialist: str = "") -> tuple[records.Slo, ...]:
        """Return the service levels of one specialist, or of all."""
        return self._list(records.Slo, "GetSlo", specialist=specialist)

    def overview(self) -> records.Overview:
        return self._read(records.Overview, "GetOverview")

    def watch_overview(self) -> Iterator[records.Overview]:
        """Yield one overview immediately, then one per change and at least one every five seconds. Raises
        DeadlineExceeded after the client's timeout, if any. Closing the iterator ends the call."""
        return self._stream(records.Overview, "WatchOverview")

    def history(self, last: float = 0.0) -> records.OverviewHistory:
        """Return the history of the last `last` seconds; 0 means the whole history."""
        return self._read(records.OverviewHistory, "GetHistory", last_seconds=last)

    def receipts(
        self, specialist: str = "", *, outcome: str = "", most: int = 50, before_unix_ms: int = 0, tenant: str = ""
    ) -> Iterator[Receipt]:
        """Yield receipts, newest first. `outcome` is answered, refused, failed or cancelled; without `tenant`, receipts
        of all tenants are listed."""
        filters = {"specialist": specialist, "outcome": outcome, "before_unix_ms": before_unix_ms, "tenant": tenant}
        return self._stream(Receipt, "ListReceipts", most=most, **filters)

    def explain(self, request_id: str, *, tenant: str = "") -> RequestExplanation:
        """Return all stored facts about one request. Raises NotFound."""
        return self._read(RequestExplanation, "Explain", request_id=request_id, tenant=tenant)

    def _read(self, record: type[_RecordT], name: str, /, **values: Any) -> _RecordT:
        return record.from_wire(self._call_operator(name, values))

    def _list(self, record: type[_RecordT], name: str, /, **values: Any) -> tuple[_RecordT, ...]:
        """Make a call whose response has a single repeated field, and return the records in it."""
        response = self._call_operator(name, values)
        (field,) = response.DESCRIPTOR.fields
        return tuple(map(record.from_wire, getattr(response, field.name)))

    def _change(self, record: type[_RecordT], name: str, why: str, /, **values: Any) -> _RecordT:
        """Make a change without retries, because a change whose response was lost may have been made."""
        values["change"] = build_message(wire.Change, {"who": self.who, "why": why})
        timeout = LOAD_TIMEOUT_S if record is records.LaneInfo else LOOKUP_TIMEOUT_S
        return record.from_wire(self._call_operator(name, values, timeout, is_change=True))

    def _call_operator(
        self, name: str, values: Mapping[str, Any], timeout: float = LOOKUP_TIMEOUT_S, *, is_change: bool = False
    ) -> Any:
        message = build_message(rpc(f"Operator.{name}").request, values)
        return self._call(f"Operator.{name}", self._repeat(message, self._timeout or timeout, is_change=is_change))

    def _stream(self, record: type[_RecordT], name: str, /, **values: Any) -> Iterator[_RecordT]:
        """Start a stream. The values are checked now, not when the iterator is first used."""
        message = build_message(rpc(f"Operator.{name}").request, values)
        timeout = self._timeout or (LIST_TIMEOUT_S if name.startswith("List") else None)
        return self._read_stream(record, self._method(f"Operator.{name}"), message, timeout)

    def _read_stream(
        self, record: type[_RecordT], method: Callable[..., Any], message: Message, timeout: float | None
    ) -> Iterator[_RecordT]:
        call = method(message, timeout=timeout)
        begun = False
        try:
            for received in call:
                begun = True
                yield record.from_wire(received)
        except grpc.RpcError as error:
            raise self._error(error, begun=begun) from None
        finally:
            call.cancel()

    def _error(self, error: Any, *, is_change: bool = False, request_id: str = "", begun: bool = False) -> OctetError:
        problem = super()._error(error, request_id=request_id, begun=begun)
        if problem.reason:
            return problem
        if is_unexplained_cancel(problem) and self._is_closed():
            problem = closed_error("")
        if problem.code == grpc.StatusCode.UNIMPLEMENTED:
            message = f"the server at {self.address} has no octet.v1.Operator: it is not a router, or it is outdated"
            return type(problem)(message, code=problem.code)
        details = error.details() or ""
        if is_change and not any(text in details for text in _NOT_DELIVERED):
            message = f"{problem}; it is unknown whether the change was made: to see, run octet audit"
            return type(problem)(message, code=problem.code, reason=problem.reason)
        return problem
