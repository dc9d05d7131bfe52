"""A ticket is valid for one caller, one request and a limited time, and only as a router signed it."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import specialist_pb2 as wire
from router.dispatch.tickets import (
    TICKET_BYTES,
    TicketKey,
    TicketPlace,
    Tickets,
    is_well_formed,
    read_ticket,
    write_ticket,
)
from router.request import CallerIdentity, Request, TraceContext

KEY = TicketKey(b"\1\2\3\4", b"secret" * 5)
OLD = TicketKey(b"\4\3\2\1", b"older!" * 5)
PLACE = TicketPlace("0123456789abcdef", "00112233445566778899aabbccddeeff")
EXPIRES = 1_000_000.0
SLACK = 10.0


def request(text: str = "hello", tenant: str = "t", name: str = "n", ticket: str = "", **fields: Any) -> Request:
    messages = (wire.Message(role="user", content=text),)
    caller = CallerIdentity(tenant, name)
    trace = TraceContext("0" * 32, "")
    fields = {"wait_ms": 9_000, "messages": messages, **fields}
    return Request("r", fields.pop("messages"), text, 0.0, 60.0, trace, caller=caller, ticket=ticket, **fields)


TICKET = write_ticket(KEY, request(), PLACE, EXPIRES)


def test_a_ticket_is_read_by_every_router_with_its_key() -> None:
    assert len(TICKET) == TICKET_BYTES
    assert read_ticket((OLD, KEY), request(ticket=TICKET), EXPIRES) == PLACE
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


_OTHERS: list[dict[str, Any]] = [
    {"text": "other"},
    {"tenant": "other"},
    {"name": "other"},
    {"max_tokens": 9},
    {"seed": 9},
    {"force": ("writer",)},
    {"stop": (".",)},
    {"adapters": ("other",)},
    {"messages": (wire.Message(role="user", content="hello"), wire.Message(role="user", content="more"))},
    {"messages": (wire.Message(role="system", content="hello"),)},
    {"embed": True},
]


@given(st.lists(st.sampled_from(_OTHERS), min_size=1, max_size=4), st.integers(0, 9))
def test_a_stolen_ticket_is_not_valid_whatever_its_priority(changes: list[dict[str, Any]], priority: int) -> None:
    changed = {name: value for each in changes for name, value in each.items()}
    assert read_ticket((KEY,), request(ticket=TICKET, priority=priority, **changed), 0.0) is None


@given(st.floats(-1e6, 1e6))
def test_an_expired_ticket_is_not_valid(after: float) -> None:
    assume(abs(after - SLACK) > 0.001)
    found = read_ticket((KEY,), request(ticket=TICKET), EXPIRES + after)
    assert found == (PLACE if after < SLACK else None)


class FakeReplica:
    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.released: list[str] = []

    @property
    def channel(self) -> "FakeReplica":
        return self

    async def call(self, path: str, raw: bytes, *, timeout: float) -> bytes:
        self.released += wire.ReleasePlacesRequest.FromString(raw).keys
        return b""


def keeping(instance: str, key: str, after_ms: int = 500) -> Refusal:
    refusal = Refusal(error_pb2.ERROR_REASON_QUEUE_FULL, "full", retry_after=after_ms / 1000)
    refusal.error.place.CopyFrom(wire.Place(instance=instance, key=key, kept_ms=2000))
    return refusal


def tickets_of(*keys: TicketKey) -> Tickets:
    return Tickets(lambda: keys, lambda: EXPIRES, lambda: None)


async def test_the_final_refusal_gets_a_ticket_and_other_places_are_given_up() -> None:
    shared, first, second = tickets_of(KEY), FakeReplica(PLACE.instance), FakeReplica("fedcba9876543210")
    asked = request()
    tickets = shared.open(asked)
    message = wire.GenerateRequest()
    tickets.fill(message, first, is_first_choice=True)  # type: ignore[arg-type]
    assert message.place_for and message.HasField("wait_ms") and not message.place
    kept, spare = keeping(PLACE.instance, PLACE.key), keeping(second.instance, "ff" * 16)
    tickets.refused(first, kept)  # type: ignore[arg-type]
    tickets.refused(second, spare)  # type: ignore[arg-type]
    tickets.end(kept)
    await shared.settle()
    assert (first.released, second.released) == ([], ["ff" * 16])
    assert not kept.error.HasField("place") and not spare.error.ticket
    back = request(ticket=kept.error.ticket)
    again = shared.open(back)
    assert again.place == PLACE
    for replica, place in ((second, ""), (first, PLACE.key)):
        message = wire.GenerateRequest()
        again.fill(message, replica, is_first_choice=True)  # type: ignore[arg-type]
        assert message.place == place, "only the process that keeps the place is told its key"
    again.accepted(wire.Accepted(reserved=True))
    again.end()
    assert +shared.counts == {"issued": 1, "honoured": 1}


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_request_that_ends_without_a_refusal_gives_every_place_up(is_answered: bool) -> None:
    """An accepted request does so at once: a place that is kept until the end of a long answer lapses."""
    shared, replica = tickets_of(KEY), FakeReplica(PLACE.instance)
    tickets = shared.open(request())
    tickets.refused(replica, keeping(PLACE.instance, PLACE.key))  # type: ignore[arg-type]
    if is_answered:
        tickets.accepted(wire.Accepted())
    else:
        tickets.end()
    await shared.settle()
    assert replica.released == [PLACE.key] and not +shared.counts


OTHER = "fedcba9876543210"


@pytest.mark.parametrize("end", ["answered elsewhere", "refused elsewhere", "refused before", "came early", "taken"])
async def test_the_place_of_a_ticket_is_given_up_unless_it_is_taken_or_still_kept(end: str) -> None:
    shared, replica, other = tickets_of(KEY), FakeReplica(PLACE.instance), FakeReplica(OTHER)
    tickets = shared.open(request(ticket=TICKET), {PLACE.instance: replica, OTHER: other}.get)  # type: ignore[arg-type]
    refusal = None
    if end == "answered elsewhere":
        tickets.accepted(wire.Accepted())
        await shared.settle()
        assert replica.released == [PLACE.key], "it does not wait for the end of the answer"
    elif end == "refused elsewhere":
        refusal = keeping(OTHER, "ff" * 16)
        tickets.refused(other, refusal)  # type: ignore[arg-type]
    elif end == "came early":
        refusal = keeping(*PLACE)
        tickets.refused(replica, refusal)  # type: ignore[arg-type]
    elif end == "taken":
        tickets.accepted(wire.Accepted(reserved=True))
    tickets.end(refusal)
    tickets.end()
    await shared.settle()
    is_kept = end in ("came early", "taken")
    assert (replica.released, other.released) == ([] if is_kept else [PLACE.key], [])
    assert shared.counts["not_honoured"] == (not is_kept)


async def test_a_place_is_shown_to_its_replica_even_if_that_is_the_second_choice_now() -> None:
    for wait_ms in (None, 0):
        asked = request(ticket=TICKET, wait_ms=wait_ms)
        message = wire.GenerateRequest()
        tickets_of(KEY).open(asked).fill(message, FakeReplica(PLACE.instance), is_first_choice=False)  # type: ignore[arg-type]
        assert message.place == PLACE.key and message.place_for and not message.HasField("wait_ms")


@pytest.mark.parametrize(("keys", "wait_ms", "is_first"), [((), 0, True), ((KEY,), None, True), ((KEY,), 0, False)])
async def test_no_place_is_asked_for(keys: tuple[TicketKey, ...], wait_ms: int | None, is_first: bool) -> None:
    """Without a key, for a caller that uses no tickets, and at the second choice."""
    message = wire.GenerateRequest()
    tickets = tickets_of(*keys).open(request(wait_ms=wait_ms))
    tickets.fill(message, FakeReplica(PLACE.instance), is_first_choice=is_first)  # type: ignore[arg-type]
    assert message == wire.GenerateRequest()


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_strange_place_makes_no_ticket(instance: str, key: str) -> None:
    assume((len(instance), len(key)) != (16, 32))
    assert not is_well_formed(wire.Place(instance=instance, key=key))
