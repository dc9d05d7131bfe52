"""The verifiers of an ensemble: one for every specialist, the same one for those that are judged alike."""

from octet.config.ensemble import Ensemble
from router.verify.open import open_verifier
from router.verify.verdict import Verifier
from router.verify.workshop import Workshop


def open_verifiers(ensemble: Ensemble) -> dict[str, Verifier]:
    """By specialist; together they run one process at a time. Raises ValueError that says what would be right."""
    base = None if ensemble.source is None else ensemble.source.parent
    specs = sorted({specialist.verify for specialist in ensemble.specialists})
    workshop = Workshop()
    opened = {spec: open_verifier(spec, ensemble.correctness, base, workshop) for spec in specs}
    return {specialist.name: opened[specialist.verify] for specialist in ensemble.specialists}
