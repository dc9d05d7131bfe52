"""What choosing a replica costs among few and among many: drawing some, beside looking at all of them."""

from functools import partial
from random import Random

from admission.breaker import Breaker
from bench.measure import Subject, Work, interleave
from bench.record import Record
from octet.clock import SystemClock
from octet.config.ensemble import DispatchConfig
from octet.v1 import specialist_pb2 as wire
from router.replicas.address import fixed
from router.replicas.channel import connect
from router.replicas.lane import Lane
from router.replicas.replica import Replica

BENCH = "router"
LANES = (8, 128, 1024)
"""Replicas of one specialist."""
_WAYS = {"some are drawn": True, "all are looked at": False}
_CHOICES = 100
_SEATS = 16


def choice_case(num_replicas: int) -> str:
    return f"one of {num_replicas:,} replicas is chosen"


def choice_records(runs: int) -> list[Record]:
    subjects = [
        Subject(choice_case(number), way, "µs", partial(_ready, lane, is_drawn), _CHOICES)
        for number, lane in ((number, _lane(number)) for number in LANES)
        for way, is_drawn in _WAYS.items()
    ]
    return [timing.record(BENCH) for timing in interleave(subjects, runs)]


def _ready(lane: Lane, is_drawn: bool) -> Work:
    """All have room, as they have just said: not so long ago that it would not count."""
    random = Random(7)
    for index, replica in enumerate(lane.replicas.values()):
        replica.heard(wire.LoadReport(max_running=_SEATS, max_waiting=_SEATS, running=index % _SEATS))

    def work() -> None:
        for _ in range(_CHOICES):
            lane.choose((), b"", (), random, sound=is_drawn)

    return work


def _lane(num_replicas: int) -> Lane:
    """All of them connected and warm."""
    clock, dispatch = SystemClock(), DispatchConfig()
    lane = Lane("stl", dispatch, clock)
    for index in range(num_replicas):
        target = fixed(index, f"127.0.0.1:{index + 1}")
        cooling = {"cool_down": dispatch.cool_down, "max_cool_down": dispatch.max_cool_down}
        breaker = Breaker(clock, failures=dispatch.failures, **cooling)
        replica = Replica("stl", target, connect(target, None), breaker, clock, _SEATS)
        replica.connected(warm=True)
        lane.replicas[replica.name] = replica
    return lane
