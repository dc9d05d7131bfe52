"""API keys: tokens, roles, limits, lookup by token, and the access that every gRPC call and HTTP route requires."""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from hmac import compare_digest
from types import MappingProxyType
from typing import Literal, TypeAlias

TOKEN_PREFIX = "octet_"  # identifies a leaked token in a log or a repository
MAX_TOKEN_BYTES = 256  # longer tokens are rejected without hashing them
_RANDOM_BYTES = 32
Role: TypeAlias = Literal["call", "operate"]
ROLES: tuple[Role, ...] = ("call", "operate")  # the role `operate` includes `call`
_INDEX_BYTES = 8
_NO_DIGEST = bytes(32)


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def token_digest(token: bytes) -> bytes:
    """Return the digest. Tokens have 256 random bits, so a slow hash would add cost but no protection."""
    return sha256(token).digest()


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of a key; None for no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # in prompts and answers together
    concurrency: int | None = None  # concurrent calls


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    digest: bytes = field(repr=False)  # sha256 of the token
    role: Role
    tenant: str  # keys of the same tenant share the cache, receipts and jobs
    allowance: Allowance = Allowance()
    created: str = ""  # ISO 8601, for display
    expires_ms: int | None = None  # Unix time; None if the key does not expire

    @property
    def operates(self) -> bool:
        return self.role == "operate"

    def has_expired(self, wall_ms: int) -> bool:
        return self.expires_ms is not None and wall_ms >= self.expires_ms


class KeySet:
    """Keys by name and by token. Immutable; a change creates a new set."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = tuple(keys)
        self._by_name = {key.name: key for key in self.keys}
        self._by_digest_prefix: dict[bytes, list[Key]] = {}
        for key in self.keys:
            self._by_digest_prefix.setdefault(key.digest[:_INDEX_BYTES], []).append(key)

    def get(self, name: str) -> Key | None:
        return self._by_name.get(name)

    def find(self, token: bytes, wall_ms: int) -> Key | None:
        """Return the key with this token; None if it is unknown or has expired. Timing reveals no token: the index
        holds digests, and whole digests are compared in constant time."""
        if len(token) > MAX_TOKEN_BYTES:
            return None
        digest = token_digest(token)
        found: Key | None = None
        for key in self._by_digest_prefix.get(digest[:_INDEX_BYTES], ()):
            if compare_digest(key.digest, digest):
                found = key
        if found is None:
            compare_digest(_NO_DIGEST, digest)
            return None
        return None if found.has_expired(wall_ms) else found


class Access(Enum):
    OPEN = "open"  # no key is required
    CALL = "call"  # any key
    OPERATE = "operate"


_INFERENCE = ("Generate", "Infer", "Route", "GetReceipt", "Cancel", "CountTokens")
_JOBS = ("SubmitJob", "GetJob", "ListJobs", "WatchJob", "CancelJob")
_OPERATOR = (
    *("ListBreakers", "HoldBreaker", "ReleaseBreaker", "RelearnFloor", "ListKnobs", "SetKnob", "ReleaseKnob"),
    *("ListLanes", "LoadAdapter", "RefreshModel", "PromoteLane", "RollBackLane"),
    *("ListReplicas", "DrainReplica", "UndrainReplica"),
    *("ShadowReport", "ListComparisons", "ListAudit", "WatchEvents"),
    *("GetSlo", "GetOverview", "WatchOverview", "GetHistory", "ListReceipts", "Explain"),
)
RPC_ACCESS: Mapping[str, Access] = MappingProxyType(  # by the full name of the call; anything else is refused
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
_OPEN_ROUTES = (
    *("/", "/openapi.json", "/healthz", "/readyz", "/health", "/ping", "/version"),
    *("/dashboard", "/dashboard/{file:path}"),
)
_CALL_ROUTES = (
    *(
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/infer",
    ),
    *("/v1/responses", *(f"/v1/responses/{{response_id}}{end}" for end in ("", "/input_items", "/cancel"))),
    *("/v1/jobs", "/v1/jobs/{job_id}", "/v1/jobs/{job_id}/events", "/v1/jobs/{job_id}/cancel"),
    *("/v1/models", "/v1/models/{model:path}", "/v1/receipts/{request_id}", "/v1/slo"),
)
_OPERATE_ROUTES = (
    *("/v1/breakers", *(f"/v1/breakers/{{specialist}}/{change}" for change in ("hold", "release", "relearn"))),
    *("/v1/knobs", "/v1/knobs/set", "/v1/knobs/release"),
    *("/v1/lanes", *(f"/v1/lanes/{{specialist}}/{change}" for change in ("load", "refresh", "promote", "roll_back"))),
    *("/v1/replicas", "/v1/replicas/{replica}/drain", "/v1/replicas/{replica}/undrain"),
    *("/v1/audit", "/v1/receipts", "/v1/receipts/{request_id}/story", "/v1/story"),
    *("/v1/overview", "/v1/overview/events", "/v1/history", "/metrics", "/metrics/replicas"),
)
ROUTE_ACCESS: Mapping[str, Access] = MappingProxyType(  # by the route's path, for all methods; anything else is refused
    {
        **dict.fromkeys(_OPEN_ROUTES, Access.OPEN),
        **dict.fromkeys(_CALL_ROUTES, Access.CALL),
        **dict.fromkeys(_OPERATE_ROUTES, Access.OPERATE),
    }
)
