"""The model in plain PyTorch, on any device and in any float type: the reference for every faster decoder."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from specialist.adapters.adapter import Adapter
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.host_blocks import HostCopies
from specialist.engines.native.recurrent_layers import ShortConvLayer, StateRow, StateSpaceLayer
from specialist.engines.native.recurrent_state import StateLayout, state_layout
from specialist.models.checkpoint import Activation, Checkpoint
from specialist.models.weights import Weight, dense
from specialist.ops.gpu.packing import Matrix, Packed, join
from specialist.ops.reference import layers
from specialist.ops.reference.layers import Dense, Linear, MakeLinear, rms_norm

_FEW_RUNS = 4  # of slots: to zero each run on its own is then faster
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu2": lambda x: functional.relu(x).square(),
}


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

    def join(self) -> tuple[Matrix, Tensor | None]:
        """Return all weights as one matrix, in place of the separate ones, and the bias. Raises TypeError if the
        weights are packed for another kernel."""
        parts = [linear for linear in self._linears if isinstance(linear, Packed)]
        if len(parts) != len(self._linears):
            raise TypeError("the weights are packed for another kernel")
        whole = parts[0]
        whole.weight, self._linears = join([part.weight for part in parts]), [whole]
        return whole.weight, self._bias

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


class Layer:
    """The parts of a layer that its model has; the other attributes are missing."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        index: int,
        make: MakeLinear,
        layout: StateLayout,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        prefix = f"layers.{index}."
        config, self.parts, self.index = checkpoint.config, checkpoint.config.parts_of(index), index

        def projection(*names: str) -> Projection:
            return Projection([prefix + name for name in names], checkpoint.weights, make, device, dtype)

        def norm(name: str) -> Tensor:
            return dense(checkpoint.weights[prefix + name]).to(device)

        if {"attention", "shared"} & {*self.parts}:
            self.attn_norm = norm("attn_norm")
            self.qk_norms = (norm("q_norm"), norm("k_norm")) if config.qk_norm else None
            self.qkv, self.o = projection("q", "k", "v"), projection("o")
            self.window = config.window(index)
            self.cache = config.attention_layers.index(index)
        if {"mlp", "shared"} & {*self.parts}:
            self.mlp_norm = norm("mlp_norm")
            self.gate_up = projection("gate", "up") if config.gated_mlp else projection("up")
            self.down = projection("down")
        if "shared" in self.parts:
            self.link = projection("link")
        if {"ssm", "conv"} & {*self.parts}:
            self.mixer_norm = self.attn_norm if "attention" in self.parts else norm("mixer_norm")
            self.mixer_in, self.mixer_out = projection("in"), projection("out")
            kind = StateSpaceLayer if "ssm" in self.parts else ShortConvLayer
            self.mixer: StateSpaceLayer | ShortConvLayer = kind(checkpoint, index, layout, device)


