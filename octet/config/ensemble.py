"""What a configuration file can say. Everything has a default but the specialists' names.

Whatever is read from a file, or written here by hand, has been checked by `octet.config.check` before it gets this
shape; these classes only carry it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

EngineName = Literal["native", "sim"]
DEMO_MODEL = "demo"
DEFAULT_ROUTER_PORT = 50051


@dataclass(frozen=True, slots=True)
class SpecialistConfig:
    name: str
    describe: str = ""
    """What it is good at, in a sentence or two: for people, and for routing where no classifier was trained."""
    examples: tuple[str, ...] = ()
    """Prompts it should get: for routing where no classifier was trained."""
    system: str = ""
    """Put before every conversation."""
    fallback: str | None = None
    """Another specialist, for when this one cannot answer and no second choice is viable."""
    max_tokens: int = 1024
    """The longest answer, where the caller asks for no length."""

    engine: EngineName = "native"
    model: str = DEMO_MODEL
    """`demo`, a Hugging Face directory or a GGUF file; relative paths start at the configuration file."""
    adapters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Name to directory: loaded at start."""
    use_adapters: tuple[str, ...] = ()
    """Applied where the caller names none, in this order."""
    replicas: int = 1
    """Processes that `octet serve` starts. None where `addresses` are given."""
    addresses: tuple[str, ...] = ()
    """Replicas that run elsewhere: host:port, dns:///name:port (every address behind the name), unix:PATH."""
    block_size: int = 16
    kv_memory: int = 192 << 20
    """Bytes."""
    context: int | None = None
    max_running: int = 32
    max_waiting: int = 256
    threads: int = 0
    """0 for one on each CPU."""
    cost_model: str | None = None
    """Of the sim engine."""


@dataclass(frozen=True, slots=True)
class IntentConfig:
    name: str
    specialist: str | None = None
    """Who gets it, without any more questions; None: the text decides."""
    task: str | None = None
    """Which parameters it gets where the caller leaves them open; None: the text decides."""
    shadow_threshold: float = 0.5
    """Below this confidence a second opinion is worth its price."""
    priority_floor: int = 0
    """Requests of lower priority are refused."""


@dataclass(frozen=True, slots=True)
class RuleConfig:
    """Text that belongs to one specialist whatever the classifier thinks. Exactly one of detect and contains."""

    name: str
    specialist: str
    detect: str | None = None
    """A built-in detector: `octet.config.detectors` names them."""
    contains: tuple[str, ...] = ()
    """Literal pieces of text, case and all."""
    at_least: int = 1
    """So many of the pieces must be there."""


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """Generation parameters where the caller is silent."""

    name: str
    temperature: float = 0.6
    max_tokens: int = 2048
    top_p: float = 0.95
    repetition_penalty: float = 1.1


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    path: str | None = None
    """A trained artefact; `default` for the one that comes with Octet (the eight C++ specialists); None: the
    specialists' descriptions and examples decide."""
    timeout: float = 0.05
    """Seconds; a classifier that takes longer has failed."""
    cache: int = 4096
    """Decisions kept."""
    reject_threshold: float = 0.5
    """At this probability of *reject*, or when it is the likeliest of all, nobody answers."""
    min_confidence: float = 0.2
    """Below it nobody is sure enough to answer, unless `default_specialist` is named."""
    second_threshold: float = 0.1
    """From this probability on the runner-up is a viable second choice."""


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """How a replica is picked, and when it is given up."""

    choices: int = 2
    """Power of k choices."""
    preempting_penalty: float = 0.5
    """In shares of a full batch, like the bonuses."""
    session_bonus: float = 0.5
    adapter_bonus: float = 0.25
    stale_seconds: float = 1.0
    """A load report older than this counts for nothing."""
    heartbeat_seconds: float = 0.25
    """How often a replica reports, changed or not."""
    hang_seconds: float = 1.5
    """A replica not heard from for so long, by report or by token, hangs."""
    stall_seconds: float = 60.0
    """An answer without a token for so long is given up, though its replica reports."""
    failures: int = 3
    """In a row, and a replica's health breaker opens."""
    cool_down: float = 1.0
    """Seconds until an open breaker lets a probe through; doubles up to `max_cool_down`."""
    max_cool_down: float = 30.0
    max_attempts: int = 3
    retry_burst: float = 10.0
    """Retries in the bucket; every one takes 1."""
    retry_ratio: float = 0.1
    """What every answered request puts back."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    host: str = "127.0.0.1"
    port: int = DEFAULT_ROUTER_PORT
    default_timeout: float = 120.0
    """Seconds, for callers that name none."""
    max_inflight: int = 1024
    receipts: int = 10_000
    """Kept in memory, the oldest go first."""
    receipt_seconds: float = 3600.0


_ItemT = TypeVar("_ItemT", SpecialistConfig, IntentConfig, TaskConfig)


@dataclass(frozen=True, slots=True)
class Ensemble:
    specialists: tuple[SpecialistConfig, ...]
    name: str = "octet"
    intents: tuple[IntentConfig, ...] = ()
    rules: tuple[RuleConfig, ...] = ()
    """In order: the first that matches decides."""
    tasks: tuple[TaskConfig, ...] = ()
    """`default` among them, always."""
    default_specialist: str | None = None
    """Who gets what nobody is sure of; None: nobody, and the caller is told."""
    classifier: ClassifierConfig = field(default_factory=ClassifierConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    source: Path | None = None
    """The file it was read from; None for the embedded default."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(specialist.name for specialist in self.specialists)

    def specialist(self, name: str) -> SpecialistConfig:
        """Raises KeyError."""
        return _named(self.specialists, name)

    def intent(self, name: str) -> IntentConfig:
        """Raises KeyError."""
        return _named(self.intents, name)

    def task(self, name: str) -> TaskConfig:
        """Raises KeyError."""
        return _named(self.tasks, name)


def _named(items: Iterable[_ItemT], name: str) -> _ItemT:
    for item in items:
        if item.name == name:
            return item
    raise KeyError(name)
