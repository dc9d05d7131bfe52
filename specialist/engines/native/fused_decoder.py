"""The model, computed by one C++ call per step."""

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.adapters.adapter import MAX_RANK, Adapter
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.recurrent_state import LayerPlace, StateLayout, state_layout
from specialist.engines.native.settings import KVType
from specialist.models.checkpoint import LAYER_MATRICES, ModelConfig, expected_shapes
from specialist.ops.cpu import library as kernels
from specialist.ops.cpu.library import LinearStruct, LowRankStruct
from specialist.ops.cpu.packed_weights import PackedMatrix, PackedWeights, layer_matrices, pack_floats
from specialist.ops.reference.layers import inverse_frequencies


class _Packed(NamedTuple):
    table: Any  # [layers, targets] of LowRankStruct
    arrays: list[NDArray[np.uint8]]  # the memory that the table points into
    nbytes: int


class PackedAdapters:
    """Packs adapters in the C++ decoder's layout and keeps the most recently used, up to `most_bytes`. This should be
    enough for all adapters in use: an evicted one is packed again at its next use, which takes longer than a step. One
    thread calls `address`; any thread may call `drop`."""

    def __init__(self, num_layers: int, most_bytes: int, max_rank: int) -> None:
        self._num_layers = num_layers
        self._most_bytes = most_bytes
        self._max_rank = max_rank
        self._lock = Lock()
        self._packed: OrderedDict[str, _Packed] = OrderedDict()
        self._names: tuple[str, ...] = ()
        self._stack: Any = None
        self.num_packs = 0
        self.nbytes = 0
        self._members: list[_Packed] = []  # keeps the memory of the current stack alive if its adapters are evicted

    def address(self, adapters: Sequence[Adapter]) -> int | None:
        """Return the address of an array [adapters, layers, targets] of LowRankStruct, valid until the next call."""
        if not adapters:
            return None
        names = tuple(adapter.digest for adapter in adapters)
        if self._names != names:
            self._members = [self._get(adapter) for adapter in adapters]
            lows = [low for member in self._members for low in member.table]
            self._stack = (LowRankStruct * len(lows))(*lows)
            self._names = names
        return ctypes.addressof(self._stack)

    def drop(self, digest: str) -> None:
        """Forget an adapter. Its memory stays valid for a step that is still reading it."""
        with self._lock:
            self._forget(digest)

    def _get(self, adapter: Adapter) -> _Packed:
        with self._lock:
            packed = self._forget(adapter.digest)
        if packed is None:
            packed = self._pack(adapter)
            self.num_packs += 1
        with self._lock:
            self._packed[adapter.digest] = packed
            self.nbytes += packed.nbytes
            while self.nbytes > self._most_bytes and self._packed:
                self._forget(next(iter(self._packed)))
        return packed

    def _forget(self, digest: str) -> _Packed | None:
        packed = self._packed.pop(digest, None)
        self.nbytes -= 0 if packed is None else packed.nbytes
        return packed

    def _pack(self, adapter: Adapter) -> _Packed:
        if adapter.rank > self._max_rank:
            raise ValueError(f"the adapter has rank {adapter.rank}; the limit is {self._max_rank}")
        table = (LowRankStruct * (self._num_layers * len(LAYER_MATRICES)))()
        arrays = []
        for layer in range(self._num_layers):
            for index, target in enumerate(LAYER_MATRICES):
                low = adapter.targets.get(f"layers.{layer}.{target}")
                if low is not None:
                    a, b = pack_floats(low.a), pack_floats(low.b)
                    arrays += [a, b]
                    at = layer * len(LAYER_MATRICES) + index
                    table[at] = LowRankStruct(a.ctypes.data, b.ctypes.data, low.a.shape[0], low.scale)
        return _Packed(table, arrays, ctypes.sizeof(table) + sum(array.nbytes for array in arrays))


