"""The interface between a step as tensors and a model that computes it."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specialist.adapters.adapter import Adapter
from specialist.engines.native.batch import Batch


class Decoder(Protocol):
    """A model and the memory for its keys and values: `num_blocks` blocks of `block_size` slots, allocated once."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def forward(self, batch: Batch, adapters: Sequence[Adapter]) -> Tensor:
        """Write the keys and values of every token to its slot; return the logits behind `batch.outputs`.

        float32 [S, vocab], on the decoder's device, good until the next call. `adapters` are applied in order to
        every row and lie on the decoder's device. Tokens are in the vocabulary, positions within the context,
        slots of different tokens differ. What lies in slots outside of a row's context never shows in that row.
        """

    def zero(self, slots: Sequence[int]) -> None:
        """Forget what lies in these slots."""
