"""Records made from messages: parts of answers and receipts; for operators breakers, knobs, lanes, audit, overview.

Each record is a frozen dataclass with the fields of one message, which proto/octet/v1 documents. `make proto` writes
their types to records.pyi, for type checkers and editors.
"""

from importlib import import_module
from typing import Any

from google.protobuf.descriptor import Descriptor

from octet.client.wire_record import WireRecord, record_class

MESSAGES = {
    "ToolCall": "specialist.ToolCall",
    "ToolCallPart": "specialist.ToolCallPart",
    "TokenCount": "inference.CountResponse",
    "SpecialistScore": "inference.Score",
    "LaneIdentity": "specialist.Lane",
    "AttemptInfo": "inference.Attempt",
    "ForecastInfo": "specialist.Forecast",
    "Shadow": "inference.ShadowOrder",
    "Between": "inference.Between",
    "ReplicaTimings": "specialist.Timings",
    "Timings": "inference.RouterTimings",
    "Validation": "inference.Validation",
    "BreakerInfo": "control.BreakerInfo",
    "BreakerList": "operator.ListBreakersResponse",
    "KnobInfo": "control.KnobInfo",
    "LaneInfo": "control.LaneInfo",
    "ReplicaInfo": "control.ReplicaInfo",
    "ShadowRow": "control.ShadowRow",
    "ShadowCounts": "control.ShadowCounts",
    "ShadowReport": "operator.ShadowReportResponse",
    "Comparison": "operator.Comparison",
    "AuditEntry": "control.AuditEntry",
    "OperatorEvent": "operator.OperatorEvent",
    "BlockUsage": "specialist.Blocks",
    "EstimateError": "specialist.EstimateError",
    "ResidentAdapter": "specialist.ResidentAdapter",
    "LoadReport": "specialist.LoadReport",
    "Latency": "slo.Latency",
    "Burn": "slo.Burn",
    "Objective": "slo.Objective",
    "Slo": "slo.Slo",
    "HistoryPoint": "overview.Point",
    "SpecialistHistory": "overview.SpecialistHistory",
    "OverviewHistory": "overview.History",
    "OverviewFinding": "overview.Trouble",
    "RequestRates": "overview.Rates",
    "ReplicaView": "overview.ReplicaView",
    "SpecialistView": "overview.SpecialistView",
    "ReceiptLine": "overview.ReceiptLine",
    "Overview": "overview.Overview",
}
"""The message of each record, and the file that defines it."""
_NAMES = {message.partition(".")[2]: name for name, message in MESSAGES.items()}
_ALWAYS_SET = {"ShadowReport": ("counts",)}


def __getattr__(name: str) -> Any:
    """Make a record on first use, because making all of them would slow down the import of the client."""
    if name not in MESSAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    file, message = MESSAGES[name].split(".")
    kind = getattr(import_module(f"octet.v1.{file}_pb2"), message).DESCRIPTOR
    made = globals()[name] = record_class(name, __name__, kind, _record_of, _ALWAYS_SET.get(name, ()))
    return made


def _record_of(message: Descriptor) -> type[WireRecord]:
    name = _NAMES[message.name]
    record: type[WireRecord] = globals().get(name) or __getattr__(name)
    return record