class FusedDecoder:
    device = torch.device("cpu")

    def __init__(
        self,
        config: ModelConfig,
        prepared: PackedWeights,
        library: Any,
        *,
        num_blocks: int,
        block_size: int,
        max_tokens: int,
        threads: int,
        kv_dtype: KVType = "float32",
        adapter_bytes: int = 1 << 29,
    ) -> None:
        """`max_tokens` is the most tokens that a step may have. The weights stay mapped while this object lives."""
        _check_shapes(config, prepared)
        self._kept: list[NDArray[np.float32]] = []  # keeps memory alive that the C++ decoder points into
        self.config = config
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_tokens = max_tokens
        self.kv_dtype = kv_dtype
        self._library = library
        self.prepared = prepared
        self.layout = state_layout(config)
        frequencies, rope_factor = inverse_frequencies(config)
        self._frequencies = np.ascontiguousarray(frequencies.numpy(), np.float32)
        shape = kernels.ShapeStruct(
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
            kv_layers=len(config.attention_layers),
            rotary_dim=2 * len(self._frequencies),
            activation=("silu", "gelu", "relu2").index(config.activation),
            gated=config.gated_mlp,
            eps=config.norm_eps,
            rope_factor=rope_factor,
            embed_scale=config.embed_scale,
            logit_scale=config.logit_scale,
            recurrent=recurrent_struct(config, self.layout),
        )
        embed = self._single("embed")
        head = embed if config.tied_head else self._single("head")
        norm = _address(prepared.vectors["norm"])
        self._handle = library.octet_create(shape, self._layers(), embed, head, norm, _address(self._frequencies))
        if not self._handle:
            raise MemoryError(f"no memory for {num_blocks} KV blocks of {block_size} tokens: configure fewer")
        self.adapters = PackedAdapters(config.num_layers, adapter_bytes, MAX_RANK)
        self._logits = torch.empty((0, config.vocab_size))
        self._rows: list[Any] = []

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._library.octet_destroy(handle)

    def forward(self, batch: StepBatch, adapters: Sequence[Adapter]) -> Tensor:
        self._check(batch)
        logits = self._logits_buffer(len(batch.outputs))
        rows = kernels.StepStruct(
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
            low_ranks=self.adapters.address(adapters),
            logits=logits.data_ptr(),
            **self._state_rows(batch),
        )
        self._library.octet_forward(self._handle, rows)
        return logits

    def _state_rows(self, batch: StepBatch) -> dict[str, Any]:
        if not self.config.is_recurrent:
            return {}
        if len(batch.states) != len(batch.context_lens):
            raise ValueError(f"{len(batch.context_lens)} rows need a state each, got {len(batch.states)}")
        rows = ctypes.c_void_p * len(batch.states)
        pointers = (
            [each.current.data_ptr() for each in batch.states],
            [each.after.data_ptr() for each in batch.states],
            [None if each.inputs is None else each.inputs.data_ptr() for each in batch.states],
        )
        self._rows = [rows(*each) for each in pointers]  # must outlive the step
        return dict(zip(("states", "after", "kept"), map(ctypes.addressof, self._rows), strict=True))

    def replay(self, state: Tensor, inputs: Tensor, after: Tensor) -> None:
        pointers = state.data_ptr(), inputs.data_ptr(), len(inputs), after.data_ptr()
        self._library.octet_replay(self._handle, *pointers)

    def to_host(self, content: Tensor) -> Tensor:
        return content.clone()

    def read_block(self, block: int) -> Tensor:
        return torch.from_numpy(np.stack([cache[:, block] for cache in self._caches()]))

    def write_block(self, block: int, content: Tensor) -> None:
        for cache, part in zip(self._caches(), content.numpy(), strict=True):
            cache[:, block] = part

    def kv_memory(self) -> tuple[Tensor, ...]:
        """Return the memory for keys and for values, [layers, blocks, elements]."""
        dtype: torch.dtype = getattr(torch, self.kv_dtype)
        return tuple(torch.from_numpy(cache).view(dtype) for cache in self._caches())

    def _caches(self) -> list[NDArray[np.uint8]]:
        """Return keys and values as bytes [layers, blocks, bytes of a block]."""
        itemsize = 2 if self.kv_dtype == "float16" else 4
        layers, nbytes = len(self.config.attention_layers), self.block_size * self.config.kv_size * itemsize
        size = layers * self.num_blocks * nbytes
        pointers = (self._library.octet_keys(self._handle), self._library.octet_values(self._handle))
        flat = [np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer)) for pointer in pointers]
        return [cache.reshape(layers, self.num_blocks, nbytes) for cache in flat]

    def linear_only(self, num_tokens: int, num_outputs: int) -> None:
        """Multiply by every matrix once and do nothing else, to measure the least time that a step can take."""
        if not 0 < num_tokens <= self.max_tokens:
            raise ValueError(f"num_tokens must be in [1, {self.max_tokens}], got {num_tokens}")
        logits = self._logits_buffer(num_outputs)
        self._library.octet_linear_only(self._handle, num_tokens, num_outputs, logits.data_ptr())

    def seconds(self) -> dict[str, float]:
        spent = self._library.octet_seconds(self._handle)
        return {work: spent[index] for index, work in enumerate(kernels.WORK_KINDS)}

    def add_hidden(self, start: int, stop: int, total: NDArray[np.float64]) -> None:
        self._library.octet_add_hidden(self._handle, start, stop, total.ctypes.data)

    def zero(self, slots: Sequence[int]) -> None:
        where = np.asarray(slots, np.int32)
        self._library.octet_zero(self._handle, where.ctypes.data, len(where))

    def _check(self, batch: StepBatch) -> None:
        if len(batch.tokens) > self.max_tokens:
            raise ValueError(f"the step has {len(batch.tokens)} tokens; the limit is {self.max_tokens}")
        for name, values, limit in (
            ("token", batch.tokens, self.config.vocab_size),
            ("position", batch.positions, self.config.context),
            ("block", batch.block_tables, self.num_blocks),
        ):
            numbers = values.numpy()
            if numbers.min() < 0 or numbers.max() >= limit:
                raise ValueError(f"every {name} must be in [0, {limit}), got {numbers.min()} to {numbers.max()}")

    def _logits_buffer(self, count: int) -> Tensor:
        if len(self._logits) < count:
            self._logits = torch.empty((count, self.config.vocab_size))
        return self._logits[:count]

    def _layers(self) -> Any:
        layers = (kernels.LayerStruct * self.config.num_layers)()
        num_caches = 0
        for index, layer in enumerate(layers):
            prefix = f"layers.{index}."
            for name in ("attn_norm", "mlp_norm", "q_norm", "k_norm"):
                setattr(layer, name, self._vector(prefix + name))
            for members in layer_matrices(self.config, index):
                parts = self.prepared.matrices[prefix + "+".join(members)]
                if members[0] in ("q", "gate", "up"):
                    place = layer.qkv if members[0] == "q" else layer.gate_up
                    for slot, part in enumerate(parts):
                        place[slot] = _linear(part)
                elif members[0] in ("in", "out"):
                    setattr(layer.mixer, "in_" if members[0] == "in" else "out", _linear(parts[0]))
                else:
                    setattr(layer, members[0], _linear(parts[0]))
            layer.window = self.config.window(index) or 0
            layer.cache = num_caches
            num_caches += layer.attn_norm is not None
            if index in self.layout.places:
                self._describe_mixer(layer.mixer, prefix, self.layout.places[index])
        return layers

    def _describe_mixer(self, mixer: Any, prefix: str, place: LayerPlace) -> None:
        vectors = self.prepared.vectors
        channels = place.conv_shape[1]
        weights = np.ascontiguousarray(vectors[prefix + "conv"].reshape(channels, -1).T)
        self._kept.append(weights)
        mixer.norm = self._vector(prefix + "mixer_norm")
        mixer.conv_weight = _address(weights)
        for name in ("conv_bias", "skip", "step_bias", "gate_norm"):
            setattr(mixer, name, self._vector(prefix + name))
        if prefix + "log_decay" in vectors:
            rates = -np.exp(vectors[prefix + "log_decay"])
            self._kept.append(rates)
            mixer.rate = _address(rates)
        mixer.conv_at, mixer.ssm_at, mixer.inputs_at = place.conv.start, place.ssm.start, place.inputs.start

    def _vector(self, name: str) -> int | None:
        vector = self.prepared.vectors.get(name)
        return None if vector is None else _address(vector)

    def _single(self, name: str) -> LinearStruct:
        return _linear(self.prepared.matrices[name][0])


