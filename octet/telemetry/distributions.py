"""Distributions: histograms, mergeable quantile sketches and sliding windows of them."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import ceil, inf, isnan, log
from operator import add
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

TTFT_SECONDS_BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3),
    *(0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0),
)
ITL_SECONDS_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0),
)
REQUEST_SECONDS_BOUNDS = (
    *(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
DECISION_SECONDS_BOUNDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25)
STEP_SECONDS_BOUNDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0)
TOKENIZE_SECONDS_BOUNDS = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
VERIFY_SECONDS_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TOKENS_BOUNDS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
"""OpenTelemetry's buckets, up to the longest context."""
TOKENS_PER_SECOND_BOUNDS = (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000)
ROWS_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIO_BOUNDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Histogram:
    """Counts values in buckets. Written by one thread, read by any. Negative, infinite and NaN values are skipped."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the upper ends of the buckets, ascending. The last bucket has no upper end."""
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"bounds must be non-empty and ascending, got {bounds!r:.100}")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        if 0 <= value < inf:
            self.counts[bisect_left(self.bounds, value)] += count
            self.total += value * count

    @property
    def num_values(self) -> int:
        return sum(self.counts)


RELATIVE_ERROR = 0.01
LEAST_SECONDS = 1e-5
MOST_SECONDS = 86_400.0  # durations outside of this range count as its ends
_ERROR = RELATIVE_ERROR * 0.9999  # the rest is reserved for the rounding of logarithms
_GAMMA = (1 + _ERROR) / (1 - _ERROR)
_UP = 1 / LEAST_SECONDS
_PER_LOG = 1 / log(_GAMMA)
_MIDDLE = LEAST_SECONDS * 2 * _GAMMA / (1 + _GAMMA)
"""The value in the first bucket with the same relative distance to both ends."""
NUM_BUCKETS = int(log(MOST_SECONDS * _UP) * _PER_LOG) + 1
_STEP = 32  # buckets are allocated in groups of this size
_VERSION = 1
_MOST_COUNT = 1 << 48
_BITS = 7
_MORE = 1 << _BITS
_MOST_SHIFT = 63


class BadSketch(ValueError):
    """The bytes are not a sketch, or have an unsupported version."""


class Sketch:
    """A quantile sketch of durations. It stores only the buckets from the shortest to the longest duration."""

    __slots__ = ("_counts", "_first", "count")

    def __init__(self) -> None:
        self._first = 0
        self._counts: array[int] = array("I")
        self.count = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and dict(self._filled()) == dict(other._filled())

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, seconds: float, count: int = 1) -> None:
        """Raises ValueError for NaN."""
        index = int(log(seconds * _UP) * _PER_LOG) if LEAST_SECONDS <= seconds < MOST_SECONDS else _edge(seconds)
        place = index - self._first
        if not 0 <= place < len(self._counts):
            place = self._make_room(index, index + 1, index)
        try:
            self._counts[place] += count
        except OverflowError:
            self._widen_counts()
            self._counts[place] += count
        self.count += count

    def merge(self, other: "Sketch") -> None:
        if not other.count:
            return
        size = len(other._counts)
        start = self._make_room(other._first, other._first + size, other._first)
        here = self._counts[start : start + size]
        try:
            both = array(here.typecode, map(add, here, other._counts))
        except OverflowError:
            self._widen_counts()
            both = array(self._counts.typecode, map(add, here, other._counts))
        self._counts[start : start + size] = both
        self.count += other.count

    def quantile(self, share: float) -> float | None:
        return self.quantiles((share,))[0]

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """For each share, return the duration that this share of the samples does not exceed; None without samples."""
        if not self.count:
            return [None] * len(shares)
        sums = list(accumulate(self._counts))
        ranks = (max(1, ceil(share * self.count)) for share in shares)
        return [_MIDDLE * _GAMMA ** (self._first + bisect_left(sums, rank)) for rank in ranks]

    def to_bytes(self) -> bytes:
        """Serialise the sketch to bytes, which do not depend on the order of the samples."""
        written = bytearray((_VERSION,))
        before = -1
        for index, count in self._filled():
            _write_varint(index - before, written)
            _write_varint(count, written)
            before = index
        return bytes(written)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Sketch":
        """Raises BadSketch for invalid bytes."""
        if not raw or raw[0] != _VERSION:
            raise BadSketch(f"a sketch must begin with byte {_VERSION:02x}, got {raw[:1].hex() or 'nothing'}")
        filled = list(_read_buckets(raw))
        found = cls()
        if filled:
            found._make_room(filled[0][0], filled[-1][0] + 1, 0)
            if max(count for _, count in filled) >> 32:
                found._widen_counts()
        for index, count in filled:
            found._counts[index - found._first] = count
            found.count += count
        return found

    def _filled(self) -> Iterator[tuple[int, int]]:
        return ((index, count) for index, count in enumerate(self._counts, self._first) if count)

    def _make_room(self, first: int, end: int, index: int) -> int:
        """Make room for the buckets from `first` to `end - 1`. Return the position of bucket `index`."""
        if not self._counts:
            self._first = first - first % _STEP
        before = self._first - first
        if before > 0:
            before += first % _STEP
            self._counts = array(self._counts.typecode, bytes(self._counts.itemsize * before)) + self._counts
            self._first -= before
        lacking = end - self._first - len(self._counts)
        if lacking > 0:
            room = min(lacking + -end % _STEP, NUM_BUCKETS - self._first - len(self._counts))
            self._counts.frombytes(bytes(self._counts.itemsize * room))
        return index - self._first

    def _widen_counts(self) -> None:
        """Switch to eight bytes per bucket after an overflow."""
        self._counts = array("Q", self._counts)


