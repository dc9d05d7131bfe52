"""Matrices that share an input, as one product where they can be."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from specialist.adapters.adapter import Adapter
from specialist.models.weight import Weight
from specialist.ops.linear.linear import Linear, MakeLinear
from specialist.ops.linear.stacked import can_stack, stacked
from specialist.ops.lora import reference as lora


class Projection:
    def __init__(
        self,
        names: Sequence[str],
        weights: Mapping[str, Weight],
        make: MakeLinear,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Stacked when stored alike, unless that would copy weights that can be used where they lie."""
        matrices = [weights[name] for name in names]
        in_place = device.type == "cpu" and all(isinstance(w, Tensor) and w.dtype == dtype for w in matrices)
        parts = [stacked(matrices)] if can_stack(matrices) and not in_place else matrices
        self._linears: list[Linear] = [make(part, device, dtype) for part in parts]
        edges = [0, *accumulate(matrix.shape[0] for matrix in matrices)]
        self._columns = dict(zip(names, (slice(*edge) for edge in pairwise(edges)), strict=True))
        """Where each matrix stands in what comes out."""
        self._bias = self._biases(weights, edges[-1], device, dtype)

    def _biases(
        self, weights: Mapping[str, Weight], width: int, device: torch.device, dtype: torch.dtype
    ) -> Tensor | None:
        bias = torch.zeros(width, dtype=dtype)
        biased = {name: weights[f"{name}_bias"] for name in self._columns if f"{name}_bias" in weights}
        for name, values in biased.items():
            if isinstance(values, Tensor):
                bias[self._columns[name]] = values
        return bias.to(device) if biased else None

    def __call__(self, x: Tensor, adapters: Sequence[Adapter]) -> Tensor:
        """[T, K] -> [T, all columns], the matrices side by side."""
        products = [linear(x) for linear in self._linears]
        y = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
        if self._bias is not None:
            y += self._bias
        for adapter in adapters:
            for name, columns in self._columns.items():
                low = adapter.targets.get(name)
                if low is not None:
                    lora.apply(y[:, columns], x, low.a, low.b, low.scale)
        return y
