"""Requests that may have killed a replica, from the caller's side of the router."""

import pytest

from router.reception import content
from router.reception.ask import Ask
from router.replicas.link import Link
from tests.router.service.harness import asking, routing
from tests.router.service.spy import spying
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