class StepView(NamedTuple):
    """What all layers of a step share."""

    attend: Callable[[Layer, Tensor], Tensor]  # from queries, keys and values: [T, (heads + 2 kv heads) * D]
    mix: Callable[[Layer, Tensor], Tensor]  # what a recurrent layer makes of its projected inputs
    adapters: Sequence[Adapter]


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
        self.layout = state_layout(config)
        self._layers = [Layer(checkpoint, i, linear, self.layout, self.device, dtype) for i in range(config.num_layers)]
        embedding = layers.to(checkpoint.weights["embed"], self.device)
        self._embed: Weight = embedding.to(dtype) if isinstance(embedding, Tensor) else embedding
        self._norm = dense(checkpoint.weights["norm"]).to(self.device)
        head = self._embed if config.tied_head else checkpoint.weights["head"]
        self._head = linear(head, self.device, dtype)
        frequencies, self._rope_factor = layers.inverse_frequencies(config)
        self._frequencies = frequencies.to(self.device)
        self._host = HostCopies(self.device)
        self._final = torch.empty(0, config.hidden_size)  # final hidden states of the last batch
        self._allocate(num_blocks + self.num_spare)

    @property
    def num_spare(self) -> int:
        """The number of blocks that do not belong to the pool."""
        return 0

    @property
    def block_bytes(self) -> int:
        return self.config.kv_token_size * self.block_size * self.dtype.itemsize

    def resize(self, num_blocks: int) -> None:
        """Replace the memory for keys and values. Raises torch.OutOfMemoryError; there is then no such memory."""
        self.k_cache = self.v_cache = self._final = torch.empty(0, device=self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._allocate(num_blocks + self.num_spare)
        self.num_blocks = num_blocks

    def _allocate(self, num_blocks: int) -> None:
        config = self.config
        shape = (len(config.attention_layers), num_blocks, self.block_size, config.num_kv_heads, config.head_dim)
        self.k_cache, self.v_cache = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))

    @torch.inference_mode()
    def forward(self, batch: StepBatch, adapters: Sequence[Adapter]) -> Tensor:
        self._final = self._run_all(self._to_device(batch.tokens), self._view(batch, adapters))
        if len(batch.outputs) == 0:  # a chunk inside a prompt needs no logits
            return torch.empty(0, self.config.vocab_size, device=self.device)
        return self._logits_of(self._final.index_select(0, self._to_device(batch.outputs)))

    def _run_all(self, tokens: Tensor, step: StepView) -> Tensor:
        """Return the final hidden states, normed."""
        embeddings = layers.embed(self._embed, tokens, self.dtype)
        if self.config.embed_scale != 1.0:
            embeddings = embeddings * self.config.embed_scale
        hidden = embeddings
        for layer in self._layers:
            hidden = self._layer(layer, hidden, embeddings, step)
        return self._norm_rows(hidden, self._norm)

    def _logits_of(self, normed: Tensor) -> Tensor:
        logits, scale = self._head(normed).float(), self.config.logit_scale
        return logits if scale == 1.0 else logits * scale

    def _norm_rows(self, x: Tensor, gains: Tensor) -> Tensor:
        return rms_norm(x, gains, self.config.norm_eps)

    def _view(self, batch: StepBatch, adapters: Sequence[Adapter]) -> StepView:
        rows = (batch.query_start, batch.context_lens, batch.block_tables, self.block_size)
        windows = {self.config.window(index) for index in self.config.attention_layers}
        seen = {window: layers.views(*rows, window, self.device) for window in windows}
        turn = layers.cos_sin(self._to_device(batch.positions), self._frequencies, self._rope_factor)
        slots = self._to_device(batch.slots).long()
        edges = pairwise(batch.query_start.tolist())
        states = [StateRow(slice(*edge), state) for edge, state in zip(edges, batch.states, strict=False)]

        def attend(layer: Layer, qkv: Tensor) -> Tensor:
            return self._attend(layer, qkv, turn, slots, seen[layer.window])

        def mix(layer: Layer, projected: Tensor) -> Tensor:
            return layer.mixer(projected, states)

        return StepView(attend, mix, adapters)

    def _layer(self, layer: Layer, hidden: Tensor, embeddings: Tensor, step: StepView) -> Tensor:
        parts = layer.parts
        linked = self._shared(layer, hidden, embeddings, step) if "shared" in parts else hidden
        mixed = []
        if "attention" in parts:
            mixed.append((layer.o, self._mix_heads(layer, self._norm_rows(hidden, layer.attn_norm), step)))
        if "ssm" in parts or "conv" in parts:
            projected = self._project(layer.mixer_in, self._norm_rows(linked, layer.mixer_norm), step)
            mixed.append((layer.mixer_out, step.mix(layer, projected)))
        for projection, x in mixed:
            hidden = self._add(hidden, projection, x, step)
        if "mlp" in parts:
            inner = self._widen(layer, self._norm_rows(hidden, layer.mlp_norm), step)
            hidden = self._add(hidden, layer.down, inner, step)
        return hidden

    def _project(self, projection: Projection, x: Tensor, step: StepView) -> Tensor:
        return projection(x, step.adapters)

    def _add(self, hidden: Tensor, projection: Projection, x: Tensor, step: StepView) -> Tensor:
        """Return the hidden states plus the projection of x."""
        return self._project(projection, x, step) + hidden

    def _shared(self, layer: Layer, hidden: Tensor, embeddings: Tensor, step: StepView) -> Tensor:
        """Return the hidden states plus what the shared block makes of them and the embeddings."""
        mixed = self._mix_heads(layer, self._norm_rows(torch.cat((hidden, embeddings), 1), layer.attn_norm), step)
        normed = self._norm_rows(self._project(layer.o, mixed, step), layer.mlp_norm)
        computed = self._project(layer.down, self._widen(layer, normed, step), step)
        return self._add(hidden, layer.link, computed, step)

    def _widen(self, layer: Layer, x: Tensor, step: StepView) -> Tensor:
        """Return what the MLP's last projection reads."""
        inner = self._project(layer.gate_up, x, step)
        if self.config.gated_mlp:
            gate, up = inner.chunk(2, dim=-1)
            return _ACTIVATIONS[self.config.activation](gate).mul_(up)
        return _ACTIVATIONS[self.config.activation](inner)

    def _mix_heads(self, layer: Layer, x: Tensor, step: StepView) -> Tensor:
        """Return what the attention's last projection reads."""
        return step.attend(layer, self._project(layer.qkv, x, step))

    def _attend(
        self,
        layer: Layer,
        qkv: Tensor,
        turn: tuple[Tensor, Tensor],
        slots: Tensor,
        seen: Sequence[layers.ContextView],
    ) -> Tensor:
        """`turn`: cos and sin of the positions."""
        config = self.config
        heads = qkv.view(len(qkv), -1, config.head_dim)  # [T, heads + 2 * kv heads, D]
        q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        if layer.qk_norms is not None:
            q = rms_norm(q, layer.qk_norms[0], config.norm_eps)
            k = rms_norm(k, layer.qk_norms[1], config.norm_eps)
        k_cache, v_cache = self.k_cache[layer.cache], self.v_cache[layer.cache]
        layers.write_kv(layers.rotate(k, *turn), v, k_cache, v_cache, slots)
        return layers.attend(layers.rotate(q, *turn), k_cache, v_cache, seen).flatten(1)

    @torch.inference_mode()
    def replay(self, state: Tensor, inputs: Tensor, after: Tensor) -> None:
        for index, place in self.layout.places.items():
            self._layers[index].mixer.mix(inputs[:, place.inputs], state, after)

    def forward_alone(self, batch: StepBatch) -> Tensor:
        return self.forward(batch, ())

    def kv_memory(self) -> tuple[Tensor, Tensor]:
        """Return the memory for keys and for values, [layers, blocks, ...]. `resize` replaces it."""
        return self.k_cache, self.v_cache

    @torch.inference_mode()
    def read_block(self, block: int) -> Tensor:
        return self.to_host(torch.stack((self.k_cache[:, block], self.v_cache[:, block])))

    def to_host(self, content: Tensor) -> Tensor:
        return self._host.copy(content)

    @torch.inference_mode()
    def write_block(self, block: int, content: Tensor) -> None:
        for cache, part in zip((self.k_cache, self.v_cache), content, strict=True):
            cache[:, block].copy_(part, non_blocking=True)

    @torch.inference_mode()
    def add_hidden(self, start: int, stop: int, total: NDArray[np.float64]) -> None:
        for row in self._final[start:stop].float().cpu().numpy():
            total += row

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    @torch.inference_mode()
    def zero(self, slots: Sequence[int]) -> None:
        runs = _runs(slots)
        caches = [cache.flatten(1, 2) for cache in (self.k_cache, self.v_cache)]
        if len(runs) <= _FEW_RUNS:
            for cache, (start, stop) in product(caches, runs):
                cache[:, start:stop].zero_()
            return
        where = torch.tensor(slots, dtype=torch.int64, device=self.device)
        for cache in caches:
            cache.index_fill_(1, where, 0)


def _runs(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of which the slots consist."""
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if runs and runs[-1][1] == slot:
            runs[-1] = runs[-1][0], slot + 1
        else:
            runs.append((slot, slot + 1))
    return runs
