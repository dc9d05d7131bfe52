"""What a configuration file can say. Everything has a default but the specialists' names.

Beside every type stands what its values may be: `octet.config.read` reads and checks a file by these annotations, so
that a field added here can be configured at once. The classes themselves only carry what has been checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from octet.config.detectors import DETECTORS
from octet.config.kinds import (
    ADDRESS,
    DIGEST,
    HOST,
    NAME,
    ORIGIN,
    Count,
    FilePath,
    Known,
    Mark,
    Range,
    Refers,
    Short,
    Text,
    Unit,
)

EngineName = Literal["native", "sim"]
DEMO_MODEL = "demo"
BUILT_IN_CLASSIFIER = "default"
DEFAULT_ROUTER_PORT = 50051
DEFAULT_HTTP_PORT = 8051
REJECT = "reject"
"""What a classifier says for "nobody"; no specialist's name."""

Name = Annotated[str, NAME]
Share = Annotated[float, Range(0, 1), Mark.LIVE]
Weight = Annotated[float, Range(0, 1000), Mark.LIVE]
Seconds = Annotated[float, Unit.SECONDS, Range(0, 86_400, open=True), Mark.LIVE]
Target = Annotated[float | None, Unit.SECONDS, Range(0, 86_400, open=True), Mark.LIVE]


@dataclass(frozen=True, slots=True)
class SloTargets:
    """Seconds that are promised; None: measured and published, and nothing is promised."""

    ttft_p50: Target = None
    ttft_p95: Target = None
    ttft_p99: Target = None
    itl_p50: Target = None
    itl_p95: Target = None
    itl_p99: Target = None
    admission_to_first_token_p95: Target = None


@dataclass(frozen=True, slots=True)
class SpecialistConfig:
    name: Name
    describe: Annotated[str, Text(most=4096)] = ""
    """What it is good at, in a sentence or two: for people, and for routing where no classifier was trained."""
    examples: Annotated[tuple[str, ...], Count(1024), Text(least=1, most=16_384)] = ()
    """Prompts it should get: for routing where no classifier was trained."""
    system: Annotated[str, Text(most=65_536), Mark.LIVE] = ""
    """Put before every conversation."""
    fallback: Annotated[str | None, Refers("specialists"), Mark.LIVE] = None
    """Another specialist, for when this one cannot answer and no second choice is viable."""
    max_tokens: Annotated[int, Range(1, 1 << 20), Mark.LIVE, Mark.SHARED] = 1024
    """The longest answer, where the caller asks for no length."""
    verify: Annotated[str, Text(least=1, most=512), Mark.LIVE, Mark.RUNS, Mark.SHARED] = "non_empty"
    """How its answers are judged: cpp, python, json, json:SCHEMA_FILE, non_empty, none, or one of your own as
    `module:name`; with cpp:required and python:required an answer without code fails."""
    floor: Annotated[float | None, Range(0, 1), Mark.LIVE, Mark.RUNS, Mark.SHARED] = None
    """A pass rate below it demotes the specialist; None: the rate is measured, and nothing follows from it."""

    slo: Annotated[SloTargets, Mark.RUNS] = field(default_factory=SloTargets)

    engine: Annotated[EngineName, Mark.RUNS, Mark.SHARED] = "native"
    model: Annotated[str, FilePath(DEMO_MODEL), Mark.RUNS, Mark.SHARED] = DEMO_MODEL
    """`demo`, a Hugging Face directory or a GGUF file; relative paths start at the configuration file."""
    adapters: Annotated[Mapping[str, str], Count(64), FilePath(), Mark.RUNS] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Name to directory: loaded at start."""
    adapter_digests: Annotated[Mapping[str, str], Count(64), DIGEST, Mark.RUNS] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Name to sha256 of the content, as `octet lanes` shows it: an adapter of that name is this one, or is refused."""
    use_adapters: Annotated[tuple[str, ...], Count(4), Text(least=1, most=64), Mark.LIVE] = ()
    """Applied where the caller names none, in this order."""
    replicas: Annotated[int, Range(1, 64), Mark.RUNS, Mark.SHARED] = 1
    """Processes that `octet serve` starts: 0 where `addresses` are given."""
    addresses: Annotated[tuple[str, ...], Count(64), ADDRESS, Mark.RUNS] = ()
    """Replicas that run elsewhere: host:port, dns:///name:port (every address behind the name), unix:PATH."""
    block_size: Annotated[int, Range(1, 1024), Mark.RUNS, Mark.SHARED] = 16
    """Tokens."""
    kv_memory: Annotated[int, Unit.BYTES, Range(1 << 20, 1 << 40), Mark.RUNS, Mark.SHARED] = 192 << 20
    context: Annotated[int | None, Range(8, 1 << 24), Mark.RUNS, Mark.SHARED] = None
    """Tokens, prompt and answer together; None for all the model can attend over."""
    max_running: Annotated[int, Range(1, 4096), Mark.RUNS, Mark.SHARED] = 32
    max_waiting: Annotated[int, Range(1, 1 << 20), Mark.RUNS, Mark.SHARED] = 256
    piece_gap: Annotated[float, Unit.SECONDS, Range(0, 1), Mark.RUNS, Mark.SHARED] = 0.01
    """Tokens of an answer that come sooner than this after the last are sent together."""
    threads: Annotated[int, Range(0, 1024), Mark.RUNS, Mark.SHARED] = 0
    """0 for one on each CPU."""
    cost_model: Annotated[str | None, FilePath(), Mark.RUNS, Mark.SHARED] = None
    """Of the sim engine."""


