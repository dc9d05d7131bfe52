"""What it takes to let one request call tools."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specialist.guide.structure import Structure
from specialist.tools.dialect import Dialect
from specialist.tools.grammar import rules
from specialist.tools.reader import CallReader
from specialist.tools.tool import Offer


@dataclass(frozen=True, slots=True)
class Calling:
    offer: Offer
    dialect: Dialect
    control: Mapping[str, int]
    """Those of the dialect's markers that are tokens without a text."""

    @property
    def is_guided(self) -> bool:
        """What may go wrong while a model writes freely is made impossible where it was asked for."""
        offer = self.offer
        return offer.must_call or offer.one_at_most or any(tool.strict for tool in offer.tools)

    def structure(self, depth: int) -> Structure | None:
        """What the answer is held to; `depth` is the deepest a schema may be. Raises GrammarRefused."""
        if not self.is_guided:
            return None
        return Structure("calls", rules(self.offer, self.dialect, self.control, depth))

    def reader(self, new_id: Callable[[], str]) -> CallReader:
        names = [tool.name for tool in self.offer.callable]
        return CallReader(self.dialect, names, new_id, guided=self.is_guided)

    def spoken(self) -> dict[int, str]:
        """Tokens that are to be written out, for the reader to see them."""
        return {token_id: marker for marker, token_id in self.control.items()}
