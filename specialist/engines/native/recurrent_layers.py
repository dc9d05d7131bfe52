"""Recurrent layers in PyTorch: the state spaces of Mamba 2 and the short convolutions of LFM2."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from specialist.engines.native.recurrent_state import RecurrentState, StateLayout
from specialist.models.checkpoint import Checkpoint, StateSpace
from specialist.models.weights import dense
from specialist.ops.reference.recurrent import causal_conv, gated_norm, selective_scan, step_sizes


class StateRow(NamedTuple):
    """A row of a step: its tokens, and the state of its sequence."""

    tokens: slice
    state: RecurrentState


class Convolution:
    """A layer's causal convolution: its weights, and its part of the states."""

    def __init__(self, checkpoint: Checkpoint, layer: int, layout: StateLayout, device: torch.device) -> None:
        prefix = f"layers.{layer}."
        self._layer, self._layout = layer, layout
        self._weight = dense(checkpoint.weights[prefix + "conv"]).to(device)
        bias = checkpoint.weights.get(prefix + "conv_bias")
        self._bias = None if bias is None else dense(bias).to(device)

    def __call__(self, x: Tensor, state: Tensor, after: Tensor) -> Tensor:
        """[T, channels] -> [T, channels], and write the inputs that the next tokens will read to `after`."""
        y, last = causal_conv(x, self._layout.conv(state, self._layer), self._weight, self._bias)
        self._layout.conv(after, self._layer).copy_(last)
        return y


Mix = Callable[[Tensor, Tensor, Tensor], Tensor]  # (inputs, state, state after) -> outputs


class StateSpaceLayer:
    def __init__(self, checkpoint: Checkpoint, layer: int, layout: StateLayout, device: torch.device) -> None:
        if checkpoint.config.ssm is None:
            raise ValueError("the model has no state space layers")
        self._ssm: StateSpace = checkpoint.config.ssm
        self._layer, self._layout = layer, layout
        self._conv = Convolution(checkpoint, layer, layout, device)

        def vector(name: str) -> Tensor:
            return dense(checkpoint.weights[f"layers.{layer}.{name}"]).to(device)

        self._step_bias, self._skip = vector("step_bias"), vector("skip")
        self._rate = -vector("log_decay").exp()
        self._norm = None if self._ssm.norm == "none" else vector("gate_norm")

    def __call__(self, projected: Tensor, rows: Sequence[StateRow]) -> Tensor:
        """[T, in_size] -> [T, inner_size]."""
        ssm = self._ssm
        floats = projected.float()
        gate, inputs = floats[:, : ssm.inner_size], floats[:, ssm.inner_size :]
        y = mix_rows(inputs, ssm.inner_size, rows, self._layout.places[self._layer].inputs, self.mix)
        if self._norm is None:
            gated = y * functional.silu(gate)
        else:
            gate_first = ssm.norm == "gate_first"
            gated = gated_norm(y, gate, self._norm, ssm.norm_groups, ssm.norm_eps, gate_first=gate_first)
        return gated.to(projected.dtype)

    def mix(self, inputs: Tensor, state: Tensor, after: Tensor) -> Tensor:
        """Run the convolution and the scan over a row's inputs [T, conv_size + num_heads]."""
        ssm = self._ssm
        read, raw_steps = torch.split(inputs, [ssm.conv_size, ssm.num_heads], dim=1)
        mixed = functional.silu(self._conv(read, state, after))
        shared = ssm.num_groups * ssm.state_size
        x, b, c = torch.split(mixed, [ssm.inner_size, shared, shared], dim=1)
        y, last = selective_scan(
            x.reshape(-1, ssm.num_heads, ssm.head_dim),
            step_sizes(raw_steps, self._step_bias, ssm.least_step, ssm.most_step),
            b.reshape(-1, ssm.num_groups, ssm.state_size),
            c.reshape(-1, ssm.num_groups, ssm.state_size),
            self._rate,
            self._skip,
            self._layout.ssm(state, self._layer),
        )
        self._layout.ssm(after, self._layer).copy_(last)
        return y.flatten(1)


class ShortConvLayer:
    def __init__(self, checkpoint: Checkpoint, layer: int, layout: StateLayout, device: torch.device) -> None:
        self.mix = Convolution(checkpoint, layer, layout, device)
        self._inputs = layout.places[layer].inputs

    def __call__(self, projected: Tensor, rows: Sequence[StateRow]) -> Tensor:
        """[T, 3 * hidden] -> [T, hidden]."""
        b, c, x = projected.float().chunk(3, dim=1)
        return (c * mix_rows(b * x, x.shape[1], rows, self._inputs, self.mix)).to(projected.dtype)


def mix_rows(inputs: Tensor, num_outputs: int, rows: Sequence[StateRow], kept: slice, mix: Mix) -> Tensor:
    """Run every row through its own state. Keep the inputs of rows that may be cut short."""
    y = inputs.new_empty(len(inputs), num_outputs)
    for tokens, state in rows:
        if state.inputs is not None:
            state.inputs[:, kept] = inputs[tokens]
        y[tokens] = mix(inputs[tokens], state.current, state.after)
    return y
