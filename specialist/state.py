"""State that belongs to a sequence and not to the block pool: what a recurrent layer carries along."""

from typing import Any, Protocol


class SnapshotUnusable(RuntimeError):
    """A snapshot is corrupt or of another shape: the tokens it stood for must be computed again."""


class Snapshot(Protocol):
    """An immutable copy of a sequence's state at one token boundary, fit to be kept on the host."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class SequenceState(Protocol):
    """A state stands at exactly one boundary: the tokens it has absorbed for good.

    A forward pass over tokens [n, n+k) stages the states behind each of them without touching the one at n;
    `trim()` then settles on one of those boundaries. A step that fails or whose drafts are rejected therefore
    leaves nothing behind.
    """

    @property
    def state(self) -> Any:
        """The tensors at the current boundary, for the engine alone."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def trim(self, num_tokens: int) -> None:
        """Settle at `num_tokens`, which is the current boundary or a staged one, and forget the staged rest."""

    def snapshot(self, tail: int | None) -> Snapshot | None:
        """Copy the state, and the content of the partly filled KV block `tail` if there is one.

        None when there is no room for a copy: the tokens are then computed again.
        """

    def restore(self, snapshot: Snapshot, tail: int | None) -> None:
        """Become the snapshot, and write its tail to KV block `tail`. Raises SnapshotUnusable, changing nothing."""
