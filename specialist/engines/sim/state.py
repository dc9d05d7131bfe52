"""A recurrent state of one number, with everything a real one needs around it."""

from dataclasses import dataclass
from zlib import crc32

from specialist.engines.sim.memory import SimMemory
from specialist.state import Snapshot, SnapshotUnusable


@dataclass(frozen=True, slots=True)
class SimSnapshot:
    num_tokens: int
    value: int
    tail: tuple[int | None, ...] | None
    checksum: int
    nbytes: int = 8


def _checksum(num_tokens: int, value: int, tail: tuple[int | None, ...] | None) -> int:
    return crc32(repr((num_tokens, value, tail)).encode())


class SimState:
    def __init__(self, memory: SimMemory) -> None:
        self._memory = memory
        self._num_tokens = 0
        self._staged = [0]
        """The state at the current boundary, then behind each token a forward pass has gone past it."""

    @property
    def state(self) -> int:
        return self._staged[0]

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def nbytes(self) -> int:
        return 8

    def stage(self, values: list[int]) -> None:
        self._staged = [self._staged[0], *values]

    def trim(self, num_tokens: int) -> None:
        ahead = num_tokens - self._num_tokens
        if not 0 <= ahead < len(self._staged):
            raise ValueError(f"at {self._num_tokens} tokens, {len(self._staged) - 1} staged: cannot go to {num_tokens}")
        self._staged = [self._staged[ahead]]
        self._num_tokens = num_tokens

    def snapshot(self, tail: int | None) -> SimSnapshot | None:
        cells = None if tail is None else self._memory.read_block(tail)
        checksum = _checksum(self._num_tokens, self.state, cells)
        return SimSnapshot(self._num_tokens, self.state, cells, checksum)

    def restore(self, snapshot: Snapshot, tail: int | None) -> None:
        if not isinstance(snapshot, SimSnapshot):
            raise SnapshotUnusable(f"not a snapshot of this engine: {type(snapshot).__name__}")
        if snapshot.checksum != _checksum(snapshot.num_tokens, snapshot.value, snapshot.tail):
            raise SnapshotUnusable("checksum differs")
        if (tail is None) != (snapshot.tail is None):
            raise SnapshotUnusable("a partial block without a place for it, or the reverse")
        if tail is not None and snapshot.tail is not None:
            self._memory.write_block(tail, snapshot.tail)
        self._num_tokens, self._staged = snapshot.num_tokens, [snapshot.value]
