"""Records made from messages: parts of answers and receipts; for operators breakers, knobs, lanes, audit, overview.

Each record is a frozen dataclass with the fields of one message, which proto/octet/v1 documents. `make proto` writes
their types to records.pyi, for type checkers and editors.
"""

from importlib import import_module
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from octet.client.wire_record import WireRecord
from octet.rpc.messages import is_in_oneof

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
_ALWAYS_SET = {("ShadowReport", "counts")}
_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: bool,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64), int),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64), int),
}
"""Types of fields; all other fields are strings, or enums as labels."""


def __getattr__(name: str) -> Any:
    """Make a record on first use, because making all of them would slow down the import of the client."""
    if name not in MESSAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    file, message = MESSAGES[name].split(".")
    declared = getattr(import_module(f"octet.v1.{file}_pb2"), message).DESCRIPTOR.fields
    types = {field.name: _field_type(name, field) for field in declared}
    alternatives = frozenset(field.name for field in declared if is_in_oneof(field))
    namespace = {"__annotations__": types, "__module__": __name__, "ALTERNATIVES": alternatives}
    made = globals()[name] = type(name, (WireRecord,), namespace)
    return made


def _field_type(record: str, field: FieldDescriptor) -> Any:
    single: Any = _SCALARS.get(field.cpp_type, str)
    if field.message_type is not None:
        name = _NAMES[field.message_type.name]
        single = globals().get(name) or __getattr__(name)
    if field.is_repeated:
        return tuple[single, ...]
    return single | None if field.has_presence and (record, field.name) not in _ALWAYS_SET else single
