"""Messages between Octet's processes, and documents in the store."""

import json
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from admission.breakers import BreakerRecord
from admission.escalation import EscalationLadder
from admission.lanes import LaneOrigin, LaneRecord, SpecialistLanes
from octet.client.errors import ERROR_METADATA_KEY, RECEIPT_METADATA_KEY, OctetError, error_from_rpc
from octet.client.jobs import Job
from octet.client.receipts import Receipt
from octet.rpc.messages import message_to_json
from octet.supervisor.console import _parse_log_object
from octet.supervisor.process import parse_status
from octet.telemetry.distributions import BadSketch, Sketch
from octet.v1 import inference_pb2, jobs_pb2, operator_pb2, specialist_pb2
from router.control.audit import DocumentCache
from router.control.breakers import BreakerDocument
from router.dispatch.attempts import classify_failure
from router.dispatch.dispatcher import StreamViolation, _check_finite, _parse_accepted, _parse_event
from router.dispatch.replicas.fleet import _parse_report
from router.observe.metrics.replicas import ExpositionMerger, MalformedExposition
from router.quality.slo import SloSlice
from router.quality.slo_sharing import BadSlice, pack_slice, unpack_slice
from router.store.rows import Document
from tests.fuzz.parser import Parser
from tests.router.replicas.builders import replica

_RECEIPT = inference_pb2.Receipt(
    request_id="r",
    specialist="build",
    attempts=[inference_pb2.Attempt(replica="build-0")],
    usage=inference_pb2.Usage(),
)
_ERROR = inference_pb2.Error(reason=inference_pb2.ERROR_REASON_QUEUE_FULL, message="full", retry_after_ms=1500)
_JOB = jobs_pb2.Job(id="j", status=jobs_pb2.JOB_STATUS_DONE, text="said", receipt=_RECEIPT)
_LOAD = specialist_pb2.LoadReport(running=3, waiting=1, max_running=8, revision="abc")
_EVENT = specialist_pb2.GenerateEvent(accepted=specialist_pb2.Accepted())
_USED = specialist_pb2.GenerateEvent(usage=specialist_pb2.Usage())
_STORY = operator_pb2.Story(receipt=_RECEIPT)
_PAGE = (
    b"# HELP octet_requests_total Requests.\n# TYPE octet_requests_total counter\n"
    b'octet_requests_total{specialist="x",outcome="ok"} 3.0\noctet_requests_total{} 1e-05\n'
    b'# TYPE octet_seconds histogram\noctet_seconds_bucket{le="+Inf"} 2\noctet_seconds_sum 0.5\noctet_seconds_count 2\n'
)


def _slice() -> SloSlice:
    content = SloSlice()
    for seconds in (0.001, 0.01, 0.5, 3.0):
        content.ttft.add(seconds)
        content.itl.add(seconds / 10)
    content.answered = 4
    content.counts[("ttft", 0.5)] = (4, 1)
    return content


class _FailedCall:
    """A call that ended with an error, as gRPC presents it."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def details(self) -> str:
        return "full"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((ERROR_METADATA_KEY, self._raw), (RECEIPT_METADATA_KEY, self._raw))


def _client_error(raw: bytes) -> OctetError:
    classify_failure(_FailedCall(raw), "build-0", was_open=True, accepted=False)
    return error_from_rpc(_FailedCall(raw), address="localhost:1")


def _shown(kind: type[Message], of: Any) -> Any:
    """Return a parser that converts a message to an SDK record and prints it as JSON."""
    return lambda raw: json.dumps(of(kind.FromString(raw)).to_dict()).encode()


def _loaded(raw: bytes) -> str:
    report = _parse_report(raw)
    replica().load_reported(report)
    return json.dumps(message_to_json(report), allow_nan=False)


def _relayed(raw: bytes) -> str:
    """Copy a replica's message into a receipt, as the router does, and serialise the receipt for callers."""
    if raw[:1] == b"\x1a":
        receipt = inference_pb2.Receipt(usage=_check_finite(_parse_event(raw).usage))
    else:
        receipt = inference_pb2.Receipt(accepted=_parse_accepted(raw))
    return json.dumps(Receipt.from_wire(receipt).to_dict(), allow_nan=False)


def _spliced(raw: bytes) -> bytes:
    splice = ExpositionMerger()
    splice.add(raw, "build", "build-0")
    return splice.text()


def _kept(raw: bytes) -> object:
    """Decode the input as a stored document of each kind. The cache reports and skips a document that it cannot
    decode."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    shelf = DocumentCache()
    found: list[object] = []
    for kind, decode in (
        ("breaker", BreakerDocument.from_body),
        ("lanes", SpecialistLanes.from_body),
        ("ladder", EscalationLadder.from_body),
    ):
        shelf.take(Document(kind, "build", 1, body, 0, "ann"))
        found.append(shelf.read(kind, "build", decode))
    return found


def _documents() -> tuple[bytes, ...]:
    lane = LaneRecord(1, (), "abc", "serving", 0.0, "ann", "begun", fresh=False)
    book = SpecialistLanes("build", (lane,), 2, LaneOrigin((), "abc"))
    bodies = (BreakerDocument({"1": BreakerRecord()}).to_body(), book.to_body(), EscalationLadder().to_body())
    return tuple(json.dumps(body).encode() for body in bodies)


def _of(name: str, example: Message, parse: Any, *refuses: type[Exception], share: float = 0.5) -> Parser:
    seeds = (example.SerializeToString(),)
    return Parser(name, parse, refuses, seeds, message=type(example), share=share)


PARSERS = [
    _of("wire.error", _ERROR, _client_error),
    _of("wire.receipt", _RECEIPT, _shown(inference_pb2.Receipt, Receipt.from_wire), DecodeError),
    _of("wire.job", _JOB, _shown(jobs_pb2.Job, Job.from_wire), DecodeError),
    _of(
        "wire.story",
        _STORY,
        lambda raw: json.dumps(message_to_json(operator_pb2.Story.FromString(raw)), allow_nan=False).encode(),
        DecodeError,
    ),
    _of("wire.load", _LOAD, _loaded, DecodeError, ValueError),
    _of("wire.accepted", _EVENT, _relayed, StreamViolation),
    _of("wire.usage", _USED, _relayed, StreamViolation),
    Parser(
        "wire.slo_slice",
        lambda raw: unpack_slice("build", raw),
        (BadSlice,),
        (pack_slice("build", _slice()),),
        message=None,
    ),
    Parser("wire.sketch", Sketch.from_bytes, (BadSketch,), (_slice().ttft.to_bytes(), Sketch().to_bytes())),
    Parser(
        "wire.metrics_page",
        _spliced,
        (MalformedExposition,),
        (_PAGE,),
        "text",
        words=(b"# TYPE ", b"# HELP ", b"{", b'="', b"NaN"),
    ),
    Parser("store.document", _kept, (), _documents(), "json"),
    Parser(
        "wire.status",
        parse_status,
        (),
        (b'{"progress": ["loading", 3, 10]}', b'{"ready": "here"}', b'{"alive": true}'),
        "json",
    ),
    Parser(
        "wire.log_line",
        lambda raw: _parse_log_object(raw.decode("utf-8", "replace")),
        (),
        (b'{"message": "hello", "level": "info"}',),
        "json",
    ),
]
