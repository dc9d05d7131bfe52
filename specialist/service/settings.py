"""What whoever starts a replica decides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from octet.rpc.bind import LOOPBACK, Tls
from specialist.engines.native.settings import DType, KernelName

EngineName = Literal["native", "sim"]
DEFAULT_PORT = 50151
MOST_PIECE_GAP = 1.0
MIN_CONTEXT = 8
"""Tokens: the first request, of a few, must fit."""


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """The specialist itself: what it computes with."""

    name: str = "specialist"
    engine: EngineName = "native"
    model: Path | None = None
    """A Hugging Face directory or a GGUF file; None for the demo model."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    adapter_digests: Mapping[str, str] = field(default_factory=dict)
    """By name: what an adapter of that name must be, whenever one is loaded."""
    num_blocks: int | None = None
    """Blocks of the KV pool; None to derive it from `kv_bytes`."""
    kv_bytes: int = 1 << 30
    block_size: int = 16
    prefix_cache: bool = True
    """Off, every prompt is computed whole."""
    max_running: int = 32
    context: int | None = None
    """Tokens, prompt and answer together; None for all the model can attend over."""
    device: str = "cpu"
    dtype: DType = "float32"
    """Of a model in PyTorch."""
    kernel: KernelName | Literal["auto"] = "auto"
    threads: int = 0
    """0 for one on each CPU that this process may use."""
    itl_seconds: float = 0.1
    """How long a chunk of somebody's prompt may hold up those who decode."""
    cost_model: Path | None = None
    """What `octet bench engine --calibrate` wrote. The sim engine takes the time it says (None for the rough shape of a
    small model); every engine's forecasts start from it (None to measure first)."""

    def __post_init__(self) -> None:
        if self.context is not None and self.context < MIN_CONTEXT:
            raise ValueError(f"context must be at least {MIN_CONTEXT} tokens, got {self.context}")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where Prometheus may scrape the replica itself: the same TLS, the same care, another port."""

    host: str = LOOPBACK
    port: int = 0
    """0 for any that is free."""
    socket: Path | None = None
    """Never one: Prometheus knows none."""
    tls: Tls | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The door: who may come in, and how many."""

    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    socket: Path | None = None
    """A Unix socket instead of host and port."""
    tls: Tls | None = None
    insecure: bool = False
    """Serve beyond this machine without TLS: only where something else guards the way."""
    adapter_root: Path | None = None
    """Adapters named by callers lie below it; None to load none while serving."""
    adapter_digests: Mapping[str, str] = field(default_factory=dict)
    """As the replica's own."""
    max_waiting: int = 256
    max_watchers: int = 128
    stream_bytes: int = 1 << 20
    """What may wait for one caller that reads too slowly."""
    piece_gap: float = 0.01
    """Seconds from one message of an answer to the next: tokens that come sooner are sent together."""
    stall_seconds: float = 30.0
    """How long one caller may leave its stream unread."""
    otlp: str = ""
    """Where the traces of requests whose callers trace them go; empty: nowhere."""
    watch_seconds: float = 0.25
    """Between two load reports, where the watcher does not say."""
    metrics: MetricsSettings | None = None
    """None: only over gRPC, as the router asks."""

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_watchers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port must be in [0, 65535], got {self.port}")
        if self.stream_bytes < 1 or not 0 < self.stall_seconds < float("inf"):
            raise ValueError("stream_bytes and stall_seconds must be positive and finite")
        if not 0 <= self.piece_gap <= MOST_PIECE_GAP:
            raise ValueError(f"piece_gap must be in [0, {MOST_PIECE_GAP:g}] seconds, got {self.piece_gap:g}")
