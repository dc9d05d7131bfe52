"""A slice as the store keeps it. What somebody else has written there is not believed."""

from math import isfinite

from google.protobuf.message import DecodeError

from octet.telemetry.sketch import BadSketch, Sketch
from octet.v1 import slo_pb2 as wire
from router.slo.slice import Slice, Tally

VERSION = 1
_MOST_TALLIES = 64
_MOST_NAME = 64
_MOST_COUNT = 1 << 48


class BadSlice(ValueError):
    """These bytes are no slice of that specialist, or one of another version."""


def pack(specialist: str, content: Slice | Tally) -> bytes:
    tally = content.tally if isinstance(content, Slice) else content
    message = wire.SloSlice(
        version=VERSION,
        specialist=specialist,
        answered=tally.answered,
        preempted_once=tally.preempted,
        tallies=[
            wire.SloTally(objective=name, target=target, samples=samples, breached=breached)
            for (name, target), (samples, breached) in list(tally.counts.items())[-_MOST_TALLIES:]
        ],
    )
    if isinstance(content, Slice):
        message.ttft = _packed(content.ttft)
        message.itl = _packed(content.itl)
        message.admission_to_first_token = _packed(content.admission)
    return bytes(message.SerializeToString(deterministic=True))


def unpack(specialist: str, raw: bytes) -> Slice:
    """Raises BadSlice."""
    try:
        message = wire.SloSlice.FromString(raw)
    except DecodeError:
        raise BadSlice("not an octet.v1.SloSlice") from None
    if message.version != VERSION:
        raise BadSlice(f"version must be {VERSION}, got {message.version}")
    if message.specialist != specialist:
        raise BadSlice("it is of another specialist")
    if not 0 <= message.preempted_once <= message.answered <= _MOST_COUNT:
        raise BadSlice(f"preempted_once must be 0 to answered, and that at most {_MOST_COUNT}")
    if len(message.tallies) > _MOST_TALLIES:
        raise BadSlice(f"at most {_MOST_TALLIES} tallies, got {len(message.tallies)}")
    tally = Tally(message.answered, message.preempted_once)
    for each in message.tallies:
        _check(each)
        tally.count({(each.objective, each.target): (each.samples, each.breached)})
    ttft, itl, admission = map(_unpacked, (message.ttft, message.itl, message.admission_to_first_token))
    return Slice(ttft, itl, admission, tally)


def _check(tally: wire.SloTally) -> None:
    if not 1 <= len(tally.objective) <= _MOST_NAME:
        raise BadSlice(f"an objective's name must be 1 to {_MOST_NAME} characters long")
    if not (isfinite(tally.target) and tally.target > 0):
        raise BadSlice(f"a target must be a positive number of seconds, got {tally.target}")
    if not 0 <= tally.breached <= tally.samples <= _MOST_COUNT:
        raise BadSlice(f"breached must be 0 to samples, and those at most {_MOST_COUNT}")


def _packed(sketch: Sketch) -> bytes:
    return sketch.to_bytes() if sketch.count else b""


def _unpacked(raw: bytes) -> Sketch:
    try:
        return Sketch.from_bytes(raw) if raw else Sketch()
    except BadSketch as error:
        raise BadSlice(str(error)) from None