def _edge(seconds: float) -> int:
    if isnan(seconds):
        raise ValueError("a duration must be a number of seconds, got nan")
    return 0 if seconds < LEAST_SECONDS else NUM_BUCKETS - 1


def _write_varint(number: int, into: bytearray) -> None:
    """Write seven bits per byte, low bits first."""
    while number >= _MORE:
        into.append(number % _MORE | _MORE)
        number >>= _BITS
    into.append(number)


def _read_buckets(raw: bytes) -> Iterator[tuple[int, int]]:
    index = -1
    numbers = _read_varints(raw)
    for step in numbers:
        count = next(numbers, 0)
        index += step
        if step < 1 or index >= NUM_BUCKETS:
            raise BadSketch(f"bucket indices must be in ascending order and at most {NUM_BUCKETS - 1}, got {index}")
        if not 1 <= count <= _MOST_COUNT:
            raise BadSketch(f"a bucket must hold 1 to {_MOST_COUNT} samples, got {count}")
        yield index, count


def _read_varints(raw: bytes) -> Iterator[int]:
    """Yield the numbers after the version byte. Raises BadSketch."""
    number = shift = 0
    for byte in memoryview(raw)[1:]:
        if byte < _MORE:
            yield number | byte << shift
            number = shift = 0
        elif shift > _MOST_SHIFT:
            raise BadSketch("a number in the sketch is too long")
        else:
            number |= (byte - _MORE) << shift
            shift += _BITS
    if shift:
        raise BadSketch("the sketch ends in the middle of a number")


DEFAULT_PARTS = 10  # slices of a window
MOST_AHEAD_SECONDS = 60.0
"""A slice further in the future than this comes from a wrong clock and is not counted yet."""
_SPARE = 2  # spare slices: the current one, and the oldest, of which only a part still counts


class Mergeable(Protocol):
    def merge(self, other: Self, /) -> None: ...


MergeableT = TypeVar("MergeableT", bound=Mergeable)


class TimeSlice(NamedTuple):
    """A slice of time: its start in milliseconds since 1970, and its span in milliseconds."""

    start: int
    span: int

    @property
    def end(self) -> int:
        return self.start + self.span


class SlidingWindow(Generic[MergeableT]):
    """Merges the values of at least the last `seconds`, which are kept in time slices; a slice expires as a whole.
    Slices start at multiples of their span, so that the slices of several processes align. `now` is in Unix seconds."""

    def __init__(self, seconds: float, make: Callable[[], MergeableT], parts: int = DEFAULT_PARTS) -> None:
        self._make = make
        self._parts = parts
        self._slices: dict[TimeSlice, MergeableT] = {}
        self._closed: tuple[tuple[TimeSlice, ...], MergeableT] = ((), make())
        """The sum of the counted slices that can no longer change."""
        self.resize(seconds)

    def resize(self, seconds: float) -> None:
        self.seconds = seconds
        self._span = max(1, round(seconds * 1000 / self._parts))
        self._current: MergeableT | None = None
        self.filling: TimeSlice | None = None
        self.begins = self.ends = 0.0

    def __len__(self) -> int:
        return len(self._slices)

    @property
    def slices(self) -> Mapping[TimeSlice, MergeableT]:
        return self._slices

    def find_slice(self, now: float) -> TimeSlice:
        return TimeSlice(int(now * 1000) // self._span * self._span, self._span)

    def current(self, now: float) -> MergeableT:
        if self._current is not None and self.begins <= now < self.ends:
            return self._current
        self.expire(now)
        for slot in [slot for slot in self._slices if slot.start > (now + MOST_AHEAD_SECONDS) * 1000]:
            del self._slices[slot]  # filled by this process while its clock was wrong
        self.filling = slot = self.find_slice(now)
        self._current = self._slices.setdefault(slot, self._make())
        self.begins, self.ends = slot.start / 1000, slot.end / 1000
        self._bound()
        return self._current

    def put(self, slot: TimeSlice, content: MergeableT) -> None:
        self._slices[slot] = content
        self._closed = ((), self._make())
        self._bound()

    def drop(self, slot: TimeSlice) -> None:
        self._slices.pop(slot, None)
        self._closed = ((), self._make())

    def counts(self, slot: TimeSlice, now: float) -> bool:
        """Whether the slice is part of the sum: it overlaps the last `seconds` and is not too far in the future."""
        return slot.end > (now - self.seconds) * 1000 and slot.start <= (now + MOST_AHEAD_SECONDS) * 1000

    def total(self, now: float) -> MergeableT:
        counted = [slot for slot in self._slices if self.counts(slot, now)]
        still_open = (self.find_slice(now), self.filling)
        closed = tuple(slot for slot in counted if slot not in still_open)
        if self._closed[0] != closed:
            self._closed = (closed, self._sum(closed))
        total = self._sum(slot for slot in counted if slot in still_open)
        total.merge(self._closed[1])
        return total

    def expire(self, now: float) -> None:
        for slot in [slot for slot in self._slices if slot.end <= (now - self.seconds) * 1000]:
            del self._slices[slot]

    def _sum(self, slots: Iterable[TimeSlice]) -> MergeableT:
        total = self._make()
        for slot in slots:
            total.merge(self._slices[slot])
        return total

    def _bound(self) -> None:
        """Drop the oldest slices beyond twice the usual number. A clock jump or a `resize` can leave that many."""
        number = len(self._slices) - 2 * (self._parts + _SPARE)
        for slot in sorted(self._slices)[:number] if number > 0 else ():
            if slot != self.filling:
                del self._slices[slot]
