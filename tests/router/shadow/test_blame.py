"""A shadow's content is blamed for the loss of a replica only if the replica had accepted the shadow. A broken stream
alone proves nothing: shadows have their own connection, which may break while the replica is alive."""

from collections.abc import Iterator

import grpc
import pytest
from grpc.aio import Metadata

from octet.clock import ManualClock
from octet.v1 import inference_pb2 as wire
from router.dispatch.attempts import Quarantine
from router.quality.answers import ByteBudget, CapturedAnswer
from router.quality.shadow_copy import OrderedShadow, ShadowCounters, ShadowStream
from tests.router.replicas.builders import replica
from tests.router.serving.spy import ACCEPTED
from tests.router.shadow.harness import order
from tests.specialist.server.harness import run


def ordered() -> OrderedShadow:
    return OrderedShadow(order(), ShadowCounters())


BROKEN = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "connection reset")


class BreakingStream:
    """A stream that breaks after the given messages."""

    def __init__(self, *messages: bytes) -> None:
        self._messages: Iterator[bytes] = iter(messages)

    async def read(self) -> bytes:
        for each in self._messages:
            return each
        raise BROKEN


@pytest.mark.parametrize(("messages", "blames"), [((), False), ((ACCEPTED.SerializeToString(),), True)])
def test_a_shadow_that_was_not_accepted_blames_no_content(messages: tuple[bytes, ...], blames: bool) -> None:
    connected = replica()
    connected.health_reported(is_serving=True)
    stream = ShadowStream(connected, ordered(), wire.Receipt(), CapturedAnswer(ByteBudget(1000), 1000), 0)
    run(stream.listen(BreakingStream(*messages)))
    assert stream.ordered.ending == "failed" or not blames
    assert stream.broken is (connected.connection if blames else None)


def test_a_broken_shadow_connection_blames_content_only_if_the_replica_is_lost() -> None:
    connected, quarantine = replica(), Quarantine(ManualClock(), lambda: 100.0)
    connected.health_reported(is_serving=True)
    stream = ShadowStream(connected, ordered(), wire.Receipt(), CapturedAnswer(ByteBudget(1000), 1000), 0)
    run(stream.listen(BreakingStream(ACCEPTED.SerializeToString())))
    assert stream.broken is not None
    quarantine.left(lambda: b"shadowed", stream.broken)
    assert not quarantine.suspects(lambda: b"shadowed")
    connected.disconnected("gone")
    assert quarantine.suspects(lambda: b"shadowed")
