"""How a model is to be run on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

KernelName = Literal["fused", "int4pack", "dyn-quant", "float32"]
DType = Literal["float32", "bfloat16"]
KVType = Literal["float32", "float16"]


@dataclass(frozen=True, slots=True)
class NativeSettings:
    cache: Path
    """Where compiled kernels and packed weights are kept."""
    block_size: int = 16
    max_tokens: int = 512
    """In one step."""
    num_blocks: int | None = None
    """The garbage block included; None for as many as fit into `kv_bytes`."""
    kv_bytes: int = 1 << 30
    device: str = "cpu"
    dtype: DType = "float32"
    """Of a model in PyTorch. The C++ kernels compute in float32."""
    kernel: KernelName | Literal["auto"] = "auto"
    """auto: the fastest on this CPU, by trial."""
    kv_dtype: KVType | Literal["auto"] = "auto"
    """For the C++ kernels. auto: half precision under quantised weights, else float32."""
    threads: int = 0
    """0: one for each CPU that this process may use."""
    max_adapters: int = 32
    """Held in memory."""
    adapter_slots: int = 8
    """Copies on a device other than the CPU, or in another type, ready to compute with."""
    adapter_bytes: int = 1 << 29
    """For the C++ kernels: of adapters packed as they read them, the most recently used."""
