"""Records made from messages: parts of answers and receipts; for operators also breakers, knobs, lanes, the audit log
and overviews.

Each record is a frozen dataclass with the fields of one message, which proto/octet/v1 documents. `make proto` writes
the types of all records to records.pyi, for type checkers and editors.
"""

from importlib import import_module
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from octet.client.wire_record import WireRecord
from octet.rpc.messages import is_in_oneof

_RECORDS = {
    "specialist": "ToolCall ToolCallPart LaneIdentity=Lane ForecastInfo=Forecast ReplicaTimings=Timings "
    "BlockUsage=Blocks EstimateError ResidentAdapter ProcessEnd LoadReport",
    "inference": "TokenCount=CountResponse SpecialistScore=Score AttemptInfo=Attempt Shadow=ShadowOrder Between "
    "Timings=RouterTimings Validation",
    "control": "VerifierStanding BreakerInfo KnobInfo LaneInfo ReplicaInfo ShadowRow ShadowReasonCount ShadowCounts "
    "AuditEntry",
    "operator": "BreakerList=ListBreakersResponse ShadowReport=ShadowReportResponse Comparison OperatorEvent",
    "slo": "Latency Burn Objective Slo",
    "overview": "HistoryPoint=Point SpecialistHistory OverviewHistory=History OverviewFinding=Trouble "
    "RequestRates=Rates ReplicaView SpecialistView ReceiptLine Overview",
}
"""The records of each proto file, with the name of the message if it differs."""
MESSAGES = {
    name: (file, message or name)
    for file, records in _RECORDS.items()
    for name, _, message in (each.partition("=") for each in records.split())
}
_NAMES = {message: name for name, (_, message) in MESSAGES.items()}
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
    file, message = MESSAGES[name]
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