def _check_shapes(config: ModelConfig, prepared: PackedWeights) -> None:
    """Check the shapes, which the C++ code trusts."""
    shapes = dict(expected_shapes(config))
    for name, parts in prepared.matrices.items():
        prefix, _, members = name.rpartition(".")
        wanted = [shapes[f"{prefix}.{member}" if prefix else member] for member in members.split("+")]
        rows = sum(part.rows for part in parts)
        if rows != sum(shape[0] for shape in wanted) or {part.columns for part in parts} != {s[1] for s in wanted}:
            raise ValueError(f"{name} is packed as {rows} rows x {parts[0].columns} columns; the model has {wanted}")
    for name, vector in prepared.vectors.items():
        if len(vector) != prod(shapes[name]):
            raise ValueError(f"{name} is packed with the shape {vector.shape}; the model has {shapes[name]}")


def _linear(part: PackedMatrix) -> LinearStruct:
    bias = None if part.bias is None else _address(part.bias)
    return LinearStruct(part.kind, part.rows, part.columns, part.offset, _address(part.data), bias)


def recurrent_struct(config: ModelConfig, layout: StateLayout) -> Any:
    """Return the sizes of the recurrent layers; zeros for a model without them."""
    ssm, conv = config.ssm, config.conv
    if ssm is not None:
        return kernels.RecurrentStruct(
            width=ssm.width,
            channels=ssm.conv_size,
            heads=ssm.num_heads,
            head_dim=ssm.head_dim,
            state_size=ssm.state_size,
            groups=ssm.num_groups,
            norm=("none", "gate_first", "gate_last").index(ssm.norm),
            norm_groups=ssm.norm_groups,
            in_size=ssm.in_size,
            inner=ssm.inner_size,
            input_size=layout.input_size,
            norm_eps=ssm.norm_eps,
            least_step=ssm.least_step,
            most_step=ssm.most_step,
        )
    if conv is None:
        return kernels.RecurrentStruct()
    hidden = config.hidden_size
    sizes = {"channels": hidden, "inner": hidden, "in_size": 3 * hidden, "input_size": layout.input_size}
    return kernels.RecurrentStruct(width=conv.width, **sizes)


def _address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)
