"""Requests that may have killed a replica, from the caller's side of the router."""

import asyncio

import pytest

from router.reception import content
from router.reception.ask import Ask
from router.replicas.link import Link
from tests.router.service.harness import Routed, asking, routing
from tests.router.service.spy import Spy, hang, spying
from tests.service.harness import run


def test_what_is_asked_is_hashed_once_a_request_and_only_while_somebody_is_suspected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[Ask] = []
    real = content.content_digest

    def counted(ask: Ask) -> bytes:
        hashed.append(ask)
        return real(ask)

    monkeypatch.setattr(content, "content_digest", counted)

    async def story() -> None:
        async with spying() as spy, routing({"writer": [spy.address]}) as routed:
            assert (await routed.ask(asking())).reason == 0 and not hashed
            routed.server.quarantine.died_with(lambda: b"somebody else", Link())
            for num_asked in (1, 2):
                assert (await routed.ask(asking())).reason == 0
                assert len(hashed) == num_asked

    run(story())


@pytest.mark.parametrize("leave", ["hang up", "deadline"])
def test_a_caller_that_leaves_before_its_replica_dies_was_there(leave: str) -> None:
    async def story() -> None:
        async with spying(hang) as spy, routing({"writer": [spy.address]}) as routed:
            await left(routed, spy, leave)
            assert len(routed.server.quarantine) == 0
            (replica,) = routed.server.fleet.replicas
            replica.lost("killed")
            assert len(routed.server.quarantine) == 1

    run(story())


async def left(routed: Routed, spy: Spy, leave: str) -> None:
    if leave == "deadline":
        await routed.ask(asking(timeout_ms=300))
    else:
        call = routed.generate(asking())
        hearing = asyncio.create_task(call.read())
        await routed.until(lambda: spy.asked)
        call.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    await routed.idle()
