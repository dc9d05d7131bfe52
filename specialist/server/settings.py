"""Settings of a replica and of its gRPC server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from octet.config.card_shares import USUAL_SHARE
from octet.limits import MAX_DRAFT_WINDOW
from octet.rpc.listener import Endpoint
from specialist.engines.native.settings import DEFAULT_STATE_BYTES, DType, KernelName

EngineName = Literal["native", "sim"]
DEFAULT_PORT = 50151
MAX_PIECE_GAP = 1.0
MIN_CONTEXT = 8  # tokens. The warm-up requests must fit.


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """The specialist itself: model, adapters, memory."""

    name: str = "specialist"
    engine: EngineName = "native"
    model: Path | None = None  # a Hugging Face directory or a GGUF file; None for the demo model
    adapters: Mapping[str, Path] = field(default_factory=dict)
    adapter_digests: Mapping[str, str] = field(default_factory=dict)
    """The digest that an adapter of this name must have whenever it is loaded."""
    num_blocks: int | None = None  # blocks of the KV pool; None to derive the number from `kv_bytes`
    kv_bytes: int | None = None  # None: 1 GiB; on a GPU, what `memory_fraction` of the card leaves
    memory_fraction: float = USUAL_SHARE
    state_bytes: int = DEFAULT_STATE_BYTES
    """Memory for the states of recurrent layers: of running sequences, and copies to resume from."""
    spill_bytes: int = 0  # host memory for blocks that the prefix cache evicts
    block_size: int = 16
    prefix_cache: bool = True  # False: every prompt is computed in full
    max_running: int = 32
    context: int | None = None  # tokens, prompt and answer together; None for the model's own limit
    device: str = "cpu"
    dtype: DType = "float32"  # for models computed by PyTorch
    kernel: KernelName | Literal["auto"] = "auto"
    threads: int = 0  # 0: one for each CPU that this process may use
    draft_window: int = 0  # the most tokens that a step guesses ahead for a request
    draft_lane: bool = False  # whether it guesses from other answers of the same lane and tenant, too
    draft_model: Path | None = None  # a smaller model with the same vocabulary that guesses, too
    itl_seconds: float = 0.1  # how long one chunk of a prompt may delay the requests that decode
    cost_model: Path | None = None
    """A calibration file from `octet bench engine --calibrate`: step times for the sim engine, and the first estimates
    for forecasts. None: the sim engine takes the times of a small model; other engines are measured while they run."""

    def __post_init__(self) -> None:
        if self.context is not None and self.context < MIN_CONTEXT:
            raise ValueError(f"context must be at least {MIN_CONTEXT} tokens, got {self.context}")
        if not 0 < self.memory_fraction <= 1:
            raise ValueError(f"memory_fraction must be in (0, 1], got {self.memory_fraction:g}")
        if self.spill_bytes and not self.prefix_cache:
            raise ValueError("spill_memory keeps what the prefix cache evicts: it is of no use without a prefix cache")
        if not 0 <= self.draft_window <= MAX_DRAFT_WINDOW:
            raise ValueError(f"draft_window must be in [0, {MAX_DRAFT_WINDOW}], got {self.draft_window}")


@dataclass(frozen=True, slots=True)
class ServiceSettings(Endpoint):
    """The gRPC server: its address, limits and telemetry."""

    port: int = DEFAULT_PORT
    adapter_root: Path | None = None
    """Callers may load adapters from below this directory; None: no loading while serving."""
    adapter_digests: Mapping[str, str] = field(default_factory=dict)  # as in ReplicaSettings
    max_waiting: int = 256
    max_watchers: int = 128
    stream_bytes: int = 1 << 20  # maximum bytes that may wait for one slow caller
    piece_gap: float = 0.01  # seconds between two messages of an answer: tokens that arrive sooner are sent together
    stall_seconds: float = 30.0  # how long a caller may leave its stream unread
    otlp: str = ""  # the endpoint for spans of traced requests; empty to export none
    watch_seconds: float = 0.25  # the default time between two load reports
    metrics: Endpoint | None = None  # None: metrics are available over gRPC only

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_watchers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port must be in [0, 65535], got {self.port}")
        if self.stream_bytes < 1 or not 0 < self.stall_seconds < float("inf"):
            raise ValueError("stream_bytes and stall_seconds must be positive and finite")
        if not 0 <= self.piece_gap <= MAX_PIECE_GAP:
            raise ValueError(f"piece_gap must be in [0, {MAX_PIECE_GAP:g}] seconds, got {self.piece_gap:g}")
