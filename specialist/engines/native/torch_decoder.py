"""The model in plain PyTorch, on any device and in any float type: the reference for every faster decoder."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from specialist.adapters.adapter import Adapter
from specialist.engines.native.engine import StepBatch
from specialist.models.checkpoint import Checkpoint
from specialist.models.weights import Weight, dense
from specialist.ops.reference import layers
from specialist.ops.reference.layers import Dense, Linear, MakeLinear, add_rms_norm, rms_norm


class Projection:
    """Multiplies one input by several matrices, stacked into one matrix where possible."""

    def __init__(
        self,
        names: Sequence[str],
        weights: Mapping[str, Weight],
        make: MakeLinear,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Stack matrices of the same storage type, unless that would copy weights that can be used in place."""
        matrices = [weights[name] for name in names]
        in_place = device.type == "cpu" and all(isinstance(w, Tensor) and w.dtype == dtype for w in matrices)
        parts = [layers.stack_weights(matrices)] if layers.can_stack(matrices) and not in_place else matrices
        self._linears: list[Linear] = [make(part, device, dtype) for part in parts]
        edges = [0, *accumulate(matrix.shape[0] for matrix in matrices)]
        # the output columns of each matrix
        self._columns = dict(zip(names, (slice(*edge) for edge in pairwise(edges)), strict=True))
        biases = {name: weights[f"{name}_bias"] for name in names if f"{name}_bias" in weights}
        bias = torch.zeros(edges[-1], dtype=dtype)
        for name, values in biases.items():
            bias[self._columns[name]] = dense(values).to(dtype)
        self._bias = bias.to(device) if biases else None

    def join(self) -> tuple[Tensor, Tensor | None]:
        """Return all weights as one matrix of floats, in place of the separate ones, and the bias. Raises TypeError if
        the weights are not kept as floats."""
        parts = [linear.weight for linear in self._linears if isinstance(linear, Dense)]
        if len(parts) != len(self._linears):
            raise TypeError("the weights are packed for another kernel")
        if len(parts) > 1:
            whole = torch.cat(parts)
            self._linears = [Dense(whole, whole.device, whole.dtype)]
            parts = [whole]
        return parts[0], self._bias

    def __call__(self, x: Tensor, adapters: Sequence[Adapter]) -> Tensor:
        """[T, K] -> [T, all columns]."""
        products = [linear(x) for linear in self._linears]
        y = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
        if self._bias is not None:
            y += self._bias
        for adapter in adapters:
            for name, columns in self._columns.items():
                low = adapter.targets.get(name)
                if low is not None:
                    layers.add_low_rank(y[:, columns], x, low.a, low.b, low.scale)
        return y


class _Layer:
    def __init__(
        self, checkpoint: Checkpoint, index: int, make: MakeLinear, device: torch.device, dtype: torch.dtype
    ) -> None:
        prefix = f"layers.{index}."

        def projection(*names: str) -> Projection:
            return Projection([prefix + name for name in names], checkpoint.weights, make, device, dtype)

        def norm(name: str) -> Tensor:
            return dense(checkpoint.weights[prefix + name]).to(device)

        self.attn_norm, self.mlp_norm = norm("attn_norm"), norm("mlp_norm")
        self.qk_norms = (norm("q_norm"), norm("k_norm")) if checkpoint.config.qk_norm else None
        self.qkv, self.o = projection("q", "k", "v"), projection("o")
        self.gate_up, self.down = projection("gate", "up"), projection("down")
        self.window = checkpoint.config.window(index)


