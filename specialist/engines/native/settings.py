"""Settings for running a model on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octet.config.card_shares import USUAL_SHARE

KernelName = Literal["fused", "int4pack", "dyn-quant", "float32", "triton"]
DType = Literal["float32", "bfloat16"]
KVType = Literal["float32", "float16"]

DEFAULT_KV_BYTES = 1 << 30
DEFAULT_STATE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class NativeSettings:
    cache: Path  # the directory of compiled kernels and packed weights
    block_size: int = 16
    max_tokens: int = 512  # maximum number of tokens in a step
    num_blocks: int | None = None  # includes the garbage block; None: the number that fits into `kv_bytes`
    kv_bytes: int | None = None  # None: DEFAULT_KV_BYTES, or on a GPU what `memory_fraction` of the card leaves
    memory_fraction: float = USUAL_SHARE
    state_bytes: int = DEFAULT_STATE_BYTES  # for the states of recurrent layers
    max_running: int = 32  # rows of a step
    device: str = "cpu"
    dtype: DType = "float32"  # for models computed by PyTorch. The C++ kernels compute in float32.
    kernel: KernelName | Literal["auto"] = "auto"  # auto: on a CPU the fastest, measured; on a GPU triton
    # for the C++ kernels; auto: half precision with quantised weights, else float32
    kv_dtype: KVType | Literal["auto"] = "auto"
    threads: int = 0  # 0: one for each CPU that this process may use
    max_adapters: int = 32  # maximum number of adapters in host memory
    adapter_slots: int = 8  # maximum number of adapters copied to a device other than the CPU, or to another type
    adapter_bytes: int = 1 << 29  # memory for adapters packed for the C++ kernels; the most recently used are kept
