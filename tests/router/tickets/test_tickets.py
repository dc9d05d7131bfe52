"""A ticket is valid for one caller, one request and a limited time, and only as a router signed it."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import specialist_pb2 as wire
from router.dispatch.tickets import (
    TICKET_BYTES,
    PlaceClaim,
    TicketKey,
    TicketOffice,
    is_well_formed,
    read_ticket,
    write_ticket,
)
from router.request import CallerIdentity, Request, TraceContext

KEY = TicketKey(b"\1\2\3\4", b"secret" * 5)
OLD = TicketKey(b"\4\3\2\1", b"older!" * 5)
CLAIM = PlaceClaim("0123456789abcdef", "00112233445566778899aabbccddeeff")
EXPIRES = 1_000_000.0
SLACK = 10.0


def request(text: str = "hello", tenant: str = "t", name: str = "n", ticket: str = "", **fields: Any) -> Request:
    messages = (wire.Message(role="user", content=text),)
    caller = CallerIdentity(tenant, name)
    trace = TraceContext("0" * 32, "")
    return Request("r", messages, text, 0.0, 60.0, trace, caller=caller, ticket=ticket, **fields)


TICKET = write_ticket(KEY, request(), CLAIM, EXPIRES)


def test_a_ticket_is_read_by_every_router_with_its_key() -> None:
    assert len(TICKET) == TICKET_BYTES
    assert read_ticket((OLD, KEY), request(ticket=TICKET), EXPIRES) == CLAIM
    assert read_ticket((OLD,), request(ticket=TICKET), EXPIRES) is None
    assert read_ticket((), request(ticket=TICKET), EXPIRES) is None


@given(st.integers(0, TICKET_BYTES - 1), st.characters(codec="ascii"))
def test_a_changed_ticket_is_not_valid(at: int, letter: str) -> None:
    assume(TICKET[at] != letter)
    forged = TICKET[:at] + letter + TICKET[at + 1 :]
    assert read_ticket((KEY, OLD), request(ticket=forged), 0.0) is None


@given(
    st.text(max_size=100)
    | st.binary(min_size=TICKET_BYTES, max_size=TICKET_BYTES).map(lambda raw: raw.decode("latin-1"))
)
def test_a_made_up_ticket_is_not_valid(ticket: str) -> None:
    assert read_ticket((KEY, OLD), request(ticket=ticket), 0.0) is None


@given(st.sampled_from(["text", "tenant", "name", "max_tokens", "seed"]), st.integers(1, 9))
def test_a_stolen_ticket_is_not_valid(field: str, number: int) -> None:
    value: Any = number if field in ("max_tokens", "seed") else f"other {number}"
    assert read_ticket((KEY,), request(ticket=TICKET, **{field: value}), 0.0) is None


@given(st.floats(-1e6, 1e6))
def test_an_expired_ticket_is_not_valid(after: float) -> None:
    assume(abs(after - SLACK) > 0.001)
    found = read_ticket((KEY,), request(ticket=TICKET), EXPIRES + after)
    assert found == (CLAIM if after < SLACK else None)


class FakeReplica:
    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.released: list[str] = []

    @property
    def channel(self) -> "FakeReplica":
        return self

    async def call(self, path: str, raw: bytes, *, timeout: float) -> bytes:
        self.released += wire.ReleaseReservationsRequest.FromString(raw).keys
        return b""


def promise(instance: str, place: str, after_ms: int = 500) -> Refusal:
    refusal = Refusal(error_pb2.ERROR_REASON_QUEUE_FULL, "full", retry_after=after_ms / 1000)
    refusal.error.reservation.CopyFrom(wire.Reservation(instance=instance, key=place, kept_ms=2000))
    return refusal


def office(*keys: TicketKey) -> TicketOffice:
    return TicketOffice(lambda: keys, lambda: EXPIRES, lambda: None)


async def test_the_final_refusal_gets_a_ticket_and_other_places_are_given_up() -> None:
    desk, first, second = office(KEY), FakeReplica(CLAIM.instance), FakeReplica("fedcba9876543210")
    asked = request()
    tickets = desk.open(asked)
    message = wire.GenerateRequest()
    tickets.fill(message, first, is_first_choice=True)  # type: ignore[arg-type]
    assert message.reserve_for and not message.reservation
    kept, spare = promise(CLAIM.instance, CLAIM.place), promise(second.instance, "ff" * 16)
    tickets.refused(first, kept)  # type: ignore[arg-type]
    tickets.refused(second, spare)  # type: ignore[arg-type]
    tickets.end(kept)
    await desk.settle()
    assert (first.released, second.released) == ([], ["ff" * 16])
    assert not kept.error.HasField("reservation") and not spare.error.ticket
    back = request(ticket=kept.error.ticket)
    again = desk.open(back)
    assert again.claim == CLAIM
    for replica, place in ((second, ""), (first, CLAIM.place)):
        message = wire.GenerateRequest()
        again.fill(message, replica, is_first_choice=True)  # type: ignore[arg-type]
        assert message.reservation == place, "only the process that keeps the place is told its key"
    again.accepted(wire.Accepted(reserved=True))
    again.end()
    assert +desk.counts == {"issued": 1, "honoured": 1}


async def test_an_answered_request_gives_every_place_up() -> None:
    desk, replica = office(KEY), FakeReplica(CLAIM.instance)
    tickets = desk.open(request())
    tickets.refused(replica, promise(CLAIM.instance, CLAIM.place))  # type: ignore[arg-type]
    tickets.end()
    await desk.settle()
    assert replica.released == [CLAIM.place] and not +desk.counts


async def test_without_a_key_or_for_a_job_no_place_is_asked_for() -> None:
    replica = FakeReplica(CLAIM.instance)
    job = request()
    job.wants_ticket = False
    second = office(KEY).open(request())
    for tickets, is_first in ((office().open(request()), True), (office(KEY).open(job), True), (second, False)):
        message = wire.GenerateRequest()
        tickets.fill(message, replica, is_first_choice=is_first)  # type: ignore[arg-type]
        assert message == wire.GenerateRequest()


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_strange_promise_makes_no_ticket(instance: str, place: str) -> None:
    assume((len(instance), len(place)) != (16, 32))
    assert not is_well_formed(wire.Reservation(instance=instance, key=place))
