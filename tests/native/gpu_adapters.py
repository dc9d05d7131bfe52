"""Random adapters."""

import torch

from specialist.adapters.adapter import Adapter, LowRank, content_digest, matrix_shapes
from specialist.models.checkpoint import ModelConfig


def make_adapter(config: ModelConfig, seed: int, rank: int, names: str, scale: float = 0.7) -> Adapter:
    """Return a random adapter that changes the matrices whose names contain one of these letters."""
    generator = torch.Generator().manual_seed(seed)

    def low(rows: int, columns: int) -> LowRank:
        a, b = torch.randn(rank, columns, generator=generator), torch.randn(rows, rank, generator=generator)
        return LowRank(a * columns**-0.5, b * 0.4, scale)

    targets = {
        name: low(*shape)
        for name, shape in matrix_shapes(config).items()
        if any(c in name.split(".")[2] for c in names)
    }
    return Adapter(content_digest(targets), targets, rank)