@dataclass(frozen=True, slots=True)
class IntentConfig:
    name: Name
    specialist: Annotated[str | None, Refers("specialists")] = None
    """Who gets it, without any more questions; None: the text decides."""
    task: Annotated[str | None, Refers("tasks")] = None
    """Which parameters it gets where the caller leaves them open; None: the text decides."""
    shadow_threshold: Share = 0.5
    """Below this confidence a second opinion is worth its price."""
    priority_floor: Annotated[int, Range(0, 9)] = 0
    """Requests of lower priority are refused."""


@dataclass(frozen=True, slots=True)
class RuleConfig:
    """Text that belongs to one specialist whatever the classifier thinks. Exactly one of detect and contains."""

    name: Name
    specialist: Annotated[str, Refers("specialists")]
    detect: Annotated[str | None, Known(tuple(DETECTORS))] = None
    """A built-in detector: `octet.config.detectors` names them."""
    contains: Annotated[tuple[str, ...], Count(64, least=1), Text(least=1, most=256)] = ()
    """Literal pieces of text, case and all."""
    at_least: Annotated[int, Range(1, 64)] = 1
    """So many of the pieces must be there."""


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """Generation parameters where the caller is silent."""

    name: Name
    temperature: Annotated[float, Range(1e-4, 2, or_zero=True)] = 0.6
    max_tokens: Annotated[int, Range(1, 1 << 20)] = 2048
    top_p: Annotated[float, Range(0, 1, open=True)] = 0.95
    repetition_penalty: Annotated[float, Range(1, 2)] = 1.1


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    path: Annotated[str | None, FilePath(BUILT_IN_CLASSIFIER), Mark.RUNS] = None
    """A trained artefact; `default` for the one that comes with Octet (the eight C++ specialists); None: the
    specialists' descriptions and examples decide."""
    timeout: Annotated[float, Unit.SECONDS, Range(0, 60, open=True), Mark.RUNS] = 0.25
    """Seconds; a classifier that takes longer has failed."""
    cache: Annotated[int, Range(0, 1 << 20), Mark.RUNS] = 4096
    """Decisions kept."""
    reject_threshold: Share = 0.5
    """At this probability of *reject*, or when it is the likeliest of all, nobody answers."""
    min_confidence: Share = 0.2
    """Below it nobody is sure enough to answer, unless `default_specialist` is named."""
    second_threshold: Share = 0.1
    """From this probability on the runner-up is a viable second choice."""


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """How a replica is picked, and when it is given up."""

    choices: Annotated[int, Range(1, 64), Mark.LIVE] = 2
    """Power of k choices."""
    preempting_penalty: Weight = 0.5
    """In shares of a full batch, like the bonuses."""
    session_bonus: Weight = 0.5
    adapter_bonus: Weight = 0.25
    stale_seconds: Seconds = 1.0
    """A load report older than this counts for nothing."""
    heartbeat_seconds: Annotated[float, Unit.SECONDS, Range(0.01, 60), Mark.LIVE] = 0.25
    """How often a replica reports, changed or not."""
    hang_seconds: Annotated[float, Unit.SECONDS, Range(0.2, 86_400), Mark.LIVE] = 1.2
    """A replica not heard from for so long, by report or by token, hangs."""
    stall_seconds: Seconds = 60.0
    """An answer that has begun and brings no token for so long is given up, though its replica reports."""
    failures: Annotated[int, Range(1, 1000), Mark.LIVE] = 3
    """In a row, and a replica's health breaker opens."""
    cool_down: Seconds = 1.0
    """Seconds until an open breaker lets a probe through; doubles up to `max_cool_down`."""
    max_cool_down: Seconds = 30.0
    max_attempts: Annotated[int, Range(1, 16), Mark.LIVE] = 3
    """Of one request, on replicas one after another."""
    retry_burst: Weight = 10.0
    """Retries in the bucket; every one takes 1."""
    retry_ratio: Weight = 0.1
    """What every answered request puts back."""
    quarantine_seconds: Annotated[float, Unit.SECONDS, Range(0, 86_400), Mark.LIVE] = 600.0
    """How long it is remembered that a replica died with a request in flight; after two, the request is refused so
    long. 0: never."""


