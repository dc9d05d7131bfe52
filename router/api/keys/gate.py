"""Authenticates, authorizes and counts every call, over gRPC and HTTP."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from octet.clock import Clock
from octet.rpc import handlers
from octet.rpc.handlers import READ_SECONDS, Context
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire
from router.api.keys.keys import RPC_ACCESS, Access, Key, KeySet
from router.api.keys.rate_limits import KeyMeter
from router.request import AccessGrant, CallerIdentity, use_caller, use_grant

MAX_UNCOUNTED_CALLS = 32  # maximum concurrent calls of each method that are not counted against a key
ANONYMOUS_OPERATOR = CallerIdentity(operates=True)  # the caller of a router without keys
_AUTHORIZATION = b"authorization"
_API_KEY = b"x-api-key"
_BEARER = b"bearer"
Headers = Iterable[tuple[bytes, bytes]]  # with names in lower case


@dataclass(frozen=True, slots=True)
class AuthorizedCaller:
    identity: CallerIdentity
    key: Key | None  # None if no limits apply


class AccessGate:
    """Admits or refuses calls, and measures the usage of every key. Used only on the event loop."""

    def __init__(self, keys: KeySet | None, clock: Clock, wall_ms: Callable[[], int]) -> None:
        """If `keys` is None, every caller has an operator's rights. `wall_ms` returns milliseconds since 1970."""
        self._keys = keys
        self._clock = clock
        self._wall_ms = wall_ms
        self._meters: dict[str, KeyMeter] = {}
        self._grants: dict[AccessGrant, Key] = {}
        self.refused: Counter[int] = Counter()  # number of refused calls by reason

    @property
    def requires_keys(self) -> bool:
        return self._keys is not None

    def authorize(self, access: Access | None, headers: Headers) -> AuthorizedCaller:
        """Return the caller. Raises Refusal if it lacks `access`, or if `access` is None (no role is declared)."""
        with self._counting_refusals():
            if access is Access.OPEN:
                return AuthorizedCaller(CallerIdentity(), None)
            if self._keys is None:
                if access is None:
                    raise _access_undeclared()
                return AuthorizedCaller(ANONYMOUS_OPERATOR, None)
            key = self._keys.find(extract_key(headers), self._wall_ms())
            if key is None:
                raise unknown_key()
            if access is None:
                raise _access_undeclared()
            if access is Access.OPERATE and not key.operates:
                raise _role_missing(access.value)
            return AuthorizedCaller(CallerIdentity(key.tenant, key.name, key.operates), key)

    @contextmanager
    def call(self, caller: AuthorizedCaller) -> Iterator[CallerIdentity]:
        """Count a call, and set the current caller while it runs. Raises Refusal if the key has reached a limit."""
        if caller.key is None:
            with use_caller(caller.identity):
                yield caller.identity
            return
        key = caller.key
        meter, began = self._meter(key), self._clock.now()
        with self._counting_refusals():
            meter.begin_call(began)

        def seconds_left() -> float | None:
            return None if key.expires_ms is None else (key.expires_ms - self._wall_ms()) / 1000

        grant = AccessGrant(seconds_left, unknown_key)
        self._grants[grant] = key
        try:
            with use_caller(caller.identity), use_grant(grant):
                yield caller.identity
        finally:
            del self._grants[grant]
            meter.end_call(self._clock.now() - began)

    def counts_tokens(self, caller: CallerIdentity) -> bool:
        key = self._find_key(caller)
        return key is not None and key.allowance.tokens_per_minute is not None

    def check_still_valid(self, caller: CallerIdentity) -> None:
        """Check a key for work that starts long after admission, such as a job. Raises Refusal if the key was revoked,
        has expired or has used up its token limit."""
        if self._keys is None:
            return
        key = self._find_key(caller)
        if key is None or key.tenant != caller.tenant or key.has_expired(self._wall_ms()):
            raise unknown_key()
        refusal = self._meter(key).token_refusal(self._clock.now())
        if refusal is not None:
            raise refusal

    def charge(self, caller: CallerIdentity, num_tokens: int) -> None:
        key = self._find_key(caller)
        if key is not None:
            self._meter(key).charge(num_tokens, self._clock.now())

    def replace(self, keys: KeySet) -> None:
        """Apply new keys to every call from now on. Running calls finish, but an endless stream ends if its key was
        revoked or now gives different access."""
        self._keys = keys
        now = self._clock.now()
        for name, meter in tuple(self._meters.items()):
            key = keys.get(name)
            if key is None:
                del self._meters[name]
            elif key.allowance != meter.allowance:
                meter.change(key.allowance, now)
        for grant, key in tuple(self._grants.items()):
            if not _grants_same_access(key, keys.get(key.name)):
                grant.end()

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except Refusal as refusal:
            self.refused[refusal.error.reason] += 1
            raise

    def _find_key(self, caller: CallerIdentity) -> Key | None:
        return None if self._keys is None else self._keys.get(caller.name)

    def _meter(self, key: Key) -> KeyMeter:
        meter = self._meters.get(key.name)
        if meter is None:
            meter = self._meters[key.name] = KeyMeter(key.allowance, self._clock.now())
        return meter


