"""Whether what an ensemble needs on this machine is here. Not for a router whose replicas run elsewhere."""

from collections.abc import Iterator
from pathlib import Path

from octet.config.ensemble import BUILT_IN_CLASSIFIER, DEMO_MODEL, Ensemble, SpecialistConfig
from octet.config.sheet import Place, Sheet


def check_files(ensemble: Ensemble, sheet: Sheet) -> None:
    """Tells the sheet."""
    for place, path, needs_folder in needed_files(ensemble):
        if not path.exists():
            sheet.wrong(_written(place, sheet), f"does not exist: {path}")
        elif needs_folder and not path.is_dir():
            sheet.wrong(_written(place, sheet), f"must be a folder, which this is not: {path}")


def needed_files(ensemble: Ensemble) -> Iterator[tuple[Place, Path, bool]]:
    """Where it stands, the path, and whether it must be a folder."""
    for specialist in ensemble.specialists:
        if not specialist.addresses:
            yield from _of_specialist(specialist, ("specialists", specialist.name))
    if ensemble.classifier.path not in (None, BUILT_IN_CLASSIFIER):
        yield ("classifier", "path"), Path(str(ensemble.classifier.path)), False


def _of_specialist(specialist: SpecialistConfig, place: Place) -> Iterator[tuple[Place, Path, bool]]:
    if specialist.engine == "native" and specialist.model != DEMO_MODEL:
        yield (*place, "model"), Path(specialist.model), False
    if specialist.engine == "sim" and specialist.cost_model is not None:
        yield (*place, "cost_model"), Path(specialist.cost_model), False
    for name, folder in specialist.adapters.items():
        yield (*place, "adapters", name), Path(folder), True


def _written(place: Place, sheet: Sheet) -> Place:
    """At the top of the file, where the specialist itself says nothing."""
    top = place[-1:]
    return top if not sheet.given(*place) and sheet.given(*top) else place
