"""Records made from messages: parts of answers and receipts; for operators breakers, knobs, lanes, audit, overview.

Each record is a frozen dataclass with the fields of one message, which proto/octet/v1 documents. `make proto` writes
their types to records.pyi, for type checkers and editors.
"""

from octet.client.wire_record import record_class
from octet.v1 import control_pb2 as control
from octet.v1 import inference_pb2 as inference
from octet.v1 import operator_pb2 as operator
from octet.v1 import overview_pb2 as overview
from octet.v1 import slo_pb2 as slo
from octet.v1 import specialist_pb2 as specialist

ToolCall = record_class("ToolCall", specialist.ToolCall)
ToolCallPart = record_class("ToolCallPart", specialist.ToolCallPart)
TokenCount = record_class("TokenCount", inference.CountResponse)
SpecialistScore = record_class("SpecialistScore", inference.Score)
LaneIdentity = record_class("LaneIdentity", specialist.Lane)
AttemptInfo = record_class("AttemptInfo", inference.Attempt)
ForecastInfo = record_class("ForecastInfo", specialist.Forecast)
Shadow = record_class("Shadow", inference.ShadowOrder)
Between = record_class("Between", inference.Between)
ReplicaTimings = record_class("ReplicaTimings", specialist.Timings)
Timings = record_class("Timings", inference.RouterTimings)
Validation = record_class("Validation", inference.Validation)

BreakerInfo = record_class("BreakerInfo", control.BreakerInfo)
BreakerList = record_class("BreakerList", operator.ListBreakersResponse)
KnobInfo = record_class("KnobInfo", control.KnobInfo)
LaneInfo = record_class("LaneInfo", control.LaneInfo)
ReplicaInfo = record_class("ReplicaInfo", control.ReplicaInfo)
ShadowRow = record_class("ShadowRow", control.ShadowRow)
ShadowCounts = record_class("ShadowCounts", control.ShadowCounts)
ShadowReport = record_class("ShadowReport", operator.ShadowReportResponse, counts=ShadowCounts)
Comparison = record_class("Comparison", operator.Comparison)
AuditEntry = record_class("AuditEntry", control.AuditEntry)
OperatorEvent = record_class("OperatorEvent", operator.OperatorEvent)

BlockUsage = record_class("BlockUsage", specialist.Blocks)
EstimateError = record_class("EstimateError", specialist.EstimateError)
ResidentAdapter = record_class("ResidentAdapter", specialist.ResidentAdapter)
LoadReport = record_class("LoadReport", specialist.LoadReport)

Latency = record_class("Latency", slo.Latency)
Burn = record_class("Burn", slo.Burn)
Objective = record_class("Objective", slo.Objective)
Slo = record_class("Slo", slo.Slo)

HistoryPoint = record_class("HistoryPoint", overview.Point)
SpecialistHistory = record_class("SpecialistHistory", overview.SpecialistHistory)
OverviewHistory = record_class("OverviewHistory", overview.History)
OverviewFinding = record_class("OverviewFinding", overview.Trouble)
RequestRates = record_class("RequestRates", overview.Rates)
ReplicaView = record_class("ReplicaView", overview.ReplicaView)
SpecialistView = record_class("SpecialistView", overview.SpecialistView)
ReceiptLine = record_class("ReceiptLine", overview.ReceiptLine)
Overview = record_class("Overview", overview.Overview)