def _grants_same_access(key: Key, other: Key | None) -> bool:
    if other is None:
        return False
    return all(getattr(key, name) == getattr(other, name) for name in ("digest", "role", "tenant", "expires_ms"))


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """The gate as a gRPC interceptor. An unauthorized call is refused before its request is read."""

    def __init__(self, gate: AccessGate, max_pending_reads: int) -> None:
        self._gate = gate
        self._reader = handlers.RequestReader(READ_SECONDS, max_pending_reads)
        self._uncounted = handlers.ConcurrencyLimit(MAX_UNCOUNTED_CALLS)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Authorize a call, and count it before its request is read. Calls that stream requests are not counted."""
        method = details.method
        access = RPC_ACCESS.get(method)
        try:
            caller = self._gate.authorize(access, headers_from_metadata(details.invocation_metadata))
        except Refusal as refusal:
            return _refusing_handler(refusal)
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.request_streaming:
            return handlers.request_stream_handler(handler, lambda: self._uncounted.enter(method))
        if access is Access.OPEN:
            return handlers.single_request_handler(handler, lambda: self._open_call(caller, method), self._reader)
        return handlers.single_request_handler(handler, lambda: self._gate.call(caller), self._reader)

    @contextmanager
    def _open_call(self, caller: AuthorizedCaller, method: str) -> Iterator[None]:
        with self._gate.call(caller), self._uncounted.enter(method):
            yield


def _refusing_handler(refusal: Refusal) -> Any:
    """Return a streaming handler: it fits every kind of call, and does not wait for the request."""

    async def serve(_: Any, context: Context) -> None:
        await handlers.refuse(context, refusal)

    return grpc.stream_stream_rpc_method_handler(serve)


def headers_from_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Headers:
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode(errors="surrogateescape"))
        for name, value in metadata or ()
    ]


def extract_key(headers: Headers) -> bytes:
    """Return the key in the headers. Raises Refusal if there is no key, or more than one."""
    given = [(name, value) for name, value in headers if name in (_AUTHORIZATION, _API_KEY)]
    keys = {_key_of_header(name, value) for name, value in given} - {b""}
    if len(given) > len({name for name, _ in given}) or len(keys) > 1:
        raise _unauthenticated("more than one key was sent: send only one")
    if not keys:
        raise _unauthenticated("this call needs a key: send it as `Authorization: Bearer KEY`")
    return keys.pop()


def _key_of_header(name: bytes, value: bytes) -> bytes:
    """Return the key in a header; empty for an authorization scheme other than Bearer."""
    if name == _API_KEY:
        return value.strip()
    scheme, _, key = value.strip().partition(b" ")
    return key.strip() if scheme.lower() == _BEARER else b""


def unknown_key() -> Refusal:
    return _unauthenticated("this key is unknown, revoked or expired")


def _unauthenticated(message: str) -> Refusal:
    """Return the refusal. Its message never repeats the key that was sent."""
    return Refusal(wire.ERROR_REASON_UNAUTHENTICATED, message, field="authorization", limit="a valid key")


def _role_missing(role: str) -> Refusal:
    message = f"this key may not make this call, which needs the role {role!r}"
    return Refusal(wire.ERROR_REASON_FORBIDDEN, message, field="authorization", limit=f"a key with the role {role!r}")


def _access_undeclared() -> Refusal:
    return Refusal(wire.ERROR_REASON_FORBIDDEN, "this call is refused because no role is declared for it")
