"""The states of a sequence's recurrent layers, in one piece of memory that belongs to the sequence."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specialist.models.checkpoint import ModelConfig
from specialist.scheduling.sequence import Snapshot, SnapshotUnusable


class LayerPlace(NamedTuple):
    """Where a recurrent layer's parts are in a sequence's memory, and where its inputs are in a staged row."""

    conv: slice
    conv_shape: tuple[int, int]  # [width - 1, channels]: the last inputs of the convolution, oldest first
    ssm: slice  # empty for a layer that has only a convolution
    ssm_shape: tuple[int, int, int]  # [heads, state size, head size]
    inputs: slice


@dataclass(frozen=True, slots=True)
class StateLayout:
    places: dict[int, LayerPlace]  # by the layer's number
    size: int  # floats of a state
    input_size: int  # floats to keep for each token, so that a part of the staged tokens can be computed again

    def conv(self, state: Tensor, layer: int) -> Tensor:
        place = self.places[layer]
        return state[place.conv].view(place.conv_shape)

    def ssm(self, state: Tensor, layer: int) -> Tensor:
        place = self.places[layer]
        return state[place.ssm].view(place.ssm_shape)


def state_layout(config: ModelConfig) -> StateLayout:
    places, size, input_size = {}, 0, 0
    for layer in range(config.num_layers):
        parts = config.parts_of(layer)
        if "ssm" in parts and config.ssm is not None:
            ssm = config.ssm
            conv_shape = (ssm.width - 1, ssm.conv_size)
            ssm_shape = (ssm.num_heads, ssm.state_size, ssm.head_dim)
            num_inputs = ssm.conv_size + ssm.num_heads
        elif "conv" in parts and config.conv is not None:
            conv_shape, ssm_shape, num_inputs = (
                (config.conv.width - 1, config.hidden_size),
                (0, 0, 0),
                config.hidden_size,
            )
        else:
            continue
        middle = size + conv_shape[0] * conv_shape[1]
        end = middle + ssm_shape[0] * ssm_shape[1] * ssm_shape[2]
        inputs = slice(input_size, input_size + num_inputs)
        places[layer] = LayerPlace(slice(size, middle), conv_shape, slice(middle, end), ssm_shape, inputs)
        size, input_size = end, inputs.stop
    return StateLayout(places, size, input_size)


class StateShares(NamedTuple):
    """How the memory for states is shared."""

    max_running: int  # sequences that may run at once
    saved: int  # bytes of copies on the host, for later prompts and preempted sequences


def share_states(config: ModelConfig, state_bytes: int, max_running: int) -> StateShares:
    """Share `state_bytes` between running sequences, which take at most three quarters, and copies. Raises MemoryError
    if it is not enough for one sequence and one copy."""
    size = 4 * state_layout(config).size
    running = min(max_running, state_bytes * 3 // 4 // (2 * size))
    if running < 1 or state_bytes - 2 * size * running < size:
        least = 3 * size
        raise MemoryError(
            f"the states of recurrent layers take {size:,} bytes for each sequence, and twice that while it runs: "
            f"state_memory must be at least {least:,} bytes, got {state_bytes:,}"
        )
    return StateShares(running, state_bytes - 2 * size * running)


class RecurrentDecoder(Protocol):
    """What states need of a decoder."""

    device: torch.device
    layout: StateLayout  # empty if the model has no recurrent layers

    def replay(self, state: Tensor, inputs: Tensor, after: Tensor) -> None:
        """Write to `after` the state that follows `state` and the tokens with these inputs [T, input_size]. It equals
        the state that a forward pass over those tokens leaves, bit by bit."""

    def to_host(self, content: Tensor) -> Tensor:
        """Return a copy on the host. Raises MemoryError."""

    def read_block(self, block: int) -> Tensor:
        """Return a copy of the block's keys and values, on the host. Raises MemoryError."""

    def write_block(self, block: int, content: Tensor) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class StateCopy:
    """A state on the host, and the content of the partly filled KV block after it."""

    num_tokens: int
    state: Tensor
    tail: Tensor | None

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + (0 if self.tail is None else self.tail.nbytes)


class RecurrentState:
    """A sequence's state. A forward pass reads `current` and writes the state after its last token to `after`; both
    stay until `trim`. Where a step ends with drafts, the inputs of its tokens are kept as well: if only some drafts
    were right, the state after those is computed again from `current`."""

    def __init__(self, decoder: RecurrentDecoder) -> None:
        self._decoder = decoder
        self.num_tokens = 0
        self.num_staged = 0
        self.current = torch.zeros(decoder.layout.size, device=decoder.device)
        self.after = torch.empty_like(self.current)
        self.inputs: Tensor | None = None  # [staged tokens, input_size]

    @property
    def state(self) -> Tensor:
        return self.current

    @property
    def nbytes(self) -> int:
        return self.current.nbytes + self.after.nbytes

    def stage(self, start: int, num_tokens: int, *, keeps_inputs: bool) -> None:
        """Prepare a forward pass over tokens [start, start + num_tokens)."""
        if start != self.num_tokens:
            raise ValueError(f"the state is after {self.num_tokens} tokens; the step starts after {start}")
        self.num_staged = num_tokens
        shape = (num_tokens, self._decoder.layout.input_size)
        self.inputs = torch.empty(shape, device=self._decoder.device) if keeps_inputs else None

    def trim(self, num_tokens: int) -> None:
        count = num_tokens - self.num_tokens
        if not 0 <= count <= self.num_staged:
            raise ValueError(f"no state after {num_tokens} tokens: {self.num_tokens} + {self.num_staged} are staged")
        if 0 < count < self.num_staged:
            if self.inputs is None:
                raise ValueError(f"no inputs were kept to stop after {count} of {self.num_staged} tokens")
            self._decoder.replay(self.current, self.inputs[:count], self.after)
        if count:
            self.current, self.after = self.after, self.current
        self.num_tokens, self.num_staged, self.inputs = num_tokens, 0, None

    def snapshot(self, tail: int | None) -> StateCopy | None:
        try:
            content = None if tail is None else self._decoder.read_block(tail)
            return StateCopy(self.num_tokens, self._decoder.to_host(self.current), content)
        except MemoryError:
            return None

    def restore(self, snapshot: Snapshot, tail: int | None) -> None:
        if not isinstance(snapshot, StateCopy) or snapshot.state.shape != self.current.shape:
            raise SnapshotUnusable("the copy belongs to another model")
        if (tail is None) != (snapshot.tail is None):
            raise SnapshotUnusable("the copy has a partial block and the sequence has none, or the reverse")
        if tail is not None and snapshot.tail is not None:
            self._decoder.write_block(tail, snapshot.tail)
        self.current.copy_(snapshot.state, non_blocking=True)
        self.num_tokens, self.num_staged, self.inputs = snapshot.num_tokens, 0, None
