"""The model in plain PyTorch: on any device, in any float type, readable; what every faster decoder must equal."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from specialist.adapters.adapter import Adapter
from specialist.engines.native.batch import Batch
from specialist.engines.native.projection import Projection
from specialist.models.checkpoint import Checkpoint
from specialist.models.weight import Weight, dense
from specialist.ops.attention.reference import View, attend, views, write_kv
from specialist.ops.linear.linear import MakeLinear
from specialist.ops.linear.reference import Dense, embed, to
from specialist.ops.norm.reference import add_rms_norm, rms_norm
from specialist.ops.rope.frequencies import inverse_frequencies
from specialist.ops.rope.reference import cos_sin, rotate


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
        embedding = checkpoint.weights["embed"]
        self._embed: Weight = (
            embedding.to(self.device, dtype) if isinstance(embedding, Tensor) else to(embedding, self.device)
        )
        self._norm = dense(checkpoint.weights["norm"]).to(self.device)
        head = self._embed if config.tied_head else checkpoint.weights["head"]
        self._head = linear(head, self.device, dtype)
        frequencies, self._rope_factor = inverse_frequencies(config)
        self._frequencies = frequencies.to(self.device)
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.k_cache = torch.zeros(shape, dtype=dtype, device=self.device)
        self.v_cache = torch.zeros(shape, dtype=dtype, device=self.device)

    @torch.inference_mode()
    def forward(self, batch: Batch, adapters: Sequence[Adapter]) -> Tensor:
        eps = self.config.norm_eps
        turn = cos_sin(self._here(batch.positions), self._frequencies, self._rope_factor)
        slots = self._here(batch.slots).long()
        seen = self._views(batch)
        residual = embed(self._embed, self._here(batch.tokens), self.dtype)
        x = rms_norm(residual, self._layers[0].attn_norm, eps)
        next_norms = [*(layer.attn_norm for layer in self._layers[1:]), self._norm]
        for index, (layer, next_norm) in enumerate(zip(self._layers, next_norms, strict=True)):
            mixed = self._attention(index, x, turn, slots, seen[layer.window], adapters)
            x, residual = add_rms_norm(mixed, residual, layer.mlp_norm, eps)
            gate, up = layer.gate_up(x, adapters).chunk(2, dim=-1)
            inner = functional.silu(gate).mul_(up)
            x, residual = add_rms_norm(layer.down(inner, adapters), residual, next_norm, eps)
        return self._logits(x, batch.outputs)

    def _logits(self, x: Tensor, outputs: Tensor) -> Tensor:
        if len(outputs) == 0:  # a chunk inside a prompt
            return torch.empty(0, self.config.vocab_size, device=self.device)
        return self._head(x.index_select(0, self._here(outputs))).float()

    def _attention(
        self,
        index: int,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        slots: Tensor,
        seen: Sequence[View],
        adapters: Sequence[Adapter],
    ) -> Tensor:
        layer, config = self._layers[index], self.config
        qkv = layer.qkv(x, adapters).view(len(x), -1, config.head_dim)  # [T, heads + 2 * kv heads, D]
        q, k, v = torch.split(qkv, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        if layer.qk_norms is not None:
            q = rms_norm(q, layer.qk_norms[0], config.norm_eps)
            k = rms_norm(k, layer.qk_norms[1], config.norm_eps)
        k_cache, v_cache = self.k_cache[index], self.v_cache[index]
        write_kv(rotate(k, *turn), v, k_cache, v_cache, slots)
        return layer.o(attend(rotate(q, *turn), k_cache, v_cache, seen).flatten(1), adapters)

    def _views(self, batch: Batch) -> dict[int | None, list[View]]:
        """For each window that any layer has."""
        rows = (batch.query_start, batch.context_lens, batch.block_tables, self.block_size)
        return {window: views(*rows, window, self.device) for window in {layer.window for layer in self._layers}}

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    @torch.inference_mode()
    def zero(self, slots: Sequence[int]) -> None:
        where = torch.tensor(slots, dtype=torch.int64, device=self.device)
        for cache in (self.k_cache, self.v_cache):
            cache.view(len(self._layers), -1, *cache.shape[3:]).index_fill_(1, where, 0)
