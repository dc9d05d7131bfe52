"""The model that an ensemble serves unless it is told otherwise."""

from specialist.models.checkpoint import Checkpoint


def demo_checkpoint() -> Checkpoint:
    """Raises ModelRefused."""
    from specialist.models.demo import cache_directory, demo_model
    from specialist.models.open import open_checkpoint
    from specialist.models.progress import bar

    return open_checkpoint(demo_model(cache_directory(), bar()))
