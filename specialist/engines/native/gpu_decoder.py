"""The model on an NVIDIA GPU, in Triton kernels. A step with one token for each row runs as a CUDA graph."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specialist.adapters.adapter import MAX_RANK, Adapter
from specialist.adapters.catalog import MAX_STACK
from specialist.engines.native.decode_inputs import MOST_ROWS, DecodeInputs
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.gpu_adapters import DOWN, GATE_UP, MOST_PAGES, OUT, QKV, GpuAdapters, Placed, Stack
from specialist.engines.native.gpu_engine import DecodeRow, DecodeRows
from specialist.engines.native.gpu_shaping import Shaper
from specialist.engines.native.shaped_draw import Shaped, can_shape
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint, ModelConfig
from specialist.ops.gpu import attention, linear, low_rank, norm, prompt_attention, sampling
from specialist.ops.reference import layers
from specialist.scheduling.sequence import Sampling

BUCKETS = (1, 2, 4, 8, 16, 32, 64, MOST_ROWS)  # on an H200, 48 rows take about as long as 64, 96 as 128
_PROMPTS = (1, 8, 16, 32, 64, 128, 256)  # numbers of tokens for which a prompt has kernels of its own
_MOST_MATRICES, _MOST_RANKS = 3, MAX_STACK * MAX_RANK  # of a group, and of a row's adapters together
_RING = 4  # buffers on the host; a buffer is used again after the step that used it has ended


class Drawn(NamedTuple):
    """A launched decode step, whose tokens are still on their way."""

    host: Tensor  # int32 [2, MOST_ROWS]: the tokens, and the bits of the largest logits
    arrived: torch.cuda.Event
    num_rows: int

    def wait(self) -> tuple[list[int], list[float]]:
        """Wait for the step. Return each row's token and largest logit."""
        self.arrived.synchronize()
        tokens, peaks = self.host.numpy()[:, : self.num_rows]
        return tokens.tolist(), peaks.view(np.float32).tolist()


def why_unsupported(config: ModelConfig) -> str | None:
    """Return why the kernels cannot compute this model, or None."""
    if config.parts:
        return f"only PyTorch computes {config.architecture} models on a GPU"
    size = config.head_dim
    if size < 32 or size > 256 or size & (size - 1):
        return f"heads of {size} elements: the kernels take 32, 64, 128 or 256"
    if config.hidden_size % 8 or config.intermediate_size % 8 or config.q_size % 8:
        return "a matrix whose columns are no multiple of 8"
    return None


