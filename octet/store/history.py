"""What one process knows of its database, for the day that another one lies in its place. On the store's thread."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octet.store.held import Counts, Place
from octet.store.rows import Bucket, Document

_FEW = 1000
"""Counts that are not worth a look for old ones."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a reader has come, and in which database."""

    identity: str
    seq: int
    audits: int
    """The number of the last row."""

    @property
    def name(self) -> str:
        """Of the database, for people."""
        return self.identity[:12]


class History:
    def __init__(self, name: str, wall: Callable[[], float]) -> None:
        """`name` of the place where the database lies; `wall` tells Unix seconds."""
        self.name = name
        self.wall = wall
        self.mark: Mark | None = None
        self.documents: dict[tuple[str, str], Document] = {}
        """Deleted ones among them."""
        self.sums: dict[Place, Counts] = {}
        """Of late, as they are stored."""
        self._most_sums = _FEW

    def goes_on(self, mark: Mark) -> bool:
        """Whether it is the same database, and nothing that was seen is undone."""
        return self.mark is None or (mark.identity == self.mark.identity and mark.seq >= self.mark.seq)

    def begin_anew(self, mark: Mark, documents: Iterable[Document], *, with_sums: bool) -> None:
        self.mark = mark
        self.documents = {(each.kind, each.key): each for each in documents}
        self.sums = self.sums if with_sums else {}

    def learn(self, mark: Mark, documents: Iterable[Document], buckets: Iterable[Bucket] = (), since: int = 0) -> None:
        """What was read, or committed here. Counts that begin before `since` need not be known."""
        self.mark = mark
        for each in documents:
            known = self.documents.get((each.kind, each.key))
            if known is None or known.version <= each.version:
                self.documents[each.kind, each.key] = each
        self.sums.update({(each.series, each.key, each.start): (each.good, each.bad) for each in buckets})
        if len(self.sums) > self._most_sums:
            self.sums = {place: sums for place, sums in self.sums.items() if place[2] >= since}
            self._most_sums = 2 * len(self.sums) + _FEW
