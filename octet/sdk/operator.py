"""See and change what stands between router and replicas, while everything serves."""

import getpass
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import Message

from octet.sdk.caller import DEFAULT_ADDRESS, LOOKUP_S
from octet.sdk.channel import PathName, serialize
from octet.sdk.errors import OctetError
from octet.sdk.faults import closed, invalid, is_unsaid_cancel, typed
from octet.sdk.history import History
from octet.sdk.operating import (
    AuditEntry,
    BreakerInfo,
    Breakers,
    Comparison,
    KnobInfo,
    LaneInfo,
    OperatorEvent,
    ReplicaInfo,
    ShadowCounts,
    ShadowReport,
    ShadowRow,
)
from octet.sdk.overview import Overview
from octet.sdk.receipt import Receipt
from octet.sdk.request import check_timeout
from octet.sdk.retry import Effort, RetryPolicy
from octet.sdk.slo import Slo
from octet.sdk.story import Story
from octet.sdk.sync_caller import SyncCaller, unless_closed
from octet.v1 import operator_pb2 as wire

SERVICE = "/octet.v1.Operator/"
LOAD_S = 120.0
"""For a call that has every replica read an adapter."""
LIST_S = 120.0
"""For all that is kept, as it comes."""
BY_HAND = "by hand"
"""Why, where nobody says."""
_NEVER_AGAIN = RetryPolicy(max_retries=0)
"""A change whose answer was lost may have been made."""
_NEVER_ARRIVED = ("failed to connect", "lookup failed")
"""gRPC's words for a call that reached nobody."""


