"""What the scheduler and an engine need to know of an answer that must keep a form."""

from collections.abc import Sequence
from typing import Protocol


class NothingFits(Exception):
    """What was generated has left the form, or following it further costs more than is allowed."""


class Steering(Protocol):
    """One a request. What it says depends on the tokens it is asked about alone, whatever it was asked before."""

    def allowed(self, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        """One bit for each token of the vocabulary, the lowest first: which may follow. None behind a guess that does
        not fit: nothing drawn there counts. Raises NothingFits."""

    def takes(self, generated: Sequence[int], guessed: Sequence[int], token: int) -> bool:
        """The token is one of those allowed. Answered where that is sooner known than which all are: False says
        nothing."""

    def ended(self, generated: Sequence[int], fresh: Sequence[int]) -> bool:
        """With the fresh tokens the form is complete, and nothing can follow but a stop token."""