class TorchDecoder:
    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        linear: MakeLinear = Dense,
    ) -> None:
        self.config = config = checkpoint.config
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = torch.device(device)
        self.dtype = dtype
        self._layers = [_Layer(checkpoint, i, linear, self.device, dtype) for i in range(config.num_layers)]
        embedding = layers.to(checkpoint.weights["embed"], self.device)
        self._embed: Weight = embedding.to(dtype) if isinstance(embedding, Tensor) else embedding
        self._norm = dense(checkpoint.weights["norm"]).to(self.device)
        head = self._embed if config.tied_head else checkpoint.weights["head"]
        self._head = linear(head, self.device, dtype)
        frequencies, self._rope_factor = layers.inverse_frequencies(config)
        self._frequencies = frequencies.to(self.device)
        self._final = torch.empty(0, config.hidden_size)  # final hidden states of the last batch
        self._allocate(num_blocks + self.num_spare)

    @property
    def num_spare(self) -> int:
        """The number of blocks that do not belong to the pool."""
        return 0

    @property
    def block_bytes(self) -> int:
        return 2 * self.config.num_layers * self.config.kv_size * self.block_size * self.dtype.itemsize

    def resize(self, num_blocks: int) -> None:
        """Replace the memory for keys and values. Raises torch.OutOfMemoryError; there is then no such memory."""
        self.k_cache = self.v_cache = self._final = torch.empty(0, device=self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._allocate(num_blocks + self.num_spare)
        self.num_blocks = num_blocks

    def _allocate(self, num_blocks: int) -> None:
        config = self.config
        shape = (config.num_layers, num_blocks, self.block_size, config.num_kv_heads, config.head_dim)
        self.k_cache, self.v_cache = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))

    @torch.inference_mode()
    def forward(self, batch: StepBatch, adapters: Sequence[Adapter]) -> Tensor:
        eps = self.config.norm_eps
        turn = layers.cos_sin(self._to_device(batch.positions), self._frequencies, self._rope_factor)
        slots = self._to_device(batch.slots).long()
        rows = (batch.query_start, batch.context_lens, batch.block_tables, self.block_size)
        windows = {layer.window for layer in self._layers}
        seen = {window: layers.views(*rows, window, self.device) for window in windows}
        residual = layers.embed(self._embed, self._to_device(batch.tokens), self.dtype)
        x = rms_norm(residual, self._layers[0].attn_norm, eps)
        next_norms = [*(layer.attn_norm for layer in self._layers[1:]), self._norm]
        for index, (layer, next_norm) in enumerate(zip(self._layers, next_norms, strict=True)):
            mixed = self._attention(index, x, turn, slots, seen[layer.window], adapters)
            x, residual = add_rms_norm(mixed, residual, layer.mlp_norm, eps)
            gate, up = layer.gate_up(x, adapters).chunk(2, dim=-1)
            inner = functional.silu(gate).mul_(up)
            x, residual = add_rms_norm(layer.down(inner, adapters), residual, next_norm, eps)
        self._final = x
        if len(batch.outputs) == 0:  # a chunk inside a prompt needs no logits
            return torch.empty(0, self.config.vocab_size, device=self.device)
        return self._head(x.index_select(0, self._to_device(batch.outputs))).float()

    def _attention(
        self,
        index: int,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        slots: Tensor,
        seen: Sequence[layers.ContextView],
        adapters: Sequence[Adapter],
    ) -> Tensor:
        layer, config = self._layers[index], self.config
        qkv = layer.qkv(x, adapters).view(len(x), -1, config.head_dim)  # [T, heads + 2 * kv heads, D]
        q, k, v = torch.split(qkv, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        if layer.qk_norms is not None:
            q = rms_norm(q, layer.qk_norms[0], config.norm_eps)
            k = rms_norm(k, layer.qk_norms[1], config.norm_eps)
        k_cache, v_cache = self.k_cache[index], self.v_cache[index]
        layers.write_kv(layers.rotate(k, *turn), v, k_cache, v_cache, slots)
        return layer.o(layers.attend(layers.rotate(q, *turn), k_cache, v_cache, seen).flatten(1), adapters)

    @torch.inference_mode()
    def add_hidden(self, start: int, stop: int, total: NDArray[np.float64]) -> None:
        for row in self._final[start:stop].float().cpu().numpy():
            total += row

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    @torch.inference_mode()
    def zero(self, slots: Sequence[int]) -> None:
        where = torch.tensor(slots, dtype=torch.int64, device=self.device)
        for cache in (self.k_cache, self.v_cache):
            cache.view(len(self._layers), -1, *cache.shape[3:]).index_fill_(1, where, 0)
