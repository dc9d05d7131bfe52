"""Whether kernels for Hopper GPUs can be used. They are in Gluon, a part of Triton that changes with its versions."""

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
import triton

_log = logging.getLogger(__name__)
_HOPPER = 9  # the first number of its compute capability


@cache
def for_hopper(name: str, device: torch.device) -> ModuleType | None:
    """Return the module of this name, whose `try_out` is called first. Return None if the device is another GPU or
    none, or, with a warning, if the kernel does not work with this Triton. The first call must not be captured.
    Raises torch.OutOfMemoryError if there is no memory to try it in: the next call tries again."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != _HOPPER:
        return None
    try:
        module = import_module(f"specialist.ops.gpu.{name}")
        module.try_out(device)
    except torch.OutOfMemoryError:
        raise  # it says nothing about the kernel
    except Exception as error:  # whatever a version of Triton may raise
        _log.warning(
            "%s, for Hopper GPUs, does not work with Triton %s, so prompts are computed by slower kernels: %s: %s",
            name, triton.__version__, type(error).__name__, error,
        )  # fmt: skip
        return None
    return module
