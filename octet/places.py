"""Where each replica that is started here is to listen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from octet.config.ensemble import Ensemble, SpecialistConfig

_MAX_NAME = 24
"""Characters: the path of a Unix socket is short."""


@dataclass(frozen=True, slots=True)
class Place:
    """One replica."""

    name: str
    specialist: SpecialistConfig
    socket: Path

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"


def places_of(ensemble: Ensemble, folder: Path) -> Sequence[Place]:
    """One for each replica; none for specialists that run elsewhere."""
    return [
        Place(name, specialist, folder / f"{number}-{specialist.name[:_MAX_NAME]}.sock")
        for number, (name, specialist) in enumerate(_names(ensemble))
    ]


def _names(ensemble: Ensemble) -> Iterator[tuple[str, SpecialistConfig]]:
    for specialist in ensemble.specialists:
        if specialist.addresses:
            continue
        if specialist.replicas == 1:
            yield specialist.name, specialist
            continue
        for index in range(specialist.replicas):
            yield f"{specialist.name}/{index + 1}", specialist
