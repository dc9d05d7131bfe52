"""Matrix products over quantised weights on the CPU."""

from typing import Any

import torch
from torch import Tensor

from specialist.models.weights import GROUP, Affine, Weight
from specialist.ops.cpu.library import LinearStruct
from specialist.ops.cpu.packed_weights import pack, pack_kind
from specialist.ops.reference.layers import Dense, MakeLinear


def split_nibbles(weight: Affine) -> tuple[Tensor, Tensor, Tensor]:
    """Split a weight into 4-bit integers: return q, scale and offset with weight[n, k] = scale * (q - 8) + offset.

    q is uint8 [N, K]; scale and offset are float32 [N, K / 32]. An 8-bit weight becomes two matrices whose products are
    added: the high nibbles, and the low ones stacked below them, so that q and scale have 2 N rows.

    d * q + m = d * (q - 8) + (m + 8 d), and with q = 16 h + l: 16 d * (h - 8) + d * (l - 8) + (m + 136 d)."""
    q, d, m = weight.integers(), weight.scale.float(), weight.minimum.float()
    if weight.bits == 4:
        return q, d, m + 8 * d
    return torch.cat((q >> 4, q & 15)), torch.cat((16 * d, d)), m + 136 * d


def add_halves(y: Tensor, num_rows: int) -> Tensor:
    """Add the two halves of y [T, 2 N] if the weight was split into two matrices; otherwise return y [T, N]."""
    return y if y.shape[-1] == num_rows else y[:, :num_rows] + y[:, num_rows:]


ROWS = 16  # the number of rows must be a multiple of this


class Int4Pack:
    """PyTorch's int4 kernel for x86. It rounds activations, scales and results to bfloat16."""

    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        if not isinstance(weight, Affine) or device.type != "cpu":
            raise ValueError("int4pack supports only 4-bit and 8-bit weights on the CPU")
        self._rows = weight.shape[0]
        if self._rows % ROWS:
            raise ValueError(f"int4pack needs a multiple of {ROWS} rows, got {self._rows}")
        q, scale, offset = split_nibbles(weight)
        zero = torch.zeros_like(scale)
        zero[-self._rows :] = offset
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.int(), 1)
        self._scale_and_zero = torch.stack((scale.T, zero.T), dim=-1).bfloat16().contiguous()  # [K / 32, N, 2]

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.bfloat16().contiguous(), self._packed, GROUP, self._scale_and_zero
        )
        return add_halves(y.to(x.dtype), self._rows)


class DynQuant:
    """PyTorch's dynamic kernel, made for Arm, which rounds activations to 8 bits. It multiplies by scale * (q - 8).
    This class then adds, for each group, the offset times the sum of the activations."""

    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        if not isinstance(weight, Affine) or device.type != "cpu" or dtype != torch.float32:
            raise ValueError("dyn_quant supports only 4-bit and 8-bit weights, with activations in float32 on the CPU")
        self._rows, self._columns = weight.shape
        if self._columns == GROUP:
            raise ValueError(f"dyn_quant needs more than one group of {GROUP} columns")
        q, scale, offset = split_nibbles(weight)
        packed = q[:, 0::2] | q[:, 1::2] << 4
        self._products = len(q)
        self._packed = torch.ops.aten._dyn_quant_pack_4bit_weight(
            packed.contiguous(), scale.bfloat16(), None, GROUP, self._columns, self._products
        )
        self._offset = offset.T.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        y = torch.ops.aten._dyn_quant_matmul_4bit(x.contiguous(), self._packed, GROUP, self._columns, self._products)
        sums = x.view(len(x), -1, GROUP).sum(-1)
        return torch.addmm(add_halves(y, self._rows), sums, self._offset)


def mixed(kernel: MakeLinear) -> MakeLinear:
    """Return a factory that uses `kernel` for quantised weights and `Dense` for floats."""
    return lambda weight, *place: Dense(weight, *place) if isinstance(weight, Tensor) else kernel(weight, *place)


class PackedLinear:
    """Multiplies with the C++ kernel on the calling thread, for tests and for timing."""

    def __init__(self, weight: Weight, library: Any) -> None:
        self.rows, self.columns = weight.shape
        self._library = library
        self._packed = pack(weight)
        self._linear = LinearStruct(pack_kind(weight), self.rows, self.columns, 0, self._packed.ctypes.data, None)

    def __call__(self, x: Tensor) -> Tensor:
        """float32 [T, K] -> [T, N]."""
        rows = x.contiguous()
        out = torch.empty(len(rows), self.rows)
        self._library.octet_linear(self._linear, rows.data_ptr(), len(rows), out.data_ptr())
        return out
