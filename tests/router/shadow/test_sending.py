"""Whom a shadow blames: its own connection is not the one by which a replica is known to live."""

from collections.abc import Iterator

import grpc
import pytest
from grpc.aio import Metadata

from octet.clock import ManualClock
from octet.v1 import inference_pb2 as wire
from router.dispatch.attempts import Quarantine
from router.quality.answers import ByteBudget, CapturedAnswer
from router.quality.shadow_copy import ShadowStream
from tests.router.replicas.builders import replica
from tests.router.serving.spy import ACCEPTED
from tests.router.shadow.world import order
from tests.specialist.server.harness import run

BROKEN = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "connection reset")


class Breaking:
    """A stream that breaks after so many messages."""

    def __init__(self, *messages: bytes) -> None:
        self._messages: Iterator[bytes] = iter(messages)

    async def read(self) -> bytes:
        for each in self._messages:
            return each
        raise BROKEN


@pytest.mark.parametrize(("messages", "blames"), [((), False), ((ACCEPTED.SerializeToString(),), True)])
def test_a_shadow_that_was_not_accepted_blames_no_content(messages: tuple[bytes, ...], blames: bool) -> None:
    """As where its own channel waits before it connects again."""
    made = replica()
    made.health_reported(is_serving=True)
    sending = ShadowStream(made, order(), wire.Receipt(), CapturedAnswer(ByteBudget(1000), 1000), 0)
    run(sending.listen(Breaking(*messages)))
    assert sending.ending == "failed" or not blames
    assert sending.broken is (made.connection if blames else None)


def test_a_broken_shadow_connection_blames_content_only_if_the_replica_is_lost() -> None:
    made, quarantine = replica(), Quarantine(ManualClock(), lambda: 100.0)
    made.health_reported(is_serving=True)
    sending = ShadowStream(made, order(), wire.Receipt(), CapturedAnswer(ByteBudget(1000), 1000), 0)
    run(sending.listen(Breaking(ACCEPTED.SerializeToString())))
    assert sending.broken is not None
    quarantine.left(lambda: b"shadowed", sending.broken)
    assert not quarantine.suspects(lambda: b"shadowed")
    made.disconnected("gone")
    assert quarantine.suspects(lambda: b"shadowed")
