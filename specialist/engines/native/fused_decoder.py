"""The model as one C++ call a step, on a CPU. Bit for bit the same result whatever else is in the batch."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.adapters.adapter import Adapter
from specialist.adapters.settings import MAX_RANK
from specialist.engines.native.batch import Batch
from specialist.engines.native.packed_adapters import PackedAdapters
from specialist.engines.native.settings import KVType
from specialist.models.checkpoint import expected_shapes
from specialist.models.config import ModelConfig
from specialist.ops.cpu.library import WORKS, Layer, Linear, Shape, StepRows
from specialist.ops.cpu.prepared import Part, Prepared
from specialist.ops.rope.frequencies import inverse_frequencies


class FusedDecoder:
    device = torch.device("cpu")

    def __init__(
        self,
        config: ModelConfig,
        prepared: Prepared,
        library: Any,
        *,
        num_blocks: int,
        block_size: int,
        max_tokens: int,
        threads: int,
        kv_dtype: KVType = "float32",
        adapter_bytes: int = 1 << 29,
    ) -> None:
        """`max_tokens` bounds a step. The weights stay mapped for as long as this object lives."""
        _check_shapes(config, prepared)
        self.config = config
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_tokens = max_tokens
        self.kv_dtype = kv_dtype
        self._library = library
        self.prepared = prepared
        frequencies, rope_factor = inverse_frequencies(config)
        self._frequencies = np.ascontiguousarray(frequencies.numpy(), np.float32)
        shape = Shape(
            layers=config.num_layers,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab=config.vocab_size,
            num_blocks=num_blocks,
            block_size=block_size,
            max_tokens=max_tokens,
            max_context=min(config.context, num_blocks * block_size),
            max_rank=MAX_RANK,
            threads=threads,
            half_cache=kv_dtype == "float16",
            eps=config.norm_eps,
            rope_factor=rope_factor,
        )
        self._handle = library.octet_create(
            shape, self._layers(), *self._ends(), _address(prepared.vectors["norm"]), _address(self._frequencies)
        )
        if not self._handle:
            raise MemoryError(f"no memory for {num_blocks} KV blocks of {block_size} tokens: ask for fewer")
        self._packed = PackedAdapters(config.num_layers, adapter_bytes, MAX_RANK)
        self._logits = torch.empty((0, config.vocab_size))

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._library.octet_destroy(handle)

    def forward(self, batch: Batch, adapters: Sequence[Adapter]) -> Tensor:
        self._check(batch)
        logits = self._room_for(len(batch.outputs))
        rows = StepRows(
            tokens=len(batch.tokens),
            rows=len(batch.context_lens),
            outputs=len(batch.outputs),
            table_stride=batch.block_tables.shape[1],
            adapters=len(adapters),
            ids=batch.tokens.data_ptr(),
            positions=batch.positions.data_ptr(),
            slots=batch.slots.data_ptr(),
            query_start=batch.query_start.data_ptr(),
            block_tables=batch.block_tables.data_ptr(),
            output_rows=batch.outputs.data_ptr(),
            low_ranks=self._packed.address(adapters),
            logits=logits.data_ptr(),
        )
        self._library.octet_forward(self._handle, rows)
        return logits

    @property
    def adapter_nbytes(self) -> int:
        """Of the copies that are kept as the kernels read them."""
        return self._packed.nbytes

    def drop_adapter(self, digest: str) -> None:
        """Any thread may call."""
        self._packed.drop(digest)

    def linear_only(self, num_tokens: int, num_outputs: int) -> None:
        """Every matrix once and nothing else: the floor under a step of so many tokens."""
        if not 0 < num_tokens <= self.max_tokens:
            raise ValueError(f"num_tokens must be in [1, {self.max_tokens}], got {num_tokens}")
        logits = self._room_for(num_outputs)
        self._library.octet_linear_only(self._handle, num_tokens, num_outputs, logits.data_ptr())

    def seconds(self) -> dict[str, float]:
        """Spent so far, by kind of work: linear, attention, other."""
        spent = self._library.octet_seconds(self._handle)
        return {work: spent[index] for index, work in enumerate(WORKS)}

    def zero(self, slots: Sequence[int]) -> None:
        where = np.asarray(slots, np.int32)
        self._library.octet_zero(self._handle, where.ctypes.data, len(where))

    def cache_views(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values as they lie in memory, [layers, blocks, ...]: for tests that poison them."""
        shape = (self.config.num_layers, self.num_blocks, self.block_size * self.config.kv_size)
        dtype = np.dtype(self.kv_dtype)
        views = []
        for address in (self._library.octet_keys(self._handle), self._library.octet_values(self._handle)):
            raw = (ctypes.c_uint8 * (int(np.prod(shape)) * dtype.itemsize)).from_address(address)
            views.append(np.frombuffer(memoryview(raw).cast("B"), dtype).reshape(shape))
        return views[0], views[1]

    def _check(self, batch: Batch) -> None:
        """What C++ would take on trust."""
        if len(batch.tokens) > self.max_tokens:
            raise ValueError(f"a step of {len(batch.tokens)} tokens; the most is {self.max_tokens}")
        for name, values, limit in (
            ("token", batch.tokens, self.config.vocab_size),
            ("position", batch.positions, self.config.context),
            ("block", batch.block_tables, self.num_blocks),
        ):
            numbers = values.numpy()
            if numbers.min() < 0 or numbers.max() >= limit:
                raise ValueError(f"{name} {numbers.max()} is outside of [0, {limit})")

    def _room_for(self, count: int) -> Tensor:
        if len(self._logits) < count:
            self._logits = torch.empty((count, self.config.vocab_size))
        return self._logits[:count]

    def _layers(self) -> Any:
        layers = (Layer * self.config.num_layers)()
        for index, layer in enumerate(layers):
            prefix = f"layers.{index}."
            for name in ("attn_norm", "mlp_norm", "q_norm", "k_norm"):
                vector = self.prepared.vectors.get(prefix + name)
                setattr(layer, name, None if vector is None else _address(vector))
            for place, name in ((layer.qkv, "q+k+v"), (layer.gate_up, "gate+up")):
                for slot, part in enumerate(self.prepared.matrices[prefix + name]):
                    place[slot] = _linear(part)
            layer.o = self._single(prefix + "o")
            layer.down = self._single(prefix + "down")
            layer.window = self.config.window(index) or 0
        return layers

    def _ends(self) -> tuple[Linear, Linear]:
        embed = self._single("embed")
        return embed, embed if self.config.tied_head else self._single("head")

    def _single(self, name: str) -> Linear:
        return _linear(self.prepared.matrices[name][0])


def _check_shapes(config: ModelConfig, prepared: Prepared) -> None:
    """C++ reads what the config says there is."""
    shapes = dict(expected_shapes(config))
    for name, parts in prepared.matrices.items():
        prefix, _, members = name.rpartition(".")
        wanted = [shapes[f"{prefix}.{member}" if prefix else member] for member in members.split("+")]
        rows = sum(part.rows for part in parts)
        if rows != sum(shape[0] for shape in wanted) or {part.columns for part in parts} != {s[1] for s in wanted}:
            raise ValueError(f"{name} is packed as {rows} rows of {parts[0].columns}; the model has {wanted}")
    for name, vector in prepared.vectors.items():
        if vector.shape != shapes[name]:
            raise ValueError(f"{name} is packed with {len(vector)} numbers; the model has {shapes[name]}")


def _linear(part: Part) -> Linear:
    bias = None if part.bias is None else _address(part.bias)
    return Linear(part.kind, part.rows, part.columns, part.offset, _address(part.data), bias)


def _address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)
