"""The way of one request from replica to replica: whom to ask next, whether it may be asked again, what is said when
nobody answers."""

from collections.abc import Sequence
from random import Random

from octet.rpc.refusal import Refusal
from router.dispatch.leg import Leg
from router.refusals import no_replica
from router.replicas.failure import Failure
from router.replicas.replica import Replica

_MOST_UNSAFE = 1
"""A request that was lost with its replica is tried once more, and then no more: it may be the request."""


class Course:
    def __init__(self, legs: Sequence[Leg], session: bytes, random: Random) -> None:
        """The primary's first: its lane's bucket pays."""
        self._legs = list(legs)
        self._bucket = legs[0].lane.bucket
        self._most_attempts = legs[0].lane.dispatch.max_attempts
        self._session = session
        self._random = random
        self._tried: set[str] = set()
        self._failures: list[Failure] = []
        self._leg = legs[0]
        """Of whoever was asked last."""
        self._num_paid = 0
        self._num_unsafe = 0
        self._held_back = False
        """There was somebody left, who could or may not be asked."""

    @property
    def may_wait(self) -> bool:
        """Nobody has taken it yet: it may wait for the lane to come back."""
        return all(failure.kind in ("free", "dropped") for failure in self._failures)

    def start_over(self) -> None:
        """The lane is back."""
        self._tried.clear()

    def next(self) -> Replica | None:
        """Those that are likely to answer first, then those that are not, the primary's before the second choice's.
        None when the request is to end as `refusal` says. Asking again is paid for here, where the last failure cost
        its replica some work; who is turned away at the door costs none."""
        replica = self._choose(sound=True) or self._choose(sound=False)
        if replica is None:
            return None
        if not self._may_ask_again():
            self._held_back = True
            return None
        self._tried.add(replica.name)
        self._leg = next(leg for leg in self._legs if leg.specialist == replica.specialist)
        return replica

    def let_in(self, replica: Replica) -> None:
        """Whoever was asked last computes it from here on: the conversation's next request is to find that."""
        self._leg.lane.homes.learn(self._session, self._leg.adapters, replica.name)

    @property
    def is_spill(self) -> bool:
        """Whoever was asked last is the second choice, because the primary had no room."""
        return self._leg is not self._legs[0] and self._was_full

    @property
    def taken_over_from(self) -> str:
        """Whoever was to be asked first, where the second choice is asked and no want of room is why; else empty."""
        is_first = self._leg is self._legs[0]
        return "" if is_first or self._was_full else self._legs[0].specialist

    def failed(self, failure: Failure) -> None:
        """The replica asked last did not answer."""
        failure = self._leg.read(failure)
        if self._is_of_the_second(failure):
            del self._legs[1:]
            self._held_back = True
            return
        self._failures.append(failure)
        if failure.kind != "free":
            self._num_paid += 1
        if failure.kind in ("dropped", "lost", "failed"):
            self._num_unsafe += 1

    def refusal(self) -> Refusal:
        """What the caller is told when nobody answered."""
        last = self._failures[-1] if self._failures else None
        if last is not None and (last.kind in ("final", "failed") or self._is_held_back_after(last)):
            return last.refusal
        full = [failure for failure in self._failures if failure.kind == "full"]
        if full:
            return min(full, key=lambda each: (each.retry_after is None, each.retry_after)).refusal
        return no_replica(" or ".join(leg.specialist for leg in self._legs))

    def _is_of_the_second(self, failure: Failure) -> bool:
        """The second choice cannot answer this at all, and the caller asked for the primary: what that one said, or
        says yet, stands."""
        return failure.kind == "final" and not failure.is_out_of_time and self._leg is not self._legs[0]

    def _is_held_back_after(self, last: Failure) -> bool:
        return last.kind in ("dropped", "lost") and (self._held_back or self._num_unsafe > _MOST_UNSAFE)

    @property
    def _was_full(self) -> bool:
        return any(failure.kind == "full" for failure in self._failures)

    def _choose(self, *, sound: bool) -> Replica | None:
        """Who spills over to the second choice must find a seat there: its own requests come first. The last attempt
        goes there, rather than to one more of those that had no room."""
        is_last = self._was_full and self._num_paid >= self._most_attempts - 1
        for leg in reversed(self._legs) if is_last else self._legs:
            replica = leg.lane.choose(
                self._tried,
                self._session,
                leg.adapters,
                self._random,
                sound=sound,
                roomy=leg is not self._legs[0] and self._was_full,
                may_answer=leg.may_answer,
            )
            if replica is not None:
                return replica
        return None

    def _may_ask_again(self) -> bool:
        last = self._failures[-1] if self._failures else None
        if last is None or last.kind == "free":
            return True
        if last.kind == "final" or self._num_unsafe > _MOST_UNSAFE or self._num_paid >= self._most_attempts:
            return False
        return last.kind == "full" or self._bucket.take()
