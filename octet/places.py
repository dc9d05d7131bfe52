"""Where each replica that is started here is to listen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from octet.config.ensemble import Ensemble, SpecialistConfig
from octet.telemetry.logs import LogSettings

_MAX_NAME = 24
"""Characters: the path of a Unix socket is short."""


@dataclass(frozen=True, slots=True)
class Place:
    """One replica."""

    name: str
    specialist: SpecialistConfig
    socket: Path
    adapter_root: Path | None = None
    """Adapters that are loaded while serving lie below it; None to load none."""
    otlp: str = ""
    """Where the traces of its requests go; empty: nowhere."""
    logs: LogSettings = field(default_factory=LogSettings)

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"


def places_of(ensemble: Ensemble, folder: Path, otlp: str = "", logs: LogSettings | None = None) -> Sequence[Place]:
    """One for each replica; none for specialists that run elsewhere."""
    return [
        Place(
            name,
            specialist,
            folder / f"{number}-{specialist.name[:_MAX_NAME]}.sock",
            adapter_root_of(ensemble),
            otlp,
            logs or LogSettings(),
        )
        for number, (name, specialist) in enumerate(_names(ensemble))
    ]


def adapter_root_of(ensemble: Ensemble) -> Path:
    """What the configuration says, or where its file lies, or where this process was started."""
    if ensemble.adapter_root is not None:
        return Path(ensemble.adapter_root)
    return Path.cwd() if ensemble.source is None else ensemble.source.resolve().parent


def _names(ensemble: Ensemble) -> Iterator[tuple[str, SpecialistConfig]]:
    for specialist in ensemble.specialists:
        if specialist.addresses:
            continue
        if specialist.replicas == 1:
            yield specialist.name, specialist
            continue
        for index in range(specialist.replicas):
            yield f"{specialist.name}/{index + 1}", specialist