@dataclass(frozen=True, slots=True)
class CorrectnessConfig:
    """How answers are judged, and when a specialist is demoted for them."""

    sample_rate: Share = 0.1
    """Of the answers of a lane with history."""
    fresh_sample_rate: Share = 1.0
    """Of the answers of a lane without."""
    window: Annotated[float, Unit.SECONDS, Range(1, 30 * 86_400), Mark.LIVE] = 86_400.0
    """Over which the pass rate is taken. A breaker changes its state at most once in so long."""
    min_samples: Annotated[int, Range(1, 1_000_000), Mark.LIVE] = 20
    """Fewer in the window never demote anybody, and never bring anybody back."""
    breach: Seconds = 600.0
    """How long the rate must stay below the floor."""
    queue: Annotated[int, Range(1, 100_000), Mark.LIVE] = 256
    """Answers that wait to be judged; beyond it they are not."""
    answer_bytes: Annotated[int, Unit.BYTES, Range(1024, 16 << 20), Mark.LIVE] = 128 << 10
    """A longer answer is not judged."""
    compiler: Annotated[str, Text(least=1, most=512), Mark.LIVE] = "auto"
    """A C++ compiler; `auto` for g++, else clang++."""
    verify_seconds: Seconds = 10.0
    """Of CPU, and three times as much by the clock, for one answer."""


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """Copies that nobody waits for."""

    budget: Share = 0.1
    """Shadows for every answered request, at most."""
    max_inflight: Annotated[int, Range(0, 4096), Mark.LIVE] = 8
    """At once; 0 for no shadows at all."""
    fresh_rate: Share = 0.5
    """Of the requests of a specialist with a fresh lane; they are not counted against the budget."""
    demoted_rate: Share = 0.2
    """Of the requests that a demoted specialist would have answered; not counted either."""
    timeout: Seconds = 60.0
    similar: Share = 0.6
    """Texts at least so similar agree, where both pass or nobody can tell."""


@dataclass(frozen=True, slots=True)
class LanesConfig:
    """A lane is a specialist's model with its adapters. How a fresh one comes to serve, and how it goes again."""

    promote: Annotated[Literal["auto", "manual"], Mark.LIVE] = "manual"
    """auto: a candidate with enough samples that is no worse than the lane that serves takes its place."""
    min_samples: Annotated[int, Range(1, 1_000_000), Mark.LIVE] = 50
    """Judged answers of a candidate before it can be promoted by policy, and of a fresh lane before it is trusted."""
    margin: Share = 0.02
    """How much worse than the lane that serves a candidate's pass rate may be."""
    roll_back: Annotated[bool, Mark.LIVE] = True
    """A promoted lane that falls below the floor, or behind the lane before it by `worse`, while it is fresh, goes back
    by itself; so does a candidate."""
    worse: Share = 0.1


