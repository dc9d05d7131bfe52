"""Models with recurrent layers on an NVIDIA GPU: products, attention, norms and recurrent layers in Triton. Steps of
few tokens run as CUDA graphs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specialist.adapters.adapter import Adapter
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.gpu_graphs import GraphName, Graphs
from specialist.engines.native.gpu_inputs import FlatInputs, Staging, num_attended, send_together
from specialist.engines.native.gpu_memory import padded_head, padded_kv, why_unsupported
from specialist.engines.native.gpu_prompts import PromptInputs, on_block_0, send_prompts
from specialist.engines.native.torch_decoder import Layer, Projection, StepView, TorchDecoder
from specialist.models.checkpoint import Checkpoint, ModelConfig
from specialist.models.weights import dense
from specialist.ops.gpu import attention, norm, prompt_attention, quantised, recurrent
from specialist.ops.gpu.packing import Matrix, Packed
from specialist.ops.reference import layers

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_MOST_ATTENDED = 1 << 17  # by all tokens of a flat step: each reads its context, which a prompt's tokens share


class Heads(NamedTuple):
    """How the kernels of attention take heads: of `size` elements, of which rope rotates each of the first half against
    one of the second."""

    size: int
    columns: Tensor | None  # of the projection for each column of q, k and v; one past its last for zeros
    factors: Tensor | None  # of these columns, as the kernels scale scores by their own size of a head
    norms: Tensor | None  # for each element of a head, the gain of its norm

    def arrange(self, qkv: Tensor) -> Tensor:
        if self.columns is None:
            return qkv
        wide = functional.pad(qkv, (0, 1)).index_select(1, self.columns)
        return wide if self.factors is None else (wide * self.factors).to(qkv.dtype)

    def turns(self, cos: Tensor, sin: Tensor) -> Tensor:
        """Return cos and sin of positions as the kernels take them: 1 and 0 for elements that are not rotated."""
        rest = self.size // 2 - cos.shape[-1]
        return torch.cat((functional.pad(cos, (0, rest), value=1.0), functional.pad(sin, (0, rest))), 1).contiguous()

    def own(self, mixed: Tensor, size: int) -> Tensor:
        """Return the first `size` elements of each head."""
        return mixed if size == self.size else mixed.view(len(mixed), -1, self.size)[:, :, :size].flatten(1)


def arrange_heads(config: ModelConfig, device: torch.device) -> Heads:
    size, mine = padded_head(config), config.head_dim
    half = (mine if config.rotary_dim is None else config.rotary_dim) // 2
    rest = [*range(2 * half, mine)]
    nothing = [-1] * (size - mine)
    free = size // 2 - half
    still = [*rest, *nothing]
    turned = [*range(half), *still[:free], *range(half, 2 * half), *still[free:]]
    plain = [*range(mine), *nothing]
    if size == mine and turned == plain:
        return Heads(size, None, None, None)
    zero = config.q_size + 2 * config.kv_size
    heads = [turned] * (config.num_heads + config.num_kv_heads) + [plain] * config.num_kv_heads
    columns = [zero if each < 0 else head * mine + each for head, order in enumerate(heads) for each in order]
    factors = None
    if size != mine:
        factors = torch.ones(len(columns), device=device)
        factors[: config.num_heads * size] = (size / mine) ** 0.5
    return Heads(size, torch.tensor(columns, device=device), factors, torch.tensor(turned, device=device))


def recurrent_shape(config: ModelConfig) -> recurrent.Shape:
    if (ssm := config.ssm) is not None:
        return recurrent.Shape(
            ssm.conv_size, ssm.width, ssm.num_heads, ssm.head_dim, ssm.state_size, ssm.num_groups,
            ssm.least_step, ssm.most_step,
        )  # fmt: skip
    if config.conv is None:
        raise ValueError("the model has no recurrent layers")
    return recurrent.Shape(config.hidden_size, config.conv.width)


def _recurrent_weights(checkpoint: Checkpoint, numbers: Sequence[int], device: torch.device) -> recurrent.Weights:
    def stack(name: str) -> Tensor | None:
        found = [checkpoint.weights.get(f"layers.{number}.{name}") for number in numbers]
        return (
            torch.stack([dense(each) for each in found if each is not None]).to(device) if None not in found else None
        )

    conv, rate = stack("conv"), stack("log_decay")
    if conv is None:
        raise ValueError("the model has no recurrent layers")
    vectors = stack("step_bias"), None if rate is None else -rate.exp(), stack("skip"), stack("gate_norm")
    return recurrent.Weights(conv.contiguous(), stack("conv_bias"), *vectors)


class _StateInputs:
    """The rows of a flat step and where their states are, in memory that a captured graph reads."""

    def __init__(self, most_rows: int, device: torch.device) -> None:
        self._states_at = -(-(most_rows + 1) // 4) * 4
        size = self._states_at + 6 * most_rows
        self._staging = Staging((size,), device)
        self._all = torch.zeros(size, dtype=torch.int32, device=device)
        self.starts = self._all[: most_rows + 1]
        self.states = self._all[self._states_at :].view(torch.int64).view(most_rows, 3)

    def send(self, starts: Sequence[int], states: Sequence[Sequence[int]]) -> None:
        numbers = self._staging.next()
        numbers[: self._states_at] = starts[-1] if states else 0
        if states:
            numbers[: len(starts)] = starts
            numbers[self._states_at :].view(np.int64)[: 3 * len(states)] = np.array(states, np.int64).ravel()
        self._staging.send(self._all, len(numbers))


def _send(
    device: torch.device, owners: Sequence[int], starts: Sequence[int], states: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    places = np.array(states, np.int64).ravel().view(np.int32)
    parts = np.array(owners, np.int32), np.array(starts, np.int32), places
    sent = send_together(device, *(torch.from_numpy(each) for each in parts))
    return sent[0], sent[1], sent[2].view(torch.int64).view(-1, 3)


class GpuHybridDecoder(TorchDecoder):
    """Computes as TorchDecoder does. A row has the same bits in any step."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
        buckets: Sequence[int] = BUCKETS,
    ) -> None:
        """`buckets`: for how many tokens graphs are captured, ascending. Raises ValueError if the kernels cannot
        compute this model."""
        config = checkpoint.config
        if why := why_unsupported(config, dtype):
            raise ValueError(why)
        self._arranged = arrange_heads(config, torch.device(device))
        super().__init__(
            checkpoint, num_blocks=num_blocks, block_size=block_size, device=device, dtype=dtype, linear=Packed
        )
        if not isinstance(self._head, Packed):
            raise TypeError("the head is packed for another kernel")
        self._head_matrix = self._head.weight
        own = (each for layer in self._layers for each in vars(layer).values() if isinstance(each, Projection))
        matrices = [self._head_matrix, *(each.join()[0] for each in own)]
        self._workspace = quantised.Workspace(self.device, matrices, dtype)
        self._chained = self.device.type == "cuda"
        self._anchor = torch.zeros(4, device=self.device)
        self._shape = recurrent_shape(config)
        numbers = [*self.layout.places]
        self._numbers = {number: place for place, number in enumerate(numbers)}
        self._weights = _recurrent_weights(checkpoint, numbers, self.device)
        self._own = [self._weights.at(place) for place in range(len(numbers))]
        self._group = max(1, config.group)
        self._buckets = tuple(buckets)
        most = self._buckets[-1]
        most_blocks = 1
        if config.attention_layers:
            most_blocks = -(-config.context // block_size)
            heads = config.num_heads, config.num_kv_heads, self._arranged.size
            self._attention_space = attention.AttentionSpace(most, config.context, *heads, self.device)
            self._turns = self._all_turns()
            self._qk_norms = [self._arranged_norms(layer) for layer in self._layers]
        self._flat_inputs = FlatInputs(most_blocks, self.device)
        self._state_inputs = _StateInputs(most, self.device)
        self._finals = torch.empty((most, config.hidden_size), dtype=dtype, device=self.device)
        self._graphs = Graphs(self.device, self._compute)
        self._prepare()

    @torch.inference_mode()
    def _all_turns(self) -> Tensor:
        """Return cos and sin of every position, [context, 2, D / 2]."""
        places = torch.arange(self.config.context, device=self.device)
        return self._arranged.turns(*layers.cos_sin(places, self._frequencies, self._rope_factor))

    def _arranged_norms(self, layer: Layer) -> tuple[Tensor, Tensor] | None:
        norms: tuple[Tensor, Tensor] | None = getattr(layer, "qk_norms", None)
        order = self._arranged.norms
        return norms if norms is None or order is None else (norms[0][order], norms[1][order])

    @property
    def block_bytes(self) -> int:
        return padded_kv(self.config) * self.block_size * self.dtype.itemsize

    def _allocate(self, num_blocks: int) -> None:
        config, size = self.config, padded_head(self.config)
        shape = (len(config.attention_layers), num_blocks, self.block_size, config.num_kv_heads, size)
        self.k_cache, self.v_cache = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))

    def resize(self, num_blocks: int) -> None:
        self._graphs.clear()  # they use the memory that goes
        super().resize(num_blocks)
        self._prepare()

    def _enter_thread(self) -> None:
        """Let the calling thread launch kernels on the decoder's GPU."""
        if self.device.index is not None:  # without an index, it is the one that every thread begins with
            torch.cuda.set_device(self.device)

    @torch.inference_mode()
    def _prepare(self) -> None:
        """Capture the graphs of flat steps, without states, on block 0. Compile the other kernels, so that no request
        waits for one."""
        if self.device.type != "cuda":
            return
        self._enter_thread()
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            zeros, one = torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
            starts = torch.tensor([0, 1], dtype=torch.int32)
            self._send(StepBatch(zeros, zeros, zeros, starts, one, zeros.view(1, 1), zeros))
            names = [GraphName("flat", bucket) for bucket in reversed(self._buckets)]
            for name in names:
                self._compute(name)
                self._logits_of(self._finals[: name.rows])
            self._graphs.capture_together(names, stream)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        self.forward_alone(on_block_0(2 * self._buckets[-1], self.block_size))
        state, inputs = (torch.zeros(size, device=self.device) for size in (self.layout.size, self.layout.input_size))
        self.replay(state, inputs.unsqueeze(0), torch.empty_like(state))
        torch.cuda.synchronize(self.device)

    def _compute(self, name: GraphName) -> None:
        """Compute the final hidden states of the tokens in `_flat_inputs`. An attention layer first writes the keys and
        values of all of them, as tokens of the same sequence attend to each other."""
        count, inputs = name.rows, self._flat_inputs
        rows = recurrent.Rows(self._state_inputs.starts[: count + 1], inputs.owners, self._state_inputs.states[:count])

        def attend(layer: Layer, qkv: Tensor) -> Tensor:
            norms, caches = self._qk_norms[layer.index], self._caches(layer)
            arranged, eps = self._arranged.arrange(qkv), self.config.norm_eps
            attention.norm_rope_write(arranged, norms, eps, self._turns, inputs.positions, inputs.slots, None, *caches)
            mixed = arranged.new_empty(count, self.config.num_heads * self._arranged.size)
            attention.decode(
                arranged, norms, eps, self._turns, inputs.positions, inputs.tables, inputs.widths, *caches, mixed,
                self._attention_space, num_rows=count, owners=inputs.owners, window=layer.window,
            )  # fmt: skip
            return self._arranged.own(mixed, self.config.head_dim)

        step = StepView(attend, lambda layer, projected: self._mix(layer, projected, rows), ())
        self._finals[:count].copy_(self._run_all(inputs.tokens[:count], step))

    def _prompt_view(self, inputs: PromptInputs, rows: recurrent.Rows) -> StepView:
        """Return the view of a step with any number of tokens."""

        def attend(layer: Layer, qkv: Tensor) -> Tensor:
            norms, caches = self._qk_norms[layer.index], self._caches(layer)
            arranged = self._arranged.arrange(qkv)
            q = arranged.new_empty(len(qkv), self.config.num_heads, self._arranged.size)
            attention.norm_rope_write(
                arranged, norms, self.config.norm_eps, self._turns, inputs.positions, inputs.slots, q, *caches
            )
            mixed = torch.empty_like(q)
            prompt_attention.attend(
                q, (inputs.rows, inputs.firsts), inputs.starts, inputs.contexts, inputs.tables, inputs.widths,
                *caches, mixed, layer.window,
            )  # fmt: skip
            return self._arranged.own(mixed.flatten(1), self.config.head_dim)

        return StepView(attend, lambda layer, projected: self._mix(layer, projected, rows), ())

    def _caches(self, layer: Layer) -> tuple[Tensor, Tensor]:
        return self.k_cache[layer.cache], self.v_cache[layer.cache]

    def _mix(self, layer: Layer, projected: Tensor, rows: recurrent.Rows) -> Tensor:
        place, ssm = self._numbers[layer.index], self.config.ssm
        weights, kept = self._own[place], self.layout.input_size
        if ssm is None:
            out = projected.new_empty(1, len(projected), self.config.hidden_size)
            recurrent.convolve(
                projected, 0, weights, self._shape, rows, self._anchor, out, place, kept=kept, gated=True
            )
            return out[0]
        y = recurrent.mix_state_space(projected, weights, self._shape, rows, self._anchor, place, kept)
        gains = None if weights.norm is None else weights.norm[0]
        return recurrent.gated_norm(
            y, projected, gains, ssm.norm_groups if gains is not None else 1, ssm.norm_eps,
            projected.new_empty(y.shape), gate_first=ssm.norm == "gate_first",
        )  # fmt: skip

    def _norm_rows(self, x: Tensor, gains: Tensor) -> Tensor:
        return norm.rms_norm(x, gains, self.config.norm_eps, torch.empty_like(x), chained=self._chained)

    def _project(self, projection: Projection, x: Tensor, step: StepView) -> Tensor:
        matrix, bias = projection.join()
        return self._multiply(x, matrix, x.new_empty(len(x), matrix.shape[0]), bias=bias)

    def _add(self, hidden: Tensor, projection: Projection, x: Tensor, step: StepView) -> Tensor:
        matrix, bias = projection.join()
        return self._multiply(x, matrix, torch.empty_like(hidden), bias=bias, residual=hidden)

    def _widen(self, layer: Layer, x: Tensor, step: StepView) -> Tensor:
        if not self.config.gated_mlp or self.config.activation != "silu":
            return super()._widen(layer, x, step)
        matrix, bias = layer.gate_up.join()
        return self._multiply(x, matrix, x.new_empty(len(x), matrix.shape[0] // 2), bias=bias, gated=True)

    def _multiply(self, x: Tensor, matrix: Matrix, out: Tensor, **added: Any) -> Tensor:
        return quantised.multiply(x, matrix, self._workspace, out, chained=self._chained, **added)

    def _logits_of(self, normed: Tensor) -> Tensor:
        out = torch.empty((len(normed), self.config.vocab_size), device=self.device)
        logits, scale = self._multiply(normed, self._head_matrix, out), self.config.logit_scale
        return logits if scale == 1.0 else logits * scale

    @torch.inference_mode()
    def forward(self, batch: StepBatch, adapters: Sequence[Adapter]) -> Tensor:
        if adapters:
            raise ValueError("no adapters can be applied to recurrent layers")
        self._enter_thread()
        count = len(batch.tokens)
        if count > self._buckets[-1] or num_attended(batch) > _MOST_ATTENDED:
            return self.forward_alone(batch)
        bucket = next(bucket for bucket in self._buckets if bucket >= count)
        self._send(batch)
        self._graphs.replay(GraphName("flat", bucket))
        self._final = self._finals[:count]
        return self._logits_at(self._flat_inputs.outputs[: len(batch.outputs)])

    @torch.inference_mode()
    def forward_alone(self, batch: StepBatch) -> Tensor:
        self._enter_thread()
        owners, starts, states = self._states_of(batch)
        own, begin, where = _send(self.device, owners, starts, states)
        inputs = send_prompts(batch, self._group, self.device, None)
        rows = recurrent.Rows(begin, own, where)
        self._final = self._run_all(inputs.tokens, self._prompt_view(inputs, rows))
        return self._logits_at(inputs.outputs)

    def _logits_at(self, places: Tensor) -> Tensor:
        if len(places) == 0:
            return torch.empty(0, self.config.vocab_size, device=self.device)
        return self._logits_of(self._final.index_select(0, places))

    def _send(self, batch: StepBatch) -> None:
        nothing = [0.0] * len(batch.outputs)
        _, starts, states = self._states_of(batch)
        if not self.config.attention_layers:
            batch = replace(batch, block_tables=batch.block_tables[:, :1])
        self._flat_inputs.send(batch, nothing, nothing)
        self._state_inputs.send(starts, states if batch.states else ())

    def _states_of(self, batch: StepBatch) -> tuple[list[int], list[int], list[list[int]]]:
        """Return the tokens' rows, the rows' starts, and where the states are. Without states, rows have no tokens."""
        starts = batch.query_start.tolist()
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts)).tolist()
        if not batch.states:
            return owners, [0] * len(starts), [[0, 0, 0]] * (len(starts) - 1)
        states = [
            [0 if part is None else self._offset(part) for part in (state.current, state.after, state.inputs)]
            for state in batch.states
        ]
        return owners, starts, states

    def _offset(self, memory: Tensor) -> int:
        return recurrent.offset(memory, self._anchor)

    @torch.inference_mode()
    def replay(self, state: Tensor, inputs: Tensor, after: Tensor) -> None:
        self._enter_thread()
        count = len(inputs)
        where = [[self._offset(state), self._offset(after), 0]]
        owners, starts, states = _send(self.device, [0] * count, [0, count], where)
        rows = recurrent.Rows(starts, owners, states)
        recurrent.replay(inputs, self._weights, self._shape, rows, self._anchor)
