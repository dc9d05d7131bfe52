"""Affine quantised weights from floats, by plain rounding."""

from typing import Literal

import torch
from torch import Tensor

from specialist.models.weights import GROUP, Affine


def quantize(weight: Tensor, bits: Literal[4, 8]) -> Affine:
    rows, columns = weight.shape
    groups = weight.view(rows, columns // GROUP, GROUP)
    low = groups.amin(-1).half()
    scale = ((groups.amax(-1) - low.float()) / (2**bits - 1)).half()
    steps = (groups - low.float().unsqueeze(-1)) / scale.float().unsqueeze(-1)
    q = steps.round().clamp(0, 2**bits - 1).to(torch.uint8).view(rows, columns)
    return Affine(bits, q if bits == 8 else q[:, 0::2] | q[:, 1::2] << 4, scale, low)
