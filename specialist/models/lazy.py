"""Weights that stay on disk until somebody asks for them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from specialist.models.weight import Weight


@dataclass(frozen=True, slots=True, eq=False)
class LazyWeights(Mapping[str, Weight]):
    """A name is read anew each time it is asked for: keep what you need, nothing is kept here."""

    readers: Mapping[str, Callable[[], Weight]]

    def __getitem__(self, name: str) -> Weight:
        return self.readers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self.readers

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers)

    def __len__(self) -> int:
        return len(self.readers)
