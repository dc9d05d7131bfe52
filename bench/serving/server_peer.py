"""The servers there are beside Octet's: how each is started, in front of the same model."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.build import cpu_flags
from bench.peers.ports import HOST
from bench.peers.spec import PEERS, VLLM_VERSION, PeerSpec
from bench.serving.told import FieldsForClass, to_vllm

MODEL = "demo"
_KV_SPACE_GIB = "3"
_KEPT_SECONDS = "600"
_BFLOAT16 = ("amx_bf16", "avx512_bf16")


@dataclass(frozen=True, slots=True)
class Place:
    """What a server is given."""

    environment: Path
    """Where it is installed."""
    weights: Path
    """The model as Hugging Face has it, in float32."""
    words: Path
    """Its tokenizer, likewise."""
    port: int
    context: int
    """Tokens of prompt and answer."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings to try."""

    words: str
    """For a person."""
    variables: Mapping[str, str]
    """Of its environment."""


@dataclass(frozen=True, slots=True)
class ServerPeer:
    spec: PeerSpec
    """What to install: the same as where the engines alone are measured."""
    command: Callable[[Place], Sequence[str]]
    variants: Callable[[Place], Sequence[Variant]]
    """Whichever is fastest here is measured."""
    told: FieldsForClass

    @property
    def name(self) -> str:
        return self.spec.name


def _vllm(place: Place) -> Sequence[str]:
    """Its module: the command `vllm` looks for a package of that name, and the one for CPUs has another."""
    return (
        *(str(place.environment / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(place.weights), "--tokenizer", str(place.words), "--served-model-name", MODEL),
        *("--dtype", _dtype(), "--max-model-len", str(place.context), "--scheduling-policy", "priority"),
        *("--host", HOST, "--port", str(place.port), "--disable-uvicorn-access-log"),
    )


def _vllm_variants(place: Place) -> Sequence[Variant]:
    """Its processes and its threads want more cores than there may be: who waits for whom, and how, decides."""
    unasked = _vllm_variant("one core kept from its threads, as it does unasked", {})
    intel = place.environment / "lib" / "libiomp5.so"
    if not intel.exists():
        return [unasked]
    all_cores = {"OMP_NUM_THREADS": str(_threads()), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return [unasked, _vllm_variant(f"{_threads()} threads of Intel's OpenMP", {**all_cores, "LD_PRELOAD": str(intel)})]


def _vllm_variant(words: str, variables: Mapping[str, str]) -> Variant:
    usual = {
        "VLLM_CPU_KVCACHE_SPACE": _KV_SPACE_GIB,
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": _KEPT_SECONDS,  # a connection that ends as it is used would be a failure
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    settings = f"vLLM {VLLM_VERSION} for CPU, its OpenAI server, the same weights in {_dtype()}, {words}"
    return Variant(f"{settings}; told priorities but no deadlines, stopped while others run", {**usual, **variables})


def _dtype() -> str:
    """Its fastest: half as many bytes, and on AMX many times the arithmetic."""
    return "bfloat16" if set(_BFLOAT16) & set(cpu_flags()) else "float32"


def _threads() -> int:
    return len(os.sched_getaffinity(0))


SERVER_PEERS: Mapping[str, ServerPeer] = {
    peer.name: peer for peer in (ServerPeer(PEERS["vllm"], _vllm, _vllm_variants, to_vllm),)
}
