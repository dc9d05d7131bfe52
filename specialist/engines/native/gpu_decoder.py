"""The model on an NVIDIA GPU, in Triton kernels. Most steps run as CUDA graphs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specialist.adapters.adapter import MAX_RANK, Adapter
from specialist.adapters.catalog import MAX_STACK
from specialist.engines.native.decode_inputs import MOST_ROWS, DecodeInputs
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.gpu_adapters import DOWN, GATE_UP, MOST_PAGES, OUT, QKV, GpuAdapters, Placed, Stack
from specialist.engines.native.gpu_draws import Drawn, DrawnApart, Draws
from specialist.engines.native.gpu_engine import DecodeRow, DecodeRows
from specialist.engines.native.gpu_graphs import GraphName, Graphs
from specialist.engines.native.gpu_inputs import (
    AdapterInputs,
    FlatInputs,
    num_attended,
    pages_of_tokens,
)
from specialist.engines.native.gpu_memory import why_unsupported
from specialist.engines.native.gpu_prompts import CapturedInputs, PromptInputs, on_block_0, prompt_buckets, send_prompts
from specialist.engines.native.gpu_shaping import Shaper
from specialist.engines.native.shaped_draw import Shaped, can_shape
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint
from specialist.ops.gpu import attention, low_rank, norm, prompt_attention, quantised
from specialist.ops.gpu.packing import Matrix, Packed
from specialist.ops.reference import layers
from specialist.scheduling.sequence import Sampling

BUCKETS = (1, 2, 4, 8, 16, 32, 64, MOST_ROWS)  # on an H200, 48 rows take about as long as 64, 96 as 128
_LEAST_FLAT = 8  # the fewest rows for which a flat step has graphs
_MOST_ATTENDED = 1 << 17  # by all tokens of a flat step: each reads its context, which a prompt's tokens share
_CHUNK = 8  # a row with so many tokens is a chunk of a prompt rather than drafts
_PROMPTS = (1, 8, 16, 32, 64, 128, 256)  # numbers of tokens for which a prompt has kernels of its own
_MOST_MATRICES, _MOST_RANKS = 3, MAX_STACK * MAX_RANK  # of a group, and of a row's adapters together


class _Projection(NamedTuple):
    group: int
    weight: Matrix
    bias: Tensor | None


class _Layer(NamedTuple):
    qkv: _Projection
    o: _Projection
    gate_up: _Projection
    down: _Projection


class GpuDecoder(TorchDecoder):
    """Computes as TorchDecoder does. Its blocks from `num_blocks` on belong to no pool: one for each row of a decode
    step, see `spare_block`. All its work must be on the stream that is current when it is made."""

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
        most_prompt: int = 0,
    ) -> None:
        """`buckets`: for how many rows graphs are captured, ascending. `adapter_pages`: how much of adapters stays in
        memory, in pages of 16 ranks. `most_prompt`: steps of up to so many tokens run as graphs, too. Raises ValueError
        if the kernels cannot compute this model."""
        config = checkpoint.config
        if why := why_unsupported(config, dtype):
            raise ValueError(why)
        self.most_rows = buckets[-1]  # of a step that runs as graphs
        self.vocab_size = config.vocab_size
        self._inference = torch.inference_mode()  # of launches: to enter it takes less time than to make it
        self._buckets = tuple(buckets)
        self._flat_buckets = tuple(each for each in buckets if each >= _LEAST_FLAT) or self._buckets[-1:]
        super().__init__(
            checkpoint, num_blocks=num_blocks, block_size=block_size, device=device, dtype=dtype, linear=Packed
        )
        self._matrices = [
            _Layer(
                _Projection(QKV, *layer.qkv.join()),
                _Projection(OUT, *layer.o.join()),
                _Projection(GATE_UP, *layer.gate_up.join()),
                _Projection(DOWN, *layer.down.join()),
            )
            for layer in self._layers
        ]
        self._table, self._head_matrix = self._take_table()
        with torch.inference_mode():
            places = torch.arange(config.context, device=self.device)
            cos, sin = layers.cos_sin(places, self._frequencies, self._rope_factor)
            self._turns = torch.cat((cos, sin), dim=1).contiguous()  # [context, 2, D / 2]
        matrices = (matrix.weight for layer in self._matrices for matrix in layer)
        self._workspace = quantised.Workspace(self.device, matrices, dtype)
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        self._attention_space = attention.AttentionSpace(self.most_rows, config.context, *heads, self.device)
        self._draws = Draws(self.most_rows, config.vocab_size, self.device)
        most_blocks = -(-config.context // block_size)
        self._inputs = DecodeInputs(most_blocks, self.device)
        self._flat_inputs = FlatInputs(most_blocks, self.device)
        self._hidden, self._normed = (self._empty(self.most_rows, config.hidden_size) for _ in range(2))
        self._qkv = self._empty(self.most_rows, config.q_size + 2 * config.kv_size)
        self._mixed = self._empty(self.most_rows, config.q_size)
        self._inner = self._empty(self.most_rows, config.intermediate_size)
        self._logits = torch.empty((self.most_rows, config.vocab_size), device=self.device)
        self._taken = torch.zeros(self.most_rows, dtype=torch.int32, device=self.device)  # the rows' input tokens
        self._shaper = Shaper(self.most_rows, config.vocab_size, self.device)
        self.adapters = GpuAdapters(config, adapter_pages, self.device, dtype)
        self._adapter_inputs = AdapterInputs(self.adapters.num_pages, self.device)
        self._low = self._empty(self.most_rows * _MOST_MATRICES * _MOST_RANKS)
        self._graphs = Graphs(self.device, self._compute)
        self._captured: CapturedInputs | None = None
        if prompt_buckets(most_prompt):
            self._captured = CapturedInputs(most_prompt, most_blocks, config.group, self.device)
            self._prompt_normed = self._empty(most_prompt, config.hidden_size)
        self.enter_thread()
        if self.device.type == "cuda":
            self._prepare(frozenset())

    @property
    def num_spare(self) -> int:
        return self.most_rows

    def resize(self, num_blocks: int) -> None:
        self._graphs.clear()  # they use the memory that goes
        super().resize(num_blocks)
        if self.device.type == "cuda":
            self._prepare(frozenset())

    def _take_table(self) -> tuple[Matrix, Matrix]:
        """Return the embedding, as it is multiplied by if the model has no other head, and the head."""
        if not isinstance(self._head, Packed):
            raise TypeError("the head is packed for another kernel")
        table, head, self._embed = self._embed, self._head.weight, torch.empty(0)
        return head if self.config.tied_head else Packed(table, self.device, self.dtype).weight, head

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    @torch.inference_mode()
    def _prepare(self, changed: frozenset[int], placed: Placed | None = None) -> None:
        """Capture the graphs, and run prompts of every size that has kernels of its own, on block 0, so that no request
        waits for a kernel. Adapters change these groups of matrices; `placed` has pages of one. Tokens drawn before
        stay."""
        kept, stream = self._draws.both.clone(), torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self._flat_inputs.send(on_block_0(1, self.block_size), (0.0,), (0.0,))
            for bucket in reversed(self._buckets):
                self._inputs.send(DecodeRows.of([DecodeRow(0, -1, 0, [0])]), bucket, self.block_size)
                self._graphs.capture(GraphName("decode", bucket, changed), stream)
                if bucket in self._flat_buckets:
                    self._graphs.capture(GraphName("flat", bucket, changed), stream)
                if not changed:
                    self._graphs.capture(GraphName("outputs", bucket), stream)
                    self._graphs.capture(GraphName("shaped", bucket), stream)
                    self._graphs.capture(GraphName("shaped with k", bucket), stream)
            if self._captured is not None and not changed:
                self._capture_prompts(self._captured, stream)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        for count in _PROMPTS:
            self._prefill(on_block_0(count, self.block_size), placed)
        logits = torch.zeros((1, self.config.vocab_size), device=self.device)
        for top_k in (0, 1):
            self._shaper.draw(logits, [Shaped(Sampling(1.0, top_k), 0.0, (0,), 1, frozenset())])
        self._draws.both.copy_(kept)
        torch.cuda.synchronize(self.device)

    def _capture_prompts(self, captured: CapturedInputs, stream: torch.cuda.Stream) -> None:
        """Capture a graph of every size, with a prompt that fits into the smallest."""
        captured.send(on_block_0(captured.buckets[0], self.block_size), captured.buckets[-1])
        names = [GraphName("prompt", each) for each in reversed(captured.buckets)]
        few = [name for name in names if name.rows <= MOST_ROWS]
        for name in dict.fromkeys(
            (names[0], *few)
        ):  # compile the kernels of many tokens, and those of each smaller size
            self._compute(name)
        self._graphs.capture_together(names, stream)

    def _compute(self, name: GraphName) -> None:
        if name.kind == "decode":
            self._decode(name.rows, name.changed)
        elif name.kind == "flat":
            self._flat(name.rows, name.changed)
        elif name.kind == "outputs":
            picked = norm.embed(self._flat_inputs.outputs, self._normed, self._hidden[: name.rows])
            self._draw_from(picked, self._flat_inputs.temperatures, self._flat_inputs.uniforms)
        elif name.kind == "prompt" and self._captured is not None:
            self._run_prompt(self._captured.inputs(name.rows), self._prompt_normed[: name.rows], None)
        else:
            self._draw_shaped(name.rows, has_k=name.kind == "shaped with k")

    def _decode(self, rows: int, changed: frozenset[int]) -> None:
        """Compute and draw the next tokens of the rows in `_inputs`. Adapters change these groups of matrices."""
        inputs = self._inputs
        quantised.embed(
            inputs.tokens, self._table, self._hidden[:rows], inputs.sources, self._draws.tokens, self._taken
        )

        def attend(index: int, qkv: Tensor) -> Tensor:
            layer = self._layers[index]
            return attention.decode(
                qkv, layer.qk_norms, self.config.norm_eps, self._turns, inputs.positions, inputs.tables, inputs.widths,
                self.k_cache[index], self.v_cache[index], self._mixed[:rows], self._attention_space,
                num_rows=rows, window=layer.window, chained=self.device.type == "cuda",
            )  # fmt: skip

        normed = self._run_layers(rows, changed, attend)
        self._draw_from(normed, inputs.temperatures, inputs.uniforms)

    def _flat(self, rows: int, changed: frozenset[int]) -> None:
        """Compute the final hidden states of the tokens in `_flat_inputs`. A layer first writes the keys and values of
        all of them, as tokens of the same sequence attend to each other."""
        inputs, eps, chained = self._flat_inputs, self.config.norm_eps, self.device.type == "cuda"
        quantised.embed(inputs.tokens, self._table, self._hidden[:rows])

        def attend(index: int, qkv: Tensor) -> Tensor:
            layer, caches = self._layers[index], (self.k_cache[index], self.v_cache[index])
            attention.norm_rope_write(
                qkv, layer.qk_norms, eps, self._turns, inputs.positions, inputs.slots, None, *caches, chained=chained
            )
            return attention.decode(
                qkv, layer.qk_norms, eps, self._turns, inputs.positions, inputs.tables, inputs.widths,
                *caches, self._mixed[:rows], self._attention_space,
                num_rows=rows, owners=inputs.owners, window=layer.window, chained=chained,
            )  # fmt: skip

        self._run_layers(rows, changed, attend)

    def _run_layers(self, rows: int, changed: frozenset[int], attend: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Compute and return the final hidden states, normed, of rows of `_hidden`. `attend` takes a layer and its
        queries, keys and values. Every kernel starts while the one before ends."""
        eps, chained = self.config.norm_eps, self.device.type == "cuda"
        hidden, normed = self._hidden[:rows], self._normed[:rows]

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
            norms_first = gains is not None and not quantised.norms_within(rows, matrix.weight)
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
            return quantised.multiply(
                x, matrix.weight, self._workspace, out,
                norm=gains, eps=eps, bias=matrix.bias, residual=residual, terms=terms, gated=gated, chained=chained,
            )  # fmt: skip

        for index, (layer, matrices) in enumerate(zip(self._layers, self._matrices, strict=True)):
            mixed = attend(index, product(index, hidden, matrices.qkv, self._qkv[:rows], layer.attn_norm))
            product(index, mixed, matrices.o, hidden)
            inner = product(index, hidden, matrices.gate_up, self._inner[:rows], layer.mlp_norm, gated=True)
            product(index, inner, matrices.down, hidden)
        return norm.rms_norm(hidden, self._norm, eps, normed, chained=chained)

    def _draw_from(self, normed: Tensor, temperatures: Tensor, uniforms: Tensor) -> None:
        """Compute the logits of these rows, and draw from them."""
        chained = self.device.type == "cuda"
        out = self._logits[: len(normed)]
        logits = quantised.multiply(normed, self._head_matrix, self._workspace, out, chained=chained)
        self._draws.run(logits, temperatures, uniforms, chained=chained)

    def _draw_shaped(self, rows: int, *, has_k: bool) -> None:
        """Draw again for those rows that were placed in `_shaper`."""
        tokens, peaks, positions = self._draws.tokens, self._draws.peaks, self._inputs.positions
        chained = self.device.type == "cuda"
        self._shaper.run(self._logits[:rows], self._taken, positions, tokens, peaks, has_k=has_k, chained=chained)

    def _terms(
        self, layer: int, group: int, rows: low_rank.Rows, memory: Tensor, count: int, ranks: int
    ) -> low_rank.Terms:
        matrices = self.adapters.a[group].shape[2]
        low = memory[: count * matrices * ranks].view(count, matrices, ranks)
        return low_rank.Terms(self.adapters.b[group][layer], low, rows, self.adapters.edges[group])

    def launch(self, rows: DecodeRows) -> Drawn:
        """Start a decode step of at most `most_rows` rows, and return before it ends."""
        with self._inference:
            self._run_decode(rows)
            return self._draws.fetch(rows.num_rows)

    @torch.inference_mode()
    def redraw(self, rows: Sequence[Shaped | None]) -> Drawn:
        """Draw again for some rows of the decode step that was launched last. Return what is drawn for all its rows."""
        self._draw_changed([(shaped, 0 if shaped is None else len(shaped.tokens) - 1, True) for shaped in rows])
        return self._draws.fetch(len(rows))

    def _bucket(self, num_rows: int) -> int:
        return next(bucket for bucket in self._buckets if bucket >= num_rows)

    def _run_decode(self, rows: DecodeRows) -> None:
        bucket = self._bucket(rows.num_rows)
        placed = self._place(rows.adapters)
        self._inputs.send(rows, bucket, self.block_size)
        self._graphs.replay(GraphName("decode", bucket, self._send_pages(placed)))
        if any(rows.shaped):
            is_known = [source < 0 for source in rows.sources]
            self._draw_changed(list(zip(rows.shaped, rows.positions, is_known, strict=True)))

    def _draw_changed(self, rows: Sequence[tuple[Shaped | None, int, bool]]) -> None:
        """Draw again where the distribution changes; rows as `Slots.place` takes them."""
        bucket = self._bucket(len(rows))
        has_k = self._shaper.place(rows, bucket)
        self._graphs.replay(GraphName("shaped with k" if has_k else "shaped", bucket))

    def _run_flat(
        self, batch: StepBatch, stacks: Sequence[Stack], temperatures: Sequence[float], uniforms: Sequence[float]
    ) -> None:
        count, num_outputs = batch.tokens.shape[0], batch.outputs.shape[0]
        bucket = next(bucket for bucket in self._flat_buckets if bucket >= count)
        placed = self._place(stacks)
        self._flat_inputs.send(batch, temperatures, uniforms)
        changed = self._send_pages(None if placed is None else pages_of_tokens(batch, placed))
        self._graphs.replay(GraphName("flat", bucket, changed))
        if num_outputs:
            self._graphs.replay(GraphName("outputs", self._bucket(num_outputs)))

    def _send_pages(self, placed: Placed | None) -> frozenset[int]:
        """Return the groups of matrices that adapters change."""
        if placed is None:
            return frozenset()
        self._adapter_inputs.send(placed)
        return frozenset(self.adapters.a)

    def _place(self, stacks: Sequence[Stack]) -> Placed | None:
        """Load the adapters. Where they change other matrices than those before, or get other memory, prepare that."""
        placed = self.adapters.place(stacks) if any(stacks) else None
        if placed is None:
            return None
        if len(self._adapter_inputs.rows.pages) <= self.adapters.num_pages:  # graphs use memory that was given back
            self._graphs.drop_changed()
            self._adapter_inputs = AdapterInputs(self.adapters.num_pages, self.device)
        changed = frozenset(self.adapters.a)
        if self.device.type == "cuda" and GraphName("decode", self._buckets[0], changed) not in self._graphs:
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

    def enter_thread(self) -> None:
        """Let the calling thread use the decoder's GPU. Other threads may use others."""
        if self.device.index is not None:  # without an index, it is the one that every thread begins with
            torch.cuda.set_device(self.device)

    def spare_block(self, row: int) -> int:
        """Return a block for the token of this row of a launch, if the row has no block for it yet."""
        return self.num_blocks + row

    @torch.inference_mode()
    def move_slots(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values from slots to others."""
        if not moves:
            return
        places = torch.tensor(moves, dtype=torch.int64)
        sources, targets = self._to_device(places.pin_memory() if self.device.type == "cuda" else places).unbind(1)
        for cache in (self.k_cache, self.v_cache):
            flat = cache.view(len(self._layers), -1, cache.shape[3] * cache.shape[4])
            flat.index_copy_(1, targets, flat.index_select(1, sources))

    @torch.inference_mode()
    def forward_alone(self, batch: StepBatch) -> Tensor:
        captured, self._captured = self._captured, None
        try:
            return self._prefill(batch, None)
        finally:
            self._captured = captured

    def forward(self, batch: StepBatch, adapters: Sequence[Adapter]) -> Tensor:
        return self.forward_mixed(batch, [tuple(adapters)] * len(batch.context_lens))

    @torch.inference_mode()
    def forward_mixed(self, batch: StepBatch, stacks: Sequence[Stack]) -> Tensor:
        """The same as `forward`, for rows with these adapters."""
        nothing = [0.0] * len(batch.outputs)
        return self._start(batch, stacks, nothing, nothing)[0]

    @torch.inference_mode()
    def launch_batch(
        self, batch: StepBatch, stacks: Sequence[Stack], temperatures: Sequence[float], uniforms: Sequence[float]
    ) -> tuple[Tensor, Drawn | DrawnApart]:
        """Start a step of any kind. Return the logits, as `forward_mixed` does, and a draw from each."""
        logits, is_drawn = self._start(batch, stacks, temperatures, uniforms)
        if is_drawn and len(logits):
            return logits, self._draws.fetch(len(logits))
        return logits, self._draws.draw(logits, temperatures, uniforms)

    def _start(
        self, batch: StepBatch, stacks: Sequence[Stack], temperatures: Sequence[float], uniforms: Sequence[float]
    ) -> tuple[Tensor, bool]:
        """Return the logits, and whether they are drawn from."""
        count, num_outputs = batch.tokens.shape[0], batch.outputs.shape[0]
        if count == num_outputs == len(batch.context_lens) <= self.most_rows:
            known = batch.tokens.tolist(), [-1] * count, batch.positions.tolist(), list(batch.block_tables.numpy())
            self._run_decode(DecodeRows(*known, temperatures, uniforms, stacks, [None] * count))
        elif self._is_flat(batch, stacks):
            self._run_flat(batch, stacks, temperatures, uniforms)
        else:
            return self._prefill(batch, self._place(stacks)), False
        self._final = self._normed[:count]
        return self._logits[:num_outputs], True

    def _is_flat(self, batch: StepBatch, stacks: Sequence[Stack]) -> bool:
        """Whether every token is computed as a row of its own. Chunks of prompts are so only if no graph takes them."""
        count, (num_rows, width) = batch.tokens.shape[0], batch.block_tables.shape
        if count > self.most_rows:
            return False
        if count * width * self.block_size > _MOST_ATTENDED and num_attended(batch) > _MOST_ATTENDED:
            return False
        return self._captured is None or any(stacks) or count < _CHUNK * num_rows

    def _prefill(self, batch: StepBatch, placed: Placed | None) -> Tensor:
        count, num_outputs = batch.tokens.shape[0], batch.outputs.shape[0]
        bucket = None if placed is not None or self._captured is None else self._captured.bucket(batch)
        if self._captured is not None and bucket is not None:
            self._captured.send(batch, bucket)
            inputs = self._captured.inputs(bucket)
            self._graphs.replay(GraphName("prompt", bucket))
            normed = self._prompt_normed
        else:
            inputs = send_prompts(batch, self.config.group, self.device, placed)
            normed = self._empty(count, self.config.hidden_size)
            self._run_prompt(inputs, normed, placed)
        self._final = normed[:count]
        logits = torch.empty((num_outputs, self.config.vocab_size), device=self.device)
        if num_outputs == 0:
            return logits
        picked = normed.index_select(0, inputs.outputs[:num_outputs])
        chained = self.device.type == "cuda"
        return quantised.multiply(picked, self._head_matrix, self._workspace, logits, chained=chained)

    def _run_prompt(self, inputs: PromptInputs, normed: Tensor, placed: Placed | None) -> None:
        """Write the final hidden states of the tokens, normed, to `normed`."""
        config, eps, count = self.config, self.config.norm_eps, len(normed)
        chained = self.device.type == "cuda"
        ranks = max(placed.counts) * low_rank.RANKS.value if placed else 0
        low = self._empty(count * _MOST_MATRICES * ranks)
        hidden = quantised.embed(inputs.tokens, self._table, self._empty(count, config.hidden_size))
        qkv = self._empty(count, config.q_size + 2 * config.kv_size)
        q = self._empty(count, config.num_heads, config.head_dim)
        mixed = torch.zeros_like(q)  # padding tokens attend to nothing
        inner = self._empty(count, config.intermediate_size)

        def product(x: Tensor, matrix: _Projection, out: Tensor, *, adds: bool, gated: bool = False) -> None:
            terms = None
            if placed is not None and matrix.group in self.adapters.a:
                terms = self._terms(index, matrix.group, low_rank.Rows(*inputs.pages), low, count, ranks)
                low_rank.shrink(
                    x, self.adapters.a[matrix.group][index], terms.rows, terms.low,
                    most_pages=len(placed.pages), chained=chained,
                )  # fmt: skip
            quantised.multiply(
                x, matrix.weight, self._workspace, out,
                bias=matrix.bias, residual=out if adds else None, terms=terms, gated=gated, chained=chained,
            )  # fmt: skip

        for index, (layer, matrices) in enumerate(zip(self._layers, self._matrices, strict=True)):
            caches = self.k_cache[index], self.v_cache[index]
            norm.rms_norm(hidden, layer.attn_norm, eps, normed, chained=chained)
            product(normed, matrices.qkv, qkv, adds=False)
            attention.norm_rope_write(qkv, layer.qk_norms, eps, self._turns, inputs.positions, inputs.slots, q, *caches)
            prompt_attention.attend(
                q, (inputs.rows, inputs.firsts), inputs.starts, inputs.contexts, inputs.tables, inputs.widths,
                *caches, mixed, layer.window,
            )  # fmt: skip
            product(mixed.flatten(1), matrices.o, hidden, adds=True)
            norm.rms_norm(hidden, layer.mlp_norm, eps, normed, chained=chained)
            product(normed, matrices.gate_up, inner, adds=False, gated=True)
            product(inner, matrices.down, hidden, adds=True)
        norm.rms_norm(hidden, self._norm, eps, normed, chained=chained)
