"""The routers there are beside Octet's: what to install for them, and how they are started."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.ports import HOST
from bench.router_peers.http_backend import MODEL


@dataclass(frozen=True, slots=True)
class Place:
    """What a router is given."""

    environment: Path
    """Where it is installed."""
    folder: Path
    """Of its own, for whatever it writes."""
    backends: Sequence[int]
    """Their ports."""
    port: int
    """To listen on."""
    other_port: int
    """For whatever else it serves."""


@dataclass(frozen=True, slots=True)
class RouterPeer:
    name: str
    packages: tuple[str, ...]
    command: Callable[[Place], Sequence[str]]
    settings: str
    """In words, for a person."""
    environment: tuple[tuple[str, str], ...] = ()
    unwanted: tuple[str, ...] = ()
    compiled: bool = False


def _litellm(place: Place) -> Sequence[str]:
    config = place.folder / "litellm.yaml"
    models = "".join(map(_litellm_backend, place.backends))
    config.write_text(f"model_list:\n{models}router_settings: {{disable_cooldowns: true}}\n")
    options = ("--host", HOST, "--port", str(place.port), "--num_workers", "1", "--telemetry", "False")
    return (str(place.environment / "bin" / "litellm"), "--config", str(config), *options)


def _litellm_backend(port: int) -> str:
    where = f"{{model: openai/{MODEL}, api_base: 'http://{HOST}:{port}/v1', api_key: none}}"
    return f"  - model_name: {MODEL}\n    litellm_params: {where}\n"


def _sglang(place: Place) -> Sequence[str]:
    workers = (f"http://{HOST}:{port}" for port in place.backends)
    options = ("--host", HOST, "--port", str(place.port), "--prometheus-port", str(place.other_port))
    module = (str(place.environment / "bin" / "python"), "-m", "sglang_router.launch_router")
    return (*module, "--worker-urls", *workers, *options, "--policy", "round_robin", "--log-level", "warn")


ROUTER_PEERS: Mapping[str, RouterPeer] = {
    peer.name: peer
    for peer in (
        RouterPeer(
            "litellm",
            ("litellm[proxy]==1.106.2",),
            _litellm,
            "LiteLLM's proxy 1.106.2, one worker, no keys, no database, no callbacks, no cooldowns of backends",
            environment=(
                ("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY", "true"),
                ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
                ("LITELLM_LOG", "ERROR"),
                ("LITELLM_MODE", "PRODUCTION"),
            ),
        ),
        RouterPeer("sglang", ("sglang-router==0.3.2",), _sglang, "sglang-router 0.3.2, round robin"),
    )
}