@dataclass(frozen=True, slots=True)
class EscalationConfig:
    """What happens when one specialist has to refuse too much for too long."""

    enabled: Annotated[bool, Mark.LIVE] = True
    refused: Share = 0.05
    """A share of the requests above this is too much."""
    calm: Share = 0.01
    """A share below this is none."""
    min_requests: Annotated[int, Range(1, 1_000_000), Mark.LIVE] = 20
    """Within `sustain`; fewer say nothing."""
    sustain: Seconds = 10.0
    """Too much for so long: one step up."""
    relax: Seconds = 60.0
    """None for so long: one step back."""
    threshold_step: Share = 0.15
    max_threshold: Share = 0.95
    floor_step: Annotated[int, Range(1, 9), Mark.LIVE] = 1
    max_floor: Annotated[int, Range(0, 9), Mark.LIVE] = 8


@dataclass(frozen=True, slots=True)
class SloConfig:
    """Over which times specialists are measured."""

    window: Annotated[float, Unit.SECONDS, Range(10, 3600), Mark.LIVE] = 300.0
    """Of quantiles and of the preempted share."""
    long_window: Annotated[float, Unit.SECONDS, Range(60, 86_400), Mark.LIVE] = 3600.0
    """Burn rates are told over this one as well."""
    alert_burn: Annotated[float, Range(1, 1000), Mark.LIVE] = 6.0
    """A promise that burns this fast over both windows is what is wrong now."""


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    otlp: Annotated[str, Text(most=2048)] = ""
    """Where traces go, by OTLP over gRPC: http://HOST:4317, or https; empty: what OTEL_EXPORTER_OTLP_ENDPOINT says,
    or nowhere."""
    sample: Share = 1.0
    """Of the requests whose callers have not decided themselves."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where windows, breakers, knobs, lanes, comparisons, receipts and the audit are kept."""

    url: Annotated[str, Text(most=2048)] = field(default="", repr=False)
    """sqlite:PATH, postgresql://..., or `memory` to forget everything at the end; empty: a SQLite file below the
    user's state folder, called after the ensemble and the place of its file."""
    receipts: Annotated[int, Range(0, 100_000_000), Mark.LIVE] = 100_000
    """Kept, the oldest go first; as are the next two."""
    comparisons: Annotated[int, Range(0, 10_000_000), Mark.LIVE] = 50_000
    audit: Annotated[int, Range(1000, 100_000_000), Mark.LIVE] = 100_000
    queue: Annotated[int, Range(100, 1_000_000), Mark.LIVE] = 10_000
    """Rows that wait to be written; beyond it receipts and comparisons are dropped, and somebody is told."""


@dataclass(frozen=True, slots=True)
class HttpConfig:
    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[int, Range(0, 65_535)] = DEFAULT_HTTP_PORT
    """0 for any that is free."""
    allow_origins: Annotated[tuple[str, ...], Count(64), ORIGIN] = ()
    """Pages of these may read the answers, in a browser."""


