"""Many durations in little room: how many fell into each of some buckets, every one a fixed share wider than the last.

A quantile that is read from it lies at most `RELATIVE_ERROR` of itself away from the exact one, however many samples
there are and however they are spread. Two of them make one by adding up, in any order. What is shorter than `LEAST` or
longer than `MOST` counts as that.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import ceil, isnan, log
from operator import add

RELATIVE_ERROR = 0.01
LEAST = 1e-5
MOST = 86_400.0
"""Seconds, both."""
_ERROR = RELATIVE_ERROR * 0.9999
"""What is left of it is for the rounding of logarithms."""
_GAMMA = (1 + _ERROR) / (1 - _ERROR)
_UP = 1 / LEAST
_PER_LOG = 1 / log(_GAMMA)
_MIDDLE = LEAST * 2 * _GAMMA / (1 + _GAMMA)
"""Of the first bucket: as far from its lower end as from its upper one, by their own measure."""
SIZE = int(log(MOST * _UP) * _PER_LOG) + 1
"""Buckets."""
_STEP = 32
"""Buckets come into being so many at a time."""
_VERSION = 1
_MOST_COUNT = 1 << 48
_BITS = 7
_MORE = 1 << _BITS
_MOST_SHIFT = 63


class BadSketch(ValueError):
    """These bytes are no sketch, or one of another version."""


class Sketch:
    """Room for the buckets between the shortest and the longest sample, and no more than four bytes for each."""

    __slots__ = ("_counts", "_first", "count")

    def __init__(self) -> None:
        self._first = 0
        self._counts: array[int] = array("I")
        self.count = 0
        """Samples."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and dict(self._filled()) == dict(other._filled())

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, seconds: float) -> None:
        """Raises ValueError for what is no number."""
        index = int(log(seconds * _UP) * _PER_LOG) if LEAST <= seconds < MOST else _edge(seconds)
        place = index - self._first
        if not 0 <= place < len(self._counts):
            place = self._widened(index, index + 1, index)
        try:
            self._counts[place] += 1
        except OverflowError:
            self._deepen()
            self._counts[place] += 1
        self.count += 1

    def merge(self, other: "Sketch") -> None:
        """As if the other's samples had been added here."""
        if not other.count:
            return
        size = len(other._counts)
        start = self._widened(other._first, other._first + size, other._first)
        here = self._counts[start : start + size]
        try:
            both = array(here.typecode, map(add, here, other._counts))
        except OverflowError:
            self._deepen()
            both = array(self._counts.typecode, map(add, here, other._counts))
        self._counts[start : start + size] = both
        self.count += other.count

    def quantile(self, share: float) -> float | None:
        """As `quantiles`, for one."""
        return self.quantiles((share,))[0]

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """The least duration that so large a share of the samples does not exceed; None without samples."""
        if not self.count:
            return [None] * len(shares)
        sums = list(accumulate(self._counts))
        ranks = (max(1, ceil(share * self.count)) for share in shares)
        return [_MIDDLE * _GAMMA ** (self._first + bisect_left(sums, rank)) for rank in ranks]

    def above(self, seconds: float) -> int:
        """Samples that took longer; of those as near to it as the error is, some may be counted wrongly."""
        index = int(log(seconds * _UP) * _PER_LOG) if LEAST <= seconds < MOST else _edge(seconds)
        return sum(self._counts[max(0, index + 1 - self._first) :])

    def to_bytes(self) -> bytes:
        """The same for the same samples, whatever order they came in."""
        written = bytearray((_VERSION,))
        before = -1
        for index, count in self._filled():
            _write(index - before, written)
            _write(count, written)
            before = index
        return bytes(written)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Sketch":
        """Raises BadSketch."""
        if not raw or raw[0] != _VERSION:
            raise BadSketch(f"it must begin with {_VERSION}, got {raw[:1].hex() or 'nothing'}")
        filled = list(_filled(raw))
        found = cls()
        if filled:
            found._widened(filled[0][0], filled[-1][0] + 1, 0)
            if max(count for _, count in filled) >> 32:
                found._deepen()
        for index, count in filled:
            found._counts[index - found._first] = count
            found.count += count
        return found

    def _filled(self) -> Iterator[tuple[int, int]]:
        return ((index, count) for index, count in enumerate(self._counts, self._first) if count)

    def _widened(self, first: int, end: int, index: int) -> int:
        """There is room from bucket `first` to `end`. Where `index` is then."""
        if not self._counts:
            self._first = first - first % _STEP
        before = self._first - first
        if before > 0:
            before += first % _STEP
            self._counts = array(self._counts.typecode, bytes(self._counts.itemsize * before)) + self._counts
            self._first -= before
        lacking = end - self._first - len(self._counts)
        if lacking > 0:
            room = min(lacking + -end % _STEP, SIZE - self._first - len(self._counts))
            self._counts.frombytes(bytes(self._counts.itemsize * room))
        return index - self._first

    def _deepen(self) -> None:
        """A bucket has more than four bytes can count."""
        self._counts = array("Q", self._counts)


def _edge(seconds: float) -> int:
    if isnan(seconds):
        raise ValueError("a duration must be a number of seconds, got nan")
    return 0 if seconds < LEAST else SIZE - 1


def _write(number: int, into: bytearray) -> None:
    """Seven bits a byte, the low ones first."""
    while number >= _MORE:
        into.append(number % _MORE | _MORE)
        number >>= _BITS
    into.append(number)


def _filled(raw: bytes) -> Iterator[tuple[int, int]]:
    """Buckets and what is in them. Raises BadSketch."""
    index = -1
    numbers = _numbers(raw)
    for step in numbers:
        count = next(numbers, 0)
        index += step
        if step < 1 or index >= SIZE:
            raise BadSketch(f"buckets must count up to at most {SIZE - 1}, got {index}")
        if not 1 <= count <= _MOST_COUNT:
            raise BadSketch(f"a bucket must hold 1 to {_MOST_COUNT} samples, got {count}")
        yield index, count


def _numbers(raw: bytes) -> Iterator[int]:
    """After the first byte. Raises BadSketch."""
    number = shift = 0
    for byte in memoryview(raw)[1:]:
        if byte < _MORE:
            yield number | byte << shift
            number = shift = 0
        elif shift > _MOST_SHIFT:
            raise BadSketch("a number in it is too long")
        else:
            number |= (byte - _MORE) << shift
            shift += _BITS
    if shift:
        raise BadSketch("it ends in the middle")
