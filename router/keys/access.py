"""What every call and every route asks of whoever calls. What does not stand here is refused."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Access(Enum):
    OPEN = "open"
    """Nobody is asked who they are."""
    CALL = "call"
    """Any key."""
    OPERATE = "operate"


_INFERENCE = ("Generate", "Infer", "Route", "GetReceipt", "Cancel", "CountTokens")
_JOBS = ("SubmitJob", "GetJob", "ListJobs", "WatchJob", "CancelJob")
_OPERATOR = (
    *("ListBreakers", "HoldBreaker", "ReleaseBreaker"),
    *("ListKnobs", "SetKnob", "ReleaseKnob"),
    *("ListLanes", "LoadAdapter", "PromoteLane", "RollBackLane"),
    *("ListReplicas", "DrainReplica", "UndrainReplica"),
    *("ShadowReport", "ListComparisons", "ListAudit", "WatchEvents"),
    *("GetSlo", "GetOverview", "WatchOverview", "GetHistory", "ListReceipts", "Explain"),
)
RPCS: Mapping[str, Access] = MappingProxyType(
    {
        **{f"/octet.v1.Inference/{name}": Access.CALL for name in _INFERENCE},
        **{f"/octet.v1.Jobs/{name}": Access.CALL for name in _JOBS},
        **{f"/octet.v1.Operator/{name}": Access.OPERATE for name in _OPERATOR},
        "/grpc.health.v1.Health/Check": Access.OPEN,
        "/grpc.health.v1.Health/Watch": Access.OPEN,
        "/grpc.health.v1.Health/List": Access.CALL,
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Access.CALL,
    }
)
"""By the call's whole name."""
ROUTES: Mapping[str, Access] = MappingProxyType(
    {
        "/v1/chat/completions": Access.CALL,
        "/v1/completions": Access.CALL,
        "/v1/messages": Access.CALL,
        "/v1/messages/count_tokens": Access.CALL,
        "/v1/infer": Access.CALL,
        "/v1/jobs": Access.CALL,
        "/v1/jobs/{job_id}": Access.CALL,
        "/v1/jobs/{job_id}/events": Access.CALL,
        "/v1/jobs/{job_id}/cancel": Access.CALL,
        "/v1/models": Access.CALL,
        "/v1/models/{model:path}": Access.CALL,
        "/v1/receipts/{request_id}": Access.CALL,
        "/v1/breakers": Access.OPERATE,
        "/v1/breakers/{specialist}/hold": Access.OPERATE,
        "/v1/breakers/{specialist}/release": Access.OPERATE,
        "/v1/knobs": Access.OPERATE,
        "/v1/knobs/set": Access.OPERATE,
        "/v1/knobs/release": Access.OPERATE,
        "/v1/lanes": Access.OPERATE,
        "/v1/lanes/{specialist}/load": Access.OPERATE,
        "/v1/lanes/{specialist}/promote": Access.OPERATE,
        "/v1/lanes/{specialist}/roll_back": Access.OPERATE,
        "/v1/replicas": Access.OPERATE,
        "/v1/replicas/{replica}/drain": Access.OPERATE,
        "/v1/replicas/{replica}/undrain": Access.OPERATE,
        "/v1/audit": Access.OPERATE,
        "/v1/receipts": Access.OPERATE,
        "/v1/receipts/{request_id}/story": Access.OPERATE,
        "/v1/story": Access.OPERATE,
        "/v1/overview": Access.OPERATE,
        "/v1/overview/events": Access.OPERATE,
        "/v1/history": Access.OPERATE,
        "/v1/slo": Access.CALL,
        "/metrics": Access.OPERATE,
        "/metrics/replicas": Access.OPERATE,
        "/openapi.json": Access.OPEN,
        "/healthz": Access.OPEN,
        "/readyz": Access.OPEN,
        "/dashboard": Access.OPEN,
        "/dashboard/{file:path}": Access.OPEN,
    }
)
"""By the route's path, as the router's own table writes it; for all of its methods."""
