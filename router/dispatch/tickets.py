"""Tickets: what a refused caller shows to get the place that a replica keeps for it.

A ticket names a place and is signed together with its caller and the content of the request, so that no other caller
and no other request can use it. The replica decides whether the place is still kept, and gives it once."""

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
_RELEASE = "/octet.v1.Specialist/ReleasePlaces"
TicketOutcome = Literal["issued", "honoured", "not_honoured", "invalid"]
"""invalid: forged, expired, or of another caller or request. not_honoured: the place was gone or could not be given."""


class TicketKey(NamedTuple):
    key_id: bytes  # public
    secret: bytes

    def sign(self, body: bytes, request: Request) -> bytes:
        caller = request.caller
        bound = (body, caller.tenant.encode(), caller.name.encode(), request.content_digest())
        return hmac.digest(self.secret, digest_parts(bound), "sha256")[:_MAC_BYTES]


class TicketPlace(NamedTuple):
    """The place that a ticket names."""

    instance: str  # the replica's process
    key: str


def write_ticket(key: TicketKey, request: Request, place: TicketPlace, expires: float) -> str:
    """Return a ticket for the place. `expires` is in Unix seconds."""
    times = round(expires * 1000).to_bytes(_TIME_BYTES, "big")
    body = bytes([_VERSION]) + key.key_id + bytes.fromhex(place.instance) + bytes.fromhex(place.key) + times
    return urlsafe_b64encode(body + key.sign(body, request)).decode()


def read_ticket(keys: Sequence[TicketKey], request: Request, now: float) -> TicketPlace | None:
    """Return the place of the request's ticket; None unless the ticket was signed for this caller and this request, and
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
    return TicketPlace(body[1 + _KEY_ID_BYTES : place_at].hex(), body[place_at : place_at + _PLACE_BYTES].hex())


class Tickets:
    """Signs and reads the tickets of all requests. Used on the event loop."""

    def __init__(
        self, keys: Callable[[], Sequence[TicketKey]], wall: Callable[[], float], want: Callable[[], None]
    ) -> None:
        """`keys` returns the keys that are valid, first the one that signs; none until the routers have agreed on one.
        `want` asks for one; call it when it would be used."""
        self._keys = keys
        self.want = want
        self._wall = wall
        self._releases: set[asyncio.Task[None]] = set()
        self.counts: Counter[TicketOutcome] = Counter(dict.fromkeys(get_args(TicketOutcome), 0))

    def open(self, request: Request, find: Callable[[str], Replica | None] = lambda instance: None) -> "RequestTickets":
        """`find` returns the replica whose process has this id."""
        keys = self._keys()
        place = read_ticket(keys, request, self._wall()) if request.ticket else None
        if request.ticket and place is None:
            self.counts["invalid"] += 1
        return RequestTickets(self, request, place, keys[0] if keys else None, find)

    def expires(self, seconds: float) -> float:
        return self._wall() + seconds

    def release(self, replica: Replica, key: str) -> None:
        """Tell the replica, in the background, that a place is not needed. If the message is lost, the place lapses."""

        async def send() -> None:
            message = wire.ReleasePlacesRequest(keys=[key]).SerializeToString()
            with suppress(grpc.aio.AioRpcError):
                await replica.channel.call(_RELEASE, message, timeout=_RELEASE_SECONDS)

        task = asyncio.get_running_loop().create_task(send())
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def settle(self) -> None:
        """Wait until all places that are not needed have been given up."""
        await asyncio.gather(*self._releases)


class RequestTickets:
    """The ticket that one request shows, and the places that replicas keep when they refuse it."""

    def __init__(
        self,
        tickets: Tickets,
        request: Request,
        place: TicketPlace | None,
        key: TicketKey | None,
        find: Callable[[str], Replica | None],
    ) -> None:
        self._tickets = tickets
        self._request = request
        self._key = key
        self._find = find
        self.place = place  # of the request's ticket, until it is taken
        self._kept: list[tuple[Replica, Refusal]] = []

    def fill(self, message: wire.GenerateRequest, replica: Replica, *, is_first_choice: bool) -> None:
        """Ask a replica of the first choice for a place if it refuses, and show the place that a replica keeps."""
        request, place = self._request, self.place
        if self._key is None:
            return
        if request.wait_ms is not None and is_first_choice:
            message.wait_ms = request.wait_ms
        if place is not None and place.instance == replica.instance:
            message.place = place.key
        if message.place or message.HasField("wait_ms"):
            message.place_for = digest_parts((b"tenant", request.caller.tenant.encode()))[:_PLACE_BYTES].hex()

    def refused(self, replica: Replica, refusal: Refusal) -> None:
        """Remember the place that the replica keeps, if it does."""
        if refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED and self._request.wait_ms is not None:
            self._tickets.want()
        if refusal.error.HasField("place"):
            self._kept.append((replica, refusal))

    def accepted(self, accepted: wire.Accepted) -> None:
        if accepted.reserved and self.place is not None:
            self._tickets.counts["honoured"] += 1
            self.place = None
        self._give_places_up()
        self._give_place_up()

    def end(self, refusal: Refusal | None = None) -> None:
        """Put a ticket into the refusal if its replica keeps a place, and give up all other places."""
        for number, (_, refused) in enumerate(self._kept):
            error, kept = refused.error, refused.error.place
            if refused is refusal and self._key is not None and is_well_formed(kept):
                place = TicketPlace(kept.instance, kept.key)
                kept_seconds = (error.retry_after_ms + kept.kept_ms) / 1000
                error.ticket = write_ticket(self._key, self._request, place, self._tickets.expires(kept_seconds))
                self._tickets.counts["issued"] += 1
                self.place = None if place == self.place else self.place
                error.ClearField("place")
                del self._kept[number]
                break
        self._give_places_up()
        self._give_place_up()

    def _give_places_up(self) -> None:
        """Give up the places of replicas that have refused the request."""
        for replica, refused in self._kept:
            self._tickets.release(replica, refused.error.place.key)
            refused.error.ClearField("place")
        self._kept.clear()

    def _give_place_up(self) -> None:
        """Give up the place of the request's ticket, unless it was taken or is still kept."""
        if self.place is None:
            return
        self._tickets.counts["not_honoured"] += 1
        if (replica := self._find(self.place.instance)) is not None:
            self._tickets.release(replica, self.place.key)
        self.place = None


def is_well_formed(kept: wire.Place) -> bool:
    """Whether instance and key have the form of those of a replica of this version."""
    sizes = ((kept.instance, _INSTANCE_BYTES), (kept.key, _PLACE_BYTES))
    with suppress(ValueError):
        return all(len(bytes.fromhex(text)) == size and len(text) == 2 * size for text, size in sizes)
    return False