@dataclass(frozen=True, slots=True)
class JobsConfig:
    """Requests that nobody waits for."""

    concurrency: Annotated[int, Range(0, 4096)] = 4
    """Answered at once by this router; 0: it takes jobs and leaves them to others."""
    priority: Annotated[int, Range(0, 9)] = 2
    """Where the caller names none."""
    timeout: Annotated[float, Unit.SECONDS, Range(0, 86_400, open=True)] = 3600.0
    """Seconds from submission, for callers that name none."""
    queue: Annotated[int, Range(1, 1_000_000)] = 10_000
    """Jobs that have not ended; beyond it they are refused, as with the next two."""
    tenant_queue: Annotated[int, Range(1, 1_000_000)] = 1000
    """Of one tenant."""
    queue_bytes: Annotated[int, Unit.BYTES, Range(4 << 20, 1 << 40)] = 256 << 20
    """Of all of them together."""
    answer_bytes: Annotated[int, Unit.BYTES, Range(1024, 16 << 20)] = 4 << 20
    """A longer answer is cut off."""
    attempts: Annotated[int, Range(1, 100)] = 5
    """Times that whoever answers it may be lost, router or replica, before it is given up."""
    lease: Annotated[float, Unit.SECONDS, Range(0.2, 3600)] = 10.0
    """A job whose router gives no sign of life for so long is another's to answer."""
    keep: Annotated[float, Unit.SECONDS, Range(0, 31 * 86_400, open=True)] = 86_400.0
    """How long a job is kept after its end."""
    kept: Annotated[int, Range(0, 1_000_000)] = 10_000
    """Jobs that have ended; the oldest go first, as with the next."""
    kept_bytes: Annotated[int, Unit.BYTES, Range(0, 1 << 40)] = 1 << 30
    watchers: Annotated[int, Range(1, 100_000)] = 256
    """Callers that follow a job at once; beyond it they are refused."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    certificate: Annotated[str, FilePath()]
    key: Annotated[str, FilePath()]
    client_ca: Annotated[str | None, FilePath()] = None
    """With it, only callers whose certificate it has signed are served."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[int, Range(0, 65_535)] = DEFAULT_ROUTER_PORT
    """0 for any that is free."""
    http: HttpConfig | None = None
    """A door for callers that speak HTTP; None: there is none."""
    keys: Annotated[str | None, FilePath()] = None
    """A file of API keys, which is followed; None: nobody is asked who they are."""
    tls: TlsConfig | None = None
    """For both doors; the files are followed."""
    default_timeout: Annotated[float, Unit.SECONDS, Range(0, 86_400, open=True)] = 120.0
    """Seconds, for callers that name none."""
    max_inflight: Annotated[int, Range(1, 1 << 20)] = 1024
    """Requests at once; beyond it they are refused."""
    max_inflight_bytes: Annotated[int, Unit.BYTES, Range(4 << 20, 1 << 40)] = 16 << 20
    """Of the prompts of all requests at once; beyond it they are refused."""
    receipts: Annotated[int, Range(1, 1_000_000)] = 10_000
    """Kept in memory, the oldest go first."""
    receipt_seconds: Annotated[float, Unit.SECONDS, Range(0, 30 * 86_400, open=True)] = 3600.0
    validations: Annotated[int, Range(0, 10_000)] = 16
    """Answers at once that wait for the verdict that their callers asked for; beyond it there is none."""
    validation_seconds: Annotated[float, Unit.SECONDS, Range(0, 600, open=True)] = 10.0
    """So long an answer's end waits for it."""
    jobs: JobsConfig = field(default_factory=JobsConfig)


@dataclass(frozen=True, slots=True)
class Ensemble:
    specialists: Annotated[tuple[SpecialistConfig, ...], Count(64, least=1), Mark.BY_NAME]
    name: Annotated[str, NAME, Mark.RUNS] = "octet"
    intents: Annotated[tuple[IntentConfig, ...], Count(256), Mark.BY_NAME, Short("specialist"), Mark.LIVE] = ()
    rules: Annotated[tuple[RuleConfig, ...], Count(256), Mark.LIVE] = ()
    """In order: the first that matches decides."""
    tasks: Annotated[tuple[TaskConfig, ...], Count(256), Mark.BY_NAME, Mark.LIVE] = ()
    """`default` among them, always."""
    default_specialist: Annotated[str | None, Refers("specialists"), Mark.LIVE] = None
    """Who gets what nobody is sure of; None: nobody, and the caller is told."""
    classifier: ClassifierConfig = field(default_factory=ClassifierConfig)
    dispatch: Annotated[DispatchConfig, Mark.RUNS] = field(default_factory=DispatchConfig)
    correctness: Annotated[CorrectnessConfig, Mark.RUNS] = field(default_factory=CorrectnessConfig)
    shadow: Annotated[ShadowConfig, Mark.RUNS] = field(default_factory=ShadowConfig)
    lanes: Annotated[LanesConfig, Mark.RUNS] = field(default_factory=LanesConfig)
    escalation: Annotated[EscalationConfig, Mark.RUNS] = field(default_factory=EscalationConfig)
    store: Annotated[StoreConfig, Mark.RUNS] = field(default_factory=StoreConfig)
    slo: Annotated[SloConfig, Mark.RUNS] = field(default_factory=SloConfig)
    telemetry: Annotated[TelemetryConfig, Mark.RUNS] = field(default_factory=TelemetryConfig)
    adapter_root: Annotated[str | None, FilePath(), Mark.RUNS] = None
    """Adapters that are loaded while serving lie below it; None: the folder of this file, or where `octet serve` was
    started."""
    router: Annotated[RouterConfig, Mark.RUNS] = field(default_factory=RouterConfig)
    source: Annotated[Path | None, Mark.RUNS] = None
    """The file it was read from; None for the embedded default."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(specialist.name for specialist in self.specialists)

    def specialist(self, name: str) -> SpecialistConfig:
        """Raises KeyError."""
        for specialist in self.specialists:
            if specialist.name == name:
                return specialist
        raise KeyError(name)