def own_name() -> str:
    """Whoever runs this, and where."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a process without a name, as in a container
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


class Operator(SyncCaller):
    """Safe to share between threads. `with Operator("localhost:50051", who="ann") as operator: ...`.

    Every change says who and why, and is written down before the call returns. Every call raises OctetError, in one of
    its kinds. A single answer is asked for again where nothing answers; a change never is.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        who: str | None = None,
        ca: PathName | None = None,
        certificate: PathName | None = None,
        key: PathName | None = None,
        api_key: str | None = None,
        insecure: bool = False,
        timeout: float | None = None,
        max_retries: int = 2,
        keepalive: float | None = None,
    ) -> None:
        """`who`: by default the user's name and machine. `timeout`: seconds for every call."""
        self.who = own_name() if who is None else who
        self._timeout = check_timeout(timeout)
        super().__init__(
            address,
            ca=ca,
            certificate=certificate,
            key=key,
            api_key=api_key,
            insecure=insecure,
            max_retries=max_retries,
            keepalive=keepalive,
        )

    def breakers(self) -> Breakers:
        response = self._look("ListBreakers", wire.ListBreakersRequest(), wire.ListBreakersResponse)
        return Breakers(tuple(BreakerInfo.from_wire(each) for each in response.breakers), response.store_trouble)

    def hold_breaker(self, specialist: str, hold: str, *, why: str) -> BreakerInfo:
        """`hold`: "open", it only shadows; "closed", it serves whatever its answers are like. Until released."""
        ask = _message(wire.HoldBreakerRequest, specialist=specialist, hold=hold, change=self._change(why))
        return BreakerInfo.from_wire(self._make("HoldBreaker", ask, wire.BreakerInfo))

    def release_breaker(self, specialist: str, *, why: str = BY_HAND) -> BreakerInfo:
        ask = _message(wire.ReleaseBreakerRequest, specialist=specialist, change=self._change(why))
        return BreakerInfo.from_wire(self._make("ReleaseBreaker", ask, wire.BreakerInfo))

    def knobs(self) -> tuple[KnobInfo, ...]:
        response = self._look("ListKnobs", wire.ListKnobsRequest(), wire.ListKnobsResponse)
        return tuple(KnobInfo.from_wire(each) for each in response.knobs)

    def set_knob(self, name: str, value: float, *, why: str = BY_HAND) -> KnobInfo:
        """`name`: INTENT.shadow_threshold or INTENT.priority_floor, or either of INTENT/SPECIALIST."""
        ask = _message(wire.SetKnobRequest, name=name, value=value, change=self._change(why))
        return KnobInfo.from_wire(self._make("SetKnob", ask, wire.KnobInfo))

    def release_knob(self, name: str, *, why: str = BY_HAND) -> KnobInfo:
        ask = _message(wire.ReleaseKnobRequest, name=name, change=self._change(why))
        return KnobInfo.from_wire(self._make("ReleaseKnob", ask, wire.KnobInfo))

    def lanes(self, specialist: str = "") -> tuple[LaneInfo, ...]:
        ask = _message(wire.ListLanesRequest, specialist=specialist)
        return tuple(LaneInfo.from_wire(each) for each in self._look("ListLanes", ask, wire.ListLanesResponse).lanes)

    def load_adapter(self, specialist: str, path: str, *, name: str = "", why: str = BY_HAND) -> LaneInfo:
        """The candidate it begins as: it shadows, and answers nobody. `path` is below the replicas' adapter root."""
        ask = _message(wire.LoadLaneRequest, specialist=specialist, path=path, name=name, change=self._change(why))
        return LaneInfo.from_wire(self._make("LoadAdapter", ask, wire.LaneInfo, LOAD_S))

    def promote(self, specialist: str, name: str = "", *, why: str = BY_HAND) -> LaneInfo:
        """The lane that serves from now on. `name`: of the candidate, for whoever wants to be sure which it is."""
        ask = _message(wire.PromoteLaneRequest, specialist=specialist, name=name, change=self._change(why))
        return LaneInfo.from_wire(self._make("PromoteLane", ask, wire.LaneInfo, LOAD_S))

    def roll_back(self, specialist: str, *, why: str = BY_HAND) -> LaneInfo:
        """The lane that serves now: the one before, or the same where a candidate had to go."""
        ask = _message(wire.RollBackLaneRequest, specialist=specialist, change=self._change(why))
        return LaneInfo.from_wire(self._make("RollBackLane", ask, wire.LaneInfo, LOAD_S))

    def replicas(self) -> tuple[ReplicaInfo, ...]:
        response = self._look("ListReplicas", wire.ListReplicasRequest(), wire.ListReplicasResponse)
        return tuple(ReplicaInfo.from_wire(each) for each in response.replicas)

    def drain(self, replica: str, *, why: str = BY_HAND) -> ReplicaInfo:
        """Routers send it nothing new; what it has, it finishes."""
        ask = _message(wire.DrainReplicaRequest, replica=replica, change=self._change(why))
        return ReplicaInfo.from_wire(self._make("DrainReplica", ask, wire.ReplicaInfo))

    def undrain(self, replica: str, *, why: str = BY_HAND) -> ReplicaInfo:
        ask = _message(wire.UndrainReplicaRequest, replica=replica, change=self._change(why))
        return ReplicaInfo.from_wire(self._make("UndrainReplica", ask, wire.ReplicaInfo))

    def shadow_report(self, last: float = 0.0) -> ShadowReport:
        """Of the last so many seconds; 0 for all that is kept."""
        ask = _message(wire.ShadowReportRequest, last_seconds=last)
        response = self._look("ShadowReport", ask, wire.ShadowReportResponse)
        rows = tuple(ShadowRow.from_wire(each) for each in response.rows)
        return ShadowReport(rows, ShadowCounts.from_wire(response.counts))

    def comparisons(self, last: float = 0.0) -> Iterator[Comparison]:
        """Oldest first, as they come."""
        ask = _message(wire.ListComparisonsRequest, last_seconds=last)
        return self._stream("ListComparisons", ask, wire.Comparison, Comparison.from_wire, self._timeout or LIST_S)

    def audit(self, subject: str = "", *, most: int = 100) -> Iterator[AuditEntry]:
        """Newest first."""
        ask = _message(wire.ListAuditRequest, subject=subject, most=most)
        return self._stream("ListAudit", ask, wire.AuditEntry, AuditEntry.from_wire, self._timeout or LIST_S)

    def events(self) -> Iterator[OperatorEvent]:
        """What happens from now on; with a timeout it ends in DeadlineExceeded. Closing the iterator ends it."""
        ask, convert = wire.WatchEventsRequest(), OperatorEvent.from_wire
        return self._stream("WatchEvents", ask, wire.OperatorEvent, convert, self._timeout)

    def slo(self, specialist: str = "") -> tuple[Slo, ...]:
        """Of one specialist, or of each of them."""
        ask = _message(wire.GetSloRequest, specialist=specialist)
        return tuple(Slo.from_wire(each) for each in self._look("GetSlo", ask, wire.GetSloResponse).slos)

    def overview(self) -> Overview:
        """Everything at a glance."""
        return Overview.from_wire(self._look("GetOverview", wire.GetOverviewRequest(), wire.Overview))

    def watch_overview(self) -> Iterator[Overview]:
        """One at once, then one for every change, and at least every five seconds; with a timeout it ends in
        DeadlineExceeded. Closing the iterator ends it."""
        ask, convert = wire.WatchOverviewRequest(), Overview.from_wire
        return self._stream("WatchOverview", ask, wire.Overview, convert, self._timeout)

    def history(self, last: float = 0.0) -> History:
        """Of the last so many seconds; 0 for all that is remembered."""
        ask = _message(wire.GetHistoryRequest, last_seconds=last)
        return History.from_wire(self._look("GetHistory", ask, wire.History))

    def receipts(
        self,
        specialist: str = "",
        *,
        outcome: str = "",
        most: int = 50,
        before_unix_ms: int = 0,
        tenant: str = "",
    ) -> Iterator[Receipt]:
        """Newest first. `outcome`: answered, refused, failed or cancelled. `tenant`: whose; empty: everybody's."""
        ask = _message(
            wire.ListReceiptsRequest,
            most=most,
            specialist=specialist,
            outcome=outcome,
            before_unix_ms=before_unix_ms,
            tenant=tenant,
        )
        return self._stream("ListReceipts", ask, wire.Receipt, Receipt.from_wire, self._timeout or LIST_S)

    def explain(self, request_id: str, *, tenant: str = "") -> Story:
        """Everything that is known of one request. Raises NotFound."""
        ask = _message(wire.ExplainRequest, request_id=request_id, tenant=tenant)
        return Story.from_wire(self._look("Explain", ask, wire.Story))

    def _change(self, why: str) -> wire.Change:
        change: wire.Change = _message(wire.Change, who=self.who, why=why)
        return change

    def _look(self, name: str, ask: Message, answer: type[Message]) -> Any:
        return self._call(name, ask, answer, self._effort(self._policy, LOOKUP_S))

    def _make(self, name: str, ask: Message, answer: type[Message], seconds: float = LOOKUP_S) -> Any:
        return self._call(name, ask, answer, self._effort(_NEVER_AGAIN, seconds), changes=True)

    def _effort(self, policy: RetryPolicy, usual: float) -> Effort:
        seconds = usual if self._timeout is None else self._timeout
        return Effort(policy, self._budget, self._clock, self._random, seconds)

    def _call(self, name: str, ask: Message, answer: type[Message], effort: Effort, *, changes: bool = False) -> Any:
        while True:
            try:
                with unless_closed(self._is_closed):
                    response = self._method("unary_unary", name, answer)(ask, timeout=effort.left().total)
            except grpc.RpcError as error:
                problem = self._problem(error, changes=changes)
                wait = effort.wait_after(problem)
                if wait is None:
                    raise problem from None
                time.sleep(wait)
            else:
                effort.answered()
                return response

    def _stream(
        self,
        name: str,
        ask: Message,
        answer: type[Message],
        convert: Callable[[Any], Any],
        seconds: float | None,
    ) -> Iterator[Any]:
        with unless_closed(self._is_closed):
            call = self._method("unary_stream", name, answer)(ask, timeout=seconds)
        begun = False
        try:
            for message in call:
                begun = True
                yield convert(message)
        except grpc.RpcError as error:
            raise self._problem(error, begun=begun) from None
        finally:
            call.cancel()

    def _method(self, kind: str, name: str, answer: type[Message]) -> Any:
        return getattr(self._channel, kind)(SERVICE + name, serialize, answer.FromString)

    def _problem(self, error: Any, *, changes: bool = False, begun: bool = False) -> OctetError:
        problem = typed(error, address=self.address, begun=begun)
        if problem.reason:
            return problem
        if is_unsaid_cancel(problem) and self._is_closed():
            problem = closed("")
        if problem.code == grpc.StatusCode.UNIMPLEMENTED:
            words = f"what answers at {self.address} has no octet.v1.Operator: it is no router, or an older one"
            return type(problem)(words, code=problem.code)
        details = error.details() or ""
        if changes and not any(words in details for words in _NEVER_ARRIVED):
            words = f"{problem}; whether the change was made is not known: octet audit tells"
            return type(problem)(words, code=problem.code, reason=problem.reason)
        return problem


def _message(kind: Any, **values: Any) -> Any:
    """Raises InvalidRequest for what no message can carry."""
    message = kind()
    for name, value in values.items():
        try:
            if isinstance(value, Message):
                getattr(message, name).CopyFrom(value)
            else:
                setattr(message, name, value)
        except UnicodeEncodeError:
            raise invalid(name, "valid UTF-8", "text with a lone surrogate") from None
        except (TypeError, ValueError) as error:
            raise invalid(name, "of the kind that the call takes", f"{value!r} ({error})") from None
    return message
