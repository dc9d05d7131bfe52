"""What this router's configuration has had in force before: a configuration begins a lane once. Where another router's
has taken its place since, that one stays, or the two would go on for ever."""

from admission.lanes import CONFIGURATION, LaneBook, Origin
from router.control.offers import is_asked_for


class Claims:
    def __init__(self) -> None:
        self._made: dict[str, Origin] = {}
        """By specialist: the last of its own that was written down."""

    def note(self, book: LaneBook, own: frozenset[Origin]) -> None:
        """The book as it is written down."""
        if book.origin in own:
            self._made[book.specialist] = book.origin

    def is_overruled(self, book: LaneBook, own: frozenset[Origin]) -> bool:
        """Whether another router has begun what is in force, after this one had begun all that it asks for."""
        made = self._made.get(book.specialist)
        if made is None:
            return False
        if not is_asked_for(book, own):
            return any(each.digests == made.digests for each in own)
        return made in own and book.origin not in own and book.serving.by == CONFIGURATION
