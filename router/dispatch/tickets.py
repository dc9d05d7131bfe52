"""Tickets: what a refused caller shows to get the place that a replica keeps for it.

A ticket names a place and is signed together with its caller and the content of the request, so that no other caller
and no other request can use it. The replica decides whether the place is still kept, and gives it up once."""

import asyncio
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, get_args

import grpc

from octet.identity import digest_parts
from octet.rpc.refusal import Refusal
from octet.v1 import specialist_pb2 as wire
from router.dispatch.replicas.replica import Replica
from router.request import Request

_VERSION = 1
_KEY_ID_BYTES = 4
_INSTANCE_BYTES = 8
_PLACE_BYTES = 16
_TIME_BYTES = 6
_MAC_BYTES = 16
_BODY_BYTES = 1 + _KEY_ID_BYTES + _INSTANCE_BYTES + _PLACE_BYTES + _TIME_BYTES
TICKET_BYTES = (_BODY_BYTES + _MAC_BYTES) * 4 // 3  # no padding: the number is a multiple of three
_CLOCK_SECONDS = 10.0  # the clocks of two routers may differ by this much; the replica's own clock decides in the end
_RELEASE_SECONDS = 1.0
_RELEASE = "/octet.v1.Specialist/ReleaseReservations"
TicketOutcome = Literal["issued", "honoured", "not_honoured", "invalid"]
"""invalid: forged, expired, or of another caller or request. not_honoured: the place was gone or could not be given."""


class TicketKey(NamedTuple):
    key_id: bytes  # public
    secret: bytes

    def sign(self, body: bytes, request: Request) -> bytes:
        caller = request.caller
        bound = (body, caller.tenant.encode(), caller.name.encode(), request.content_digest())
        return hmac.digest(self.secret, digest_parts(bound), "sha256")[:_MAC_BYTES]


class PlaceClaim(NamedTuple):
    """What a valid ticket claims."""

    instance: str  # the replica's process
    place: str


def write_ticket(key: TicketKey, request: Request, claim: PlaceClaim, expires: float) -> str:
    """Return a ticket for the claim. `expires` is in Unix seconds."""
    times = round(expires * 1000).to_bytes(_TIME_BYTES, "big")
    body = bytes([_VERSION]) + key.key_id + bytes.fromhex(claim.instance) + bytes.fromhex(claim.place) + times
    return urlsafe_b64encode(body + key.sign(body, request)).decode()


def read_ticket(keys: Sequence[TicketKey], request: Request, now: float) -> PlaceClaim | None:
    """Return the claim of the request's ticket; None unless the ticket was signed for this caller and this request, and
    has not expired. `now` is in Unix seconds."""
    if len(request.ticket) != TICKET_BYTES:
        return None
    try:
        raw = urlsafe_b64decode(request.ticket)
    except ValueError:
        return None
    body, mac = raw[:_BODY_BYTES], raw[_BODY_BYTES:]
    if len(mac) != _MAC_BYTES:
        return None
    key = next((each for each in keys if each.key_id == body[1 : 1 + _KEY_ID_BYTES]), None)
    if body[0] != _VERSION or key is None or not hmac.compare_digest(mac, key.sign(body, request)):
        return None
    if now > int.from_bytes(body[-_TIME_BYTES:], "big") / 1000 + _CLOCK_SECONDS:
        return None
    place_at = 1 + _KEY_ID_BYTES + _INSTANCE_BYTES
    return PlaceClaim(body[1 + _KEY_ID_BYTES : place_at].hex(), body[place_at : place_at + _PLACE_BYTES].hex())


class TicketOffice:
    """Signs and reads the tickets of all requests. Used on the event loop."""

    def __init__(
        self, keys: Callable[[], Sequence[TicketKey]], wall: Callable[[], float], want: Callable[[], None]
    ) -> None:
        """`keys` returns the signing keys, the newest first; none until the routers have agreed on one. `want` asks for
        one; call it when it would be used."""
        self._keys = keys
        self.want = want
        self._wall = wall
        self._releases: set[asyncio.Task[None]] = set()
        self.counts: Counter[TicketOutcome] = Counter(dict.fromkeys(get_args(TicketOutcome), 0))

    def open(self, request: Request) -> "RequestTickets":
        keys = self._keys()
        claim = read_ticket(keys, request, self._wall()) if request.ticket else None
        if request.ticket and claim is None:
            self.counts["invalid"] += 1
        return RequestTickets(self, request, claim, keys[0] if keys else None)

    def expires(self, seconds: float) -> float:
        return self._wall() + seconds

    def release(self, replica: Replica, key: str) -> None:
        """Tell the replica, in the background, that a place is not needed. If the message is lost, the place lapses."""

        async def send() -> None:
            message = wire.ReleaseReservationsRequest(keys=[key]).SerializeToString()
            with suppress(grpc.aio.AioRpcError):
                await replica.channel.call(_RELEASE, message, timeout=_RELEASE_SECONDS)

        task = asyncio.get_running_loop().create_task(send())
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def settle(self) -> None:
        """Wait until all places that are not needed have been given up."""
        await asyncio.gather(*self._releases)


class RequestTickets:
    """The ticket that one request shows, and the places that replicas promise when they refuse it."""

    def __init__(self, office: TicketOffice, request: Request, claim: PlaceClaim | None, key: TicketKey | None) -> None:
        self._office = office
        self._request = request
        self._key = key
        self.claim = claim
        self._promised: list[tuple[Replica, Refusal]] = []

    def fill(self, message: wire.GenerateRequest, replica: Replica, *, is_first_choice: bool) -> None:
        """Ask for a place if the request is refused by a replica of its first choice, and claim a promised one."""
        request = self._request
        if request.wants_ticket and is_first_choice and self._key is not None:
            owner = digest_parts((b"tenant", request.caller.tenant.encode()))
            message.reserve_for = owner[:_PLACE_BYTES].hex()
            if self.claim is not None and self.claim.instance == replica.instance:
                message.reservation = self.claim.place

    def refused(self, replica: Replica, refusal: Refusal) -> None:
        """Remember the place that the refusal promises, if it does."""
        if refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED and self._request.wants_ticket:
            self._office.want()
        if refusal.error.HasField("reservation"):
            self._promised.append((replica, refusal))

    def accepted(self, accepted: wire.Accepted) -> None:
        if self.claim is not None:
            self._office.counts["honoured" if accepted.reserved else "not_honoured"] += 1
            self.claim = None

    def end(self, refusal: Refusal | None = None) -> None:
        """Put a ticket into the refusal if its replica has promised a place, and give all other places up."""
        if self.claim is not None and refusal is not None:
            self._office.counts["not_honoured"] += 1
        for replica, refused in self._promised:
            error, promise = refused.error, refused.error.reservation
            if refused is refusal and self._key is not None and is_well_formed(promise):
                claim = PlaceClaim(promise.instance, promise.key)
                kept = (error.retry_after_ms + promise.kept_ms) / 1000
                error.ticket = write_ticket(self._key, self._request, claim, self._office.expires(kept))
                self._office.counts["issued"] += 1
            else:
                self._office.release(replica, promise.key)
            error.ClearField("reservation")
        self._promised.clear()


def is_well_formed(promise: wire.Reservation) -> bool:
    """Whether instance and key have the form of those of a replica of this version."""
    sizes = ((promise.instance, _INSTANCE_BYTES), (promise.key, _PLACE_BYTES))
    with suppress(ValueError):
        return all(len(bytes.fromhex(text)) == size and len(text) == 2 * size for text, size in sizes)
    return False
