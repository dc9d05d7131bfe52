"""Stored matrices: floats or quantised groups."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

GROUP = 32  # columns that share a scale and a minimum


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """A quantised matrix: weight[n, k] = scale[n, k // 32] * q[n, k] + minimum[n, k // 32]."""

    bits: Literal[4, 8]
    q: Tensor  # uint8. 8 bits: [N, K]. 4 bits: [N, K / 2], the even column in the low nibble.
    scale: Tensor  # float16 [N, K / 32]
    minimum: Tensor  # float16 [N, K / 32]

    @property
    def shape(self) -> tuple[int, int]:
        rows, groups = self.scale.shape
        return rows, groups * GROUP

    def integers(self) -> Tensor:
        """uint8 [N, K]."""
        if self.bits == 8:
            return self.q
        return torch.stack((self.q & 15, self.q >> 4), dim=-1).flatten(1)

    def dense(self) -> Tensor:
        """float32 [N, K]."""
        rows, columns = self.shape
        q = self.integers().view(rows, columns // GROUP, GROUP).float()
        groups = torch.addcmul(self.minimum.float().unsqueeze(-1), q, self.scale.float().unsqueeze(-1))
        return groups.view(rows, columns)


Weight = Tensor | Affine


def dense(weight: Weight) -> Tensor:
    """Return the weight as float32."""
    return weight.dense() if isinstance(weight, Affine) else weight.float()


@dataclass(frozen=True, slots=True, eq=False)
class LazyWeights(Mapping[str, Weight]):
    """Weights read from disk at every access; nothing is cached."""

    readers: Mapping[str, Callable[[], Weight]]

    def __getitem__(self, name: str) -> Weight:
        return self.readers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self.readers

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers)

    def __len__(self) -> int:
        return len(self.readers)
