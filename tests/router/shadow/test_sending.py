"""Whom a shadow blames: its own connection is not the one by which a replica is known to live."""

from collections.abc import Iterator

import grpc
import pytest
from grpc.aio import Metadata

from octet.clock import ManualClock
from router.after.kept import Kept
from router.after.room import Room
from router.dispatch.quarantine import Quarantine
from router.shadow.sending import Sending
from tests.router.replicas.builders import replica
from tests.router.service.spy import ACCEPTED
from tests.service.harness import run

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
def test_a_shadow_that_never_got_there_blames_nobody(messages: tuple[bytes, ...], blames: bool) -> None:
    """As where its own channel waits before it connects again."""
    made = replica()
    made.connected(warm=True)
    sending = Sending(made, Kept(Room(1000), 1000), 0)
    run(sending.listen(Breaking(*messages)))
    assert sending.ending == "failed" or not blames
    assert sending.broken is (made.link if blames else None)


def test_a_shadow_whose_own_connection_breaks_has_killed_nobody_until_the_replica_is_lost() -> None:
    made, quarantine = replica(), Quarantine(ManualClock(), lambda: 100.0)
    made.connected(warm=True)
    sending = Sending(made, Kept(Room(1000), 1000), 0)
    run(sending.listen(Breaking(ACCEPTED.SerializeToString())))
    assert sending.broken is not None
    quarantine.left(lambda: b"shadowed", sending.broken)
    assert not quarantine.suspects(lambda: b"shadowed")
    made.lost("gone")
    assert quarantine.suspects(lambda: b"shadowed")
