"""A subscriber receives every event or, in place of dropped events, their number."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import operator_pb2 as wire
from router.control.control import OperatorEvents


def event(number: int) -> wire.OperatorEvent:
    return wire.OperatorEvent(at_unix_ms=number, audit=wire.AuditEntry(number=number))


@given(st.lists(st.integers(0, 12), max_size=12), st.integers(1, 8))
def test_lost_events_are_counted(bursts: list[int], most: int) -> None:
    async def scenario() -> None:
        events = OperatorEvents(most)
        received: list[int] = []
        with events.subscribe() as subscription:
            num_published = 0
            for burst in bursts:
                for _ in range(burst):
                    num_published += 1
                    events.publish(event(num_published))
                if burst:
                    first = await anext(subscription)
                    received.append(-first.dropped if first.WhichOneof("event") == "dropped" else first.audit.number)
            events.close()
            received += [-each.dropped if each.dropped else each.audit.number async for each in subscription]
        numbers = [each for each in received if each > 0]
        assert (
            numbers == sorted(set(numbers))
            and len(numbers) - sum(each for each in received if each < 0) == num_published
        )

    asyncio.run(scenario())


async def test_a_leaving_subscriber_is_removed_and_a_late_one_gets_the_end() -> None:
    events = OperatorEvents()
    with events.subscribe() as one:
        waiting = asyncio.ensure_future(anext(one))
        await asyncio.sleep(0)
        assert len(events) == 1
        events.publish(event(1))
        assert (await waiting).audit.number == 1
    assert len(events) == 0
    events.publish(event(2))
    events.close()
    with events.subscribe() as late:
        assert [each async for each in late] == []
