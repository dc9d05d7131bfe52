"""A LoRA adapter: a low-rank addition to some matrices of a model, named by its content."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """Adds scale * b @ a to a matrix."""

    a: Tensor
    """[rank, in]"""
    b: Tensor
    """[out, rank]"""
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    digest: str
    """sha256 of everything that decides what it computes, hex. Says nothing of a name or a place."""
    targets: Mapping[str, LowRank]
    """By the name of the matrix in a checkpoint: `layers.3.q`."""
    rank: int
    """The largest of any target."""

    @property
    def nbytes(self) -> int:
        return sum(low.a.nbytes + low.b.nbytes for low in self.targets.values())
