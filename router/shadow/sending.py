"""One shadow on its way: its stream is read as a primary's is, and its words go nowhere."""

from math import inf

import grpc

from octet.rpc.calls import CallerGone
from octet.v1 import specialist_pb2 as wire
from router.after.kept import Kept, is_chunk
from router.after.sample import Answer
from router.dispatch.relay import Nonsense, relay
from router.replicas.attempt import Attempt
from router.replicas.failure import failure_of
from router.replicas.link import Link
from router.replicas.replica import Replica
from router.shadow.tally import Ending


class TooLong(Exception):
    """More than is kept of an answer."""


class Sending:
    """Hears the replica's stream. Neither the replica's breaker nor its counts learn of it."""

    def __init__(self, replica: Replica, kept: Kept, num_bytes: int) -> None:
        self.replica = replica
        self.content = b""
        """Its digest, once it is sent."""
        self.broken: Link | None = None
        """The connection to the replica that had taken it, where the shadow's own went away under it."""
        self.kept = kept
        self.num_bytes = num_bytes
        """Of what is asked, as far as room was taken for it."""
        self.ending: Ending = "shed"
        """Until it is known better: one that is withdrawn never is."""
        self.most_chunks = inf
        """No answer has more chunks than tokens, but for one that is all text held back."""
        self.span_id = ""
        """Of a request that is traced, once it is sent."""
        self.began = 0.0
        self.usage = wire.Usage()
        self._num_chunks = 0
        self._lane = wire.Lane()

    async def listen(self, call: object) -> None:
        """To the end of the stream, whatever it is. Raises CancelledError, TimeoutError."""
        attempt = _Unjudged(self.replica)
        attempt.call = call
        try:
            await relay(attempt, self._write, self)
        except CallerGone:
            self.ending = "shed"
        except Nonsense:
            self.ending = "failed"
        except grpc.aio.AioRpcError as error:
            failure = failure_of(error, self.replica.name, was_open=True, accepted=attempt.num_messages > 0)
            self.ending = "shed" if failure.kind in ("free", "full") else "failed"
            self.broken = attempt.link if failure.is_break and attempt.num_messages > 0 else None
        else:
            self.ending = "answered"

    def answer(self) -> Answer | None:
        """What is kept is the answer's to drop, or dropped."""
        if self.ending == "answered":
            return Answer(self._lane, self.usage, self.kept)
        self.kept.drop()
        return None

    async def _write(self, raw: bytes) -> None:
        if is_chunk(raw):
            self._num_chunks += 1
            if self._num_chunks > self.most_chunks or not self.kept.add(raw):
                raise TooLong

    def accepted(self, accepted: wire.Accepted) -> bytes:
        self._lane = accepted.lane
        return b""

    def first_chunk(self) -> None:
        """Nobody is told, as with the next."""

    def next_chunk(self) -> None: ...

    def used(self, usage: wire.Usage) -> None:
        self.usage = usage


class _Unjudged(Attempt):
    __slots__ = ()

    def start(self) -> None:
        self.started = True