class _AdapterInputs:
    """The pages of a decode step's rows, on the device. They are sent only if they change."""

    def __init__(self, num_pages: int, device: torch.device) -> None:
        size = -(-(1 + num_pages) // 4) * 4
        pinned = device.type == "cuda"
        self._staged = [torch.zeros(size + 2 * MOST_ROWS, dtype=torch.int32, pin_memory=pinned) for _ in range(_RING)]
        self._turn = 0
        self._all = torch.zeros(size + 2 * MOST_ROWS, dtype=torch.int32, device=device)
        self._size = size
        self._sent: Placed | None = None
        self.rows = low_rank.Rows(*torch.split(self._all, [size, MOST_ROWS, MOST_ROWS]))

    def send(self, placed: Placed) -> None:
        if placed == self._sent:
            return
        self._turn = (self._turn + 1) % _RING
        staged, size = self._staged[self._turn], self._size
        numbers = staged.numpy()
        numbers[size:] = 0
        numbers[: 1 + len(placed.pages)] = (len(placed.pages), *placed.pages)
        for begin, values in ((size, placed.firsts), (size + MOST_ROWS, placed.counts)):
            numbers[begin : begin + len(values)] = values
        self._all.copy_(staged, non_blocking=True)
        self._sent = placed


class _Projection(NamedTuple):
    group: int
    weight: Tensor
    bias: Tensor | None


class _Layer(NamedTuple):
    qkv: _Projection
    o: _Projection
    gate_up: _Projection
    down: _Projection


class GpuDecoder(TorchDecoder):
    """Computes as TorchDecoder does. Its blocks from `num_blocks` on belong to no pool: one for each row of a decode
    step, see `spare_block`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
        buckets: Sequence[int] = BUCKETS,
        adapter_pages: int = MOST_PAGES,
    ) -> None:
        """`buckets`: for how many rows a graph is captured, ascending. `adapter_pages`: how much of adapters stays in
        memory, in pages of 16 ranks. Raises ValueError if the kernels cannot compute this model."""
        config = checkpoint.config
        if why := why_unsupported(config):
            raise ValueError(why)
        self.most_rows = buckets[-1]  # of a decode step that runs as a graph
        self._buckets = tuple(buckets)
        super().__init__(checkpoint, num_blocks=num_blocks, block_size=block_size, device=device, dtype=dtype)
        self._matrices = [
            _Layer(
                _Projection(QKV, *layer.qkv.join()),
                _Projection(OUT, *layer.o.join()),
                _Projection(GATE_UP, *layer.gate_up.join()),
                _Projection(DOWN, *layer.down.join()),
            )
            for layer in self._layers
        ]
        self._table, self._head_matrix = self._floats(checkpoint)
        with torch.inference_mode():
            places = torch.arange(config.context, device=self.device)
            cos, sin = layers.cos_sin(places, self._frequencies, self._rope_factor)
            self._turns = torch.cat((cos, sin), dim=1).contiguous()  # [context, 2, D / 2]
        self._workspace = linear.Workspace(self.device)
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        self._attention_space = attention.AttentionSpace(self.most_rows, config.context, *heads, self.device)
        self._sample_space = sampling.SampleSpace(self.most_rows, config.vocab_size, self.device)
        self._inputs = DecodeInputs(-(-config.context // block_size), self.device)
        self._hidden, self._normed = (self._empty(self.most_rows, config.hidden_size) for _ in range(2))
        self._qkv = self._empty(self.most_rows, config.q_size + 2 * config.kv_size)
        self._mixed = self._empty(self.most_rows, config.q_size)
        self._inner = self._empty(self.most_rows, config.intermediate_size)
        self._logits = torch.empty((self.most_rows, config.vocab_size), device=self.device)
        self._drawn = torch.zeros((2, self.most_rows), dtype=torch.int32, device=self.device)
        self._results = [torch.zeros_like(self._drawn, device="cpu") for _ in range(_RING)]
        self._turn = 0
        self._taken = torch.zeros(self.most_rows, dtype=torch.int32, device=self.device)  # the rows' input tokens
        self._shaper = Shaper(self.most_rows, config.vocab_size, self.device)
        self._shaping: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}  # by rows, and whether some row has top-k
        self.adapters = GpuAdapters(config, adapter_pages, self.device, dtype)
        self._adapter_inputs = _AdapterInputs(self.adapters.num_pages, self.device)
        self._low = self._empty(self.most_rows * _MOST_MATRICES * _MOST_RANKS)
        self._graphs: dict[
            tuple[int, frozenset[int]], torch.cuda.CUDAGraph
        ] = {}  # by rows, groups that adapters change
        if self.device.type == "cuda":
            self._results = [result.pin_memory() for result in self._results]
            self._prepare(frozenset())

    @property
    def num_spare(self) -> int:
        return self.most_rows

    def resize(self, num_blocks: int) -> None:
        self._graphs.clear()  # they use the memory that goes
        super().resize(num_blocks)
        if self.device.type == "cuda":
            self._prepare(frozenset())

    def _floats(self, checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
        head = self._head
        table = self._embed if isinstance(self._embed, Tensor) else self._embed.dense().to(self.dtype)
        if not isinstance(head, layers.Dense):
            raise TypeError("the head is packed for another kernel")
        return table, table if checkpoint.config.tied_head else head.weight

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    @torch.inference_mode()
    def _prepare(self, changed: frozenset[int], placed: Placed | None = None) -> None:
        """Capture a graph for each number of rows, and run prompts of every size that has kernels of its own, on block
        0, so that no request waits for a kernel. Adapters change these groups of matrices; `placed` has pages of one.
        Tokens drawn before stay."""
        kept, stream = self._drawn.clone(), torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for bucket in reversed(self._buckets):
                self._inputs.send(DecodeRows.of([DecodeRow(0, -1, 0, [0])]), bucket, self.block_size)
                self._decode(bucket, changed)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    self._decode(bucket, changed)
                self._graphs[bucket, changed] = graph
                for has_k in () if changed else (False, True):
                    self._draw_shaped(bucket, has_k=has_k)
                    self._shaping[bucket, has_k] = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(self._shaping[bucket, has_k], stream=stream):
                        self._draw_shaped(bucket, has_k=has_k)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        for count in _PROMPTS:
            one = torch.tensor([count], dtype=torch.int32)
            zeros = torch.zeros(count, dtype=torch.int32)
            width = -(-count // self.block_size)
            starts = torch.tensor([0, count], dtype=torch.int32)
            tables = torch.zeros((1, width), dtype=torch.int32)
            self._prefill(StepBatch(zeros, zeros, zeros, starts, one, tables, one - 1), placed)
        logits = torch.zeros((1, self.config.vocab_size), device=self.device)
        for top_k in (0, 1):
            self._shaper.draw(logits, [Shaped(Sampling(1.0, top_k), 0.0, (0,), 1, frozenset())])
        self._drawn.copy_(kept)
        torch.cuda.synchronize(self.device)

    def _decode(self, rows: int, changed: frozenset[int]) -> None:
        """Compute and draw the next tokens of the rows in `_inputs`. Every kernel starts while the one before ends.
        Adapters change these groups of matrices."""
        inputs, eps = self._inputs, self.config.norm_eps
        chained = self.device.type == "cuda"
        hidden, normed = self._hidden[:rows], self._normed[:rows]
        norm.embed(inputs.tokens, self._table, hidden, inputs.sources, self._drawn[0], self._taken)

        def product(
            layer: int,
            x: Tensor,
            matrix: _Projection,
            out: Tensor,
            gains: Tensor | None = None,
            gated: bool = False,
        ) -> Tensor:
            """Multiply, after the norm if there are `gains`; without, add the result to the hidden state."""
            residual, terms = None if gains is not None else out, None
            norms_first = gains is not None and not linear.norms_within(rows, matrix.weight)
            if matrix.group in changed:
                terms = self._terms(layer, matrix.group, self._adapter_inputs.rows, self._low, rows, _MOST_RANKS)
                low_rank.shrink(
                    x, self.adapters.a[matrix.group][layer], terms.rows, terms.low,
                    norm=gains, normed=normed if norms_first else None, eps=eps, most_pages=4, chained=chained,
                )  # fmt: skip
            elif norms_first and gains is not None:
                norm.rms_norm(x, gains, eps, normed, chained=chained)
            if norms_first:
                x, gains = normed, None
            return linear.linear(
                x, matrix.weight, self._workspace, out,
                norm=gains, eps=eps, bias=matrix.bias, residual=residual, terms=terms, gated=gated, chained=chained,
            )  # fmt: skip

        for index, (layer, matrices) in enumerate(zip(self._layers, self._matrices, strict=True)):
            qkv = product(index, hidden, matrices.qkv, self._qkv[:rows], layer.attn_norm)
            mixed = attention.decode(
                qkv, layer.qk_norms, eps, self._turns, inputs.positions, inputs.tables, inputs.widths,
                self.k_cache[index], self.v_cache[index], self._mixed[:rows], self._attention_space,
                num_rows=rows, window=layer.window, chained=chained,
            )  # fmt: skip
            product(index, mixed, matrices.o, hidden)
            inner = product(index, hidden, matrices.gate_up, self._inner[:rows], layer.mlp_norm, gated=True)
            product(index, inner, matrices.down, hidden)
        norm.rms_norm(hidden, self._norm, eps, normed, chained=chained)
        logits = linear.linear(normed, self._head_matrix, self._workspace, self._logits[:rows], chained=chained)
        tokens, peaks = self._drawn[0], self._drawn[1].view(torch.float32)
        sampling.draw(logits, inputs.temperatures, inputs.uniforms, tokens, peaks, self._sample_space, chained=chained)

    def _draw_shaped(self, rows: int, *, has_k: bool) -> None:
        """Draw again for those rows that were placed in `_shaper`."""
        tokens, peaks = self._drawn[0], self._drawn[1].view(torch.float32)
        positions, chained = self._inputs.positions, self.device.type == "cuda"
        self._shaper.run(self._logits[:rows], self._taken, positions, tokens, peaks, has_k=has_k, chained=chained)

    def _terms(
        self, layer: int, group: int, rows: low_rank.Rows, memory: Tensor, count: int, ranks: int
    ) -> low_rank.Terms:
        matrices = self.adapters.a[group].shape[2]
        low = memory[: count * matrices * ranks].view(count, matrices, ranks)
        return low_rank.Terms(self.adapters.b[group][layer], low, rows, self.adapters.edges[group])

    @torch.inference_mode()
    def launch(self, rows: DecodeRows) -> Drawn:
        """Start a decode step of at most `most_rows` rows, and return before it ends."""
        self._replay(rows)
        self._turn = (self._turn + 1) % _RING
        host = self._results[self._turn]
        host.copy_(self._drawn, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return Drawn(host, arrived, rows.count)

    def _replay(self, rows: DecodeRows) -> None:
        bucket = next(bucket for bucket in self._buckets if bucket >= rows.count)
        placed = self._place(rows.adapters)
        self._inputs.send(rows, bucket, self.block_size)
        changed = frozenset[int]()
        if placed is not None:
            changed = frozenset(self.adapters.a)
            self._adapter_inputs.send(placed)
        if self.device.type == "cuda":
            self._graphs[bucket, changed].replay()
        else:
            self._decode(bucket, changed)
        if any(rows.shaped):
            known = [source < 0 for source in rows.sources]
            has_k = self._shaper.place(list(zip(rows.shaped, rows.positions, known, strict=True)), bucket)
            if self.device.type == "cuda":
                self._shaping[bucket, has_k].replay()
            else:
                self._draw_shaped(bucket, has_k=has_k)

    def _place(self, stacks: Sequence[Stack]) -> Placed | None:
        """Load the adapters. Where they change other matrices than those before, or get other memory, prepare that."""
        placed = self.adapters.place(stacks)
        if placed is None:
            return None
        if len(self._adapter_inputs.rows.pages) <= self.adapters.num_pages:  # graphs use memory that was given back
            self._graphs = {name: graph for name, graph in self._graphs.items() if not name[1]}
            self._adapter_inputs = _AdapterInputs(self.adapters.num_pages, self.device)
        changed = frozenset(self.adapters.a)
        if self.device.type == "cuda" and (self._buckets[0], changed) not in self._graphs:
            self._prepare(changed, Placed(placed.pages, (0,), (max(placed.counts),)))
        return placed

    def can_draw(self, sampling: Sampling, stop_ids: frozenset[int]) -> bool:
        """Whether `launch` and `draw_shaped` draw for such a request."""
        return can_shape(sampling, stop_ids, self.config.vocab_size)

    def draw_shaped(self, logits: Tensor, rows: Sequence[Shaped]) -> tuple[list[int], list[float]]:
        """Draw a token from each row, exactly as a decode step does. Return the tokens and the largest logits after all
        changes."""
        return self._shaper.draw(logits, rows)

    def forget(self) -> None:
        """Count the tokens of all sequences anew: a step may have been undone."""
        self._shaper.forget()

    def spare_block(self, row: int) -> int:
        """Return a block for the token of this row of a launch, if the row has no block for it yet."""
        return self.num_blocks + row

    @torch.inference_mode()
    def move_slots(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values from slots to others."""
        if not moves:
            return
        sources, targets = (
            torch.tensor(moves, dtype=torch.int64).pin_memory().to(self.device, non_blocking=True).unbind(1)
        )
        for cache in (self.k_cache, self.v_cache):
            flat = cache.view(len(self._layers), -1, cache.shape[3] * cache.shape[4])
            flat.index_copy_(1, targets, flat.index_select(1, sources))

    def forward(self, batch: StepBatch, adapters: Sequence[Adapter]) -> Tensor:
        return self.forward_mixed(batch, [tuple(adapters)] * len(batch.context_lens))

    @torch.inference_mode()
    def forward_mixed(self, batch: StepBatch, stacks: Sequence[Stack]) -> Tensor:
        """The same as `forward`, for rows with these adapters."""
        count = len(batch.context_lens)
        if len(batch.tokens) == len(batch.outputs) == count <= self.most_rows:
            tables = batch.block_tables.numpy()
            fields = zip(batch.tokens.tolist(), batch.positions.tolist(), tables, stacks, strict=True)
            self._replay(DecodeRows.of(DecodeRow(a, -1, b, c, adapters=stack) for a, b, c, stack in fields))
            self._final = self._normed[:count]
            return self._logits[:count]
        return self._prefill(batch, self._place(stacks))

    def _send(self, *parts: Tensor) -> list[Tensor]:
        """Copy vectors of 4-byte elements to the device at once. Each starts at a multiple of 16 bytes, as a kernel is
        compiled anew for other addresses."""
        padded = [functional.pad(part, (0, -len(part) % 4)) for part in parts]
        whole = torch.cat(padded)
        sent = self._to_device(whole.pin_memory() if self.device.type == "cuda" else whole)
        pieces = torch.split(sent, [len(part) for part in padded])
        return [piece[: len(part)] for piece, part in zip(pieces, parts, strict=True)]

    def _prefill(self, batch: StepBatch, placed: Placed | None) -> Tensor:
        config, eps, count = self.config, self.config.norm_eps, len(batch.tokens)
        chained = self.device.type == "cuda"
        blocks = prompt_attention.query_blocks(batch.query_start.tolist(), config.group)
        tokens, positions, slots, starts, contexts, outputs, rows, firsts, tables, *own = self._send(
            *(batch.tokens, batch.positions, batch.slots, batch.query_start, batch.context_lens, batch.outputs),
            *(torch.tensor(part, dtype=torch.int32) for part in blocks),
            batch.block_tables.flatten(),
            *_own_pages(batch, placed),
        )
        ranks = max(placed.counts) * low_rank.RANKS.value if placed else 0
        low = self._empty(count * _MOST_MATRICES * ranks)
        tables = tables.view(batch.block_tables.shape)
        hidden = norm.embed(tokens, self._table, self._empty(count, config.hidden_size))
        normed, qkv = torch.empty_like(hidden), self._empty(count, config.q_size + 2 * config.kv_size)
        q, mixed = (self._empty(count, config.num_heads, config.head_dim) for _ in range(2))
        inner = self._empty(count, config.intermediate_size)

        def product(x: Tensor, matrix: _Projection, out: Tensor, *, adds: bool, gated: bool = False) -> None:
            terms = None
            if placed is not None and matrix.group in self.adapters.a:
                terms = self._terms(index, matrix.group, low_rank.Rows(*own), low, count, ranks)
                low_rank.shrink(
                    x, self.adapters.a[matrix.group][index], terms.rows, terms.low,
                    most_pages=len(placed.pages), chained=chained,
                )  # fmt: skip
            linear.linear(
                x, matrix.weight, self._workspace, out,
                bias=matrix.bias, residual=out if adds else None, terms=terms, gated=gated, chained=chained,
            )  # fmt: skip

        for index, (layer, matrices) in enumerate(zip(self._layers, self._matrices, strict=True)):
            caches = self.k_cache[index], self.v_cache[index]
            norm.rms_norm(hidden, layer.attn_norm, eps, normed, chained=chained)
            product(normed, matrices.qkv, qkv, adds=False)
            attention.norm_rope_write(qkv, layer.qk_norms, eps, self._turns, positions, slots, q, *caches)
            prompt_attention.attend(q, (rows, firsts), starts, contexts, tables, *caches, mixed, layer.window)
            product(mixed.flatten(1), matrices.o, hidden, adds=True)
            norm.rms_norm(hidden, layer.mlp_norm, eps, normed, chained=chained)
            product(normed, matrices.gate_up, inner, adds=False, gated=True)
            product(inner, matrices.down, hidden, adds=True)
        self._final = norm.rms_norm(hidden, self._norm, eps, normed, chained=chained)
        if len(outputs) == 0:
            return torch.empty(0, config.vocab_size, device=self.device)
        logits = torch.empty((len(outputs), config.vocab_size), device=self.device)
        return linear.linear(
            normed.index_select(0, outputs), self._head_matrix, self._workspace, logits, chained=chained
        )

    @torch.inference_mode()
    def draw(
        self, logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """Draw a token from each row, exactly as a decode step does. Return the tokens and the largest logits."""
        tokens, peaks = [], []
        for first in range(0, len(logits), self.most_rows):
            part = logits[first : first + self.most_rows]
            shares = (torch.tensor(each[first : first + len(part)]) for each in (temperatures, uniforms))
            drawn = torch.empty((2, -(-len(part) // 4) * 4), dtype=torch.int32, device=self.device)
            largest = drawn[1].view(torch.float32)
            heat, noise = self._send(*shares)
            sampling.draw(part, heat, noise, drawn[0], largest, self._sample_space)
            host = drawn.cpu()
            tokens += host[0, : len(part)].tolist()
            peaks += host[1, : len(part)].view(torch.float32).tolist()
        return tokens, peaks


def _own_pages(batch: StepBatch, placed: Placed | None) -> list[Tensor]:
    """Return the pages, and for each token those of its row."""
    if placed is None:
        return []
    lengths = batch.query_start.diff()
    each = [torch.tensor(values, dtype=torch.int32).repeat_interleave(lengths) for values in placed[1:]]
    return [torch.tensor((len(placed.pages), *placed.pages), dtype=torch.int32), *each]
