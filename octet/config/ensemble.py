"""The schema of a configuration file; docs/configuration.md describes every key.

`octet.config.loader` reads and checks a file by these annotations, so a field added here becomes a key of the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from octet.addresses import is_loopback
from octet.config.annotations import (
    ADDRESS,
    DETECTORS,
    DEVICE,
    DIGEST,
    HOST,
    NAME,
    ORIGIN,
    CountLimits,
    FieldFlag,
    FilePath,
    OneOf,
    RefersTo,
    Shorthand,
    TextLimits,
    ValueUnit,
)
from octet.limits import MAX_DRAFT_WINDOW, Range

EngineName = Literal["native", "sim"]
ReplicaTransport = Literal["http2", "grpc"]
DTypeName = Literal["float32", "bfloat16"]
DEMO_MODEL = "demo"
BUILT_IN_CLASSIFIER = "default"
DEFAULT_ROUTER_PORT = 50051
DEFAULT_HTTP_PORT = 8051
REJECT = "reject"  # the classifier's label for requests that no specialist should answer


def _no_entries() -> Mapping[str, str]:
    return MappingProxyType({})


LIVE, RUNS, SHARED, BY_NAME = FieldFlag.LIVE, FieldFlag.RUNS, FieldFlag.SHARED, FieldFlag.BY_NAME
SECONDS, BYTES = ValueUnit.SECONDS, ValueUnit.BYTES

Name = Annotated[str, NAME]
Paths = Mapping[str, str]
Share = Annotated[float, Range(0, 1), LIVE]
Weight = Annotated[float, Range(0, 1000), LIVE]
Seconds = Annotated[float, SECONDS, Range(0, 86_400, open=True), LIVE]
Target = Annotated[float | None, SECONDS, Range(0, 86_400, open=True), LIVE]


@dataclass(frozen=True, slots=True)
class SloTargets:
    """Latency objectives in seconds. None means that the latency is measured and published, but has no objective."""

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
    describe: Annotated[str, TextLimits(most=4096)] = ""  # for people, and for routing by description
    examples: Annotated[tuple[str, ...], CountLimits(1024), TextLimits(least=1, most=16_384)] = ()
    system: Annotated[str, TextLimits(most=65_536), LIVE] = ""  # system prompt before every conversation
    fallback: Annotated[str | None, RefersTo("specialists"), LIVE] = None
    """The specialist that answers when this one cannot and there is no viable second choice."""
    max_tokens: Annotated[int | None, Range(1, 1 << 20), LIVE, SHARED] = None
    """Longest answer, if the caller sets no limit. None: the task's limit alone applies."""
    verify: Annotated[str, TextLimits(least=1, most=512), LIVE, RUNS, SHARED] = "non_empty"  # or module:name
    floor: Annotated[float | Literal["auto", "none"], Range(0, 1), LIVE, RUNS, SHARED] = "auto"
    """A pass rate that stays lower demotes it. `auto`: learned from its answers; `none`: the rate is only recorded."""

    slo: Annotated[SloTargets, RUNS] = field(default_factory=SloTargets)

    engine: Annotated[EngineName, RUNS, SHARED] = "native"
    model: Annotated[str, FilePath(DEMO_MODEL, hub=True), RUNS, SHARED] = DEMO_MODEL
    """A Hugging Face directory, a GGUF file, hf:ORG/NAME[/FILE.gguf][@REVISION], or the demo model."""
    adapters: Annotated[Mapping[str, str], CountLimits(64), FilePath(hub=True), RUNS] = field(
        default_factory=_no_entries
    )
    adapter_digests: Annotated[Mapping[str, str], CountLimits(64), DIGEST, RUNS] = field(default_factory=_no_entries)
    embeddings: Annotated[bool, LIVE] = False  # whether callers may ask it for embeddings
    use_adapters: Annotated[tuple[str, ...], CountLimits(4), TextLimits(least=1, most=64), LIVE] = ()  # used by default
    replicas: Annotated[int, Range(1, 64), RUNS, SHARED] = 1  # started by `octet serve`; 0 if `addresses` is set
    addresses: Annotated[tuple[str, ...], CountLimits(64), ADDRESS, RUNS] = ()  # replicas that run elsewhere
    block_size: Annotated[int, Range(1, 1024), RUNS, SHARED] = 16  # tokens
    device: Annotated[str, DEVICE, RUNS, SHARED] = "cpu"
    dtype: Annotated[DTypeName, RUNS, SHARED] = "float32"  # on a GPU
    kv_memory: Annotated[int, BYTES, Range(1 << 20, 1 << 40), RUNS, SHARED] = 192 << 20
    memory_fraction: Annotated[float | None, Range(0, 1, open=True), RUNS, SHARED] = None
    """The share of its GPU's memory that a replica takes. None: it takes its weights and a pool of `kv_memory`."""
    state_memory: Annotated[int, BYTES, Range(1 << 20, 1 << 40), RUNS, SHARED] = 1 << 30  # of recurrent layers
    spill_memory: Annotated[int, BYTES, Range(1 << 20, 1 << 40, or_zero=True), RUNS, SHARED] = 0
    """Host memory for KV blocks that the prefix cache evicts."""
    context: Annotated[int | None, Range(8, 1 << 24), RUNS, SHARED] = None  # prompt and answer; None: the model's limit
    max_running: Annotated[int, Range(1, 4096), RUNS, SHARED] = 32
    max_waiting: Annotated[int, Range(1, 1 << 20), RUNS, SHARED] = 256
    draft_window: Annotated[int, Range(0, MAX_DRAFT_WINDOW), RUNS, SHARED] = 0  # tokens guessed ahead in one step
    draft_lane: Annotated[bool, RUNS, SHARED] = False  # whether it also guesses from other answers of lane and tenant
    draft_model: Annotated[str | None, FilePath(DEMO_MODEL, hub=True), RUNS, SHARED] = None
    """A smaller model with the same vocabulary that guesses, too."""
    piece_gap: Annotated[float, SECONDS, Range(0, 1), RUNS, SHARED] = 0.01  # tokens within this time are sent together
    threads: Annotated[int, Range(0, 1024), RUNS, SHARED] = 0  # 0: one thread for each CPU
    cost_model: Annotated[str | None, FilePath(), RUNS, SHARED] = None  # for the sim engine


@dataclass(frozen=True, slots=True)
class IntentConfig:
    name: Name
    specialist: Annotated[str | None, RefersTo("specialists")] = None  # None: the router decides from the text
    task: Annotated[str | None, RefersTo("tasks")] = None  # None: the router decides from the text
    shadow_threshold: Share = 0.5  # requests below this confidence are also sent to a shadow
    shadow_rate: Share = 0.0  # share of the requests routed by a rule or by this intent that are also sent to a shadow
    priority_floor: Annotated[int, Range(0, 9)] = 0  # requests of lower priority are refused
    fallback: Annotated[str | None, RefersTo("specialists")] = None  # preferred to the specialist's own fallback


@dataclass(frozen=True, slots=True)
class RuleConfig:
    """Routes text to one specialist without the classifier. Exactly one of `detect` and `contains` is set."""

    name: Name
    specialist: Annotated[str, RefersTo("specialists")]
    detect: Annotated[str | None, OneOf(tuple(DETECTORS))] = None  # a built-in detector; `DETECTORS` lists them
    contains: Annotated[tuple[str, ...], CountLimits(64, least=1), TextLimits(least=1, most=256)] = ()  # case-sensitive
    at_least: Annotated[int, Range(1, 64)] = 1  # how many of the strings must occur


@dataclass(frozen=True, slots=True)
class TaskConfig:
    name: Name
    temperature: Annotated[float, Range(1e-4, 2, or_zero=True)] = 0.6
    max_tokens: Annotated[int, Range(1, 1 << 20)] = 2048
    top_p: Annotated[float, Range(0, 1, open=True)] = 0.95
    repetition_penalty: Annotated[float, Range(1, 2)] = 1.1
    verify: Annotated[str | None, TextLimits(least=1, most=512)] = None  # preferred to the specialist's own
    labels: Annotated[tuple[str, ...], CountLimits(256), TextLimits(least=1, most=256)] = ()
    """For classification: an answer passes if it is one of them. Takes the place of `verify`."""


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    path: Annotated[str | None, FilePath(BUILT_IN_CLASSIFIER), RUNS] = None  # None: route by descriptions and examples
    timeout: Annotated[float, SECONDS, Range(0, 60, open=True), RUNS] = 0.25  # a slower classifier counts as failed
    cache: Annotated[int, Range(0, 1 << 20), RUNS] = 4096  # number of cached decisions
    reject_threshold: Share = 0.5  # at this probability of *reject* or above, no specialist answers
    min_confidence: Share = 0.2  # below it no specialist answers, unless `default` is set
    second_threshold: Share = 0.1  # at this probability or above, the runner-up is a viable second choice


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """How a replica is chosen, and when it is abandoned."""

    transport: ReplicaTransport = "http2"  # the client for calls to replicas: the router's own HTTP/2 client, or grpcio
    attach: bool = False  # requests to a replica share one call; otherwise, each is a call of its own
    choices: Annotated[int, Range(1, 64), LIVE] = 2  # power of k choices
    preempting_penalty: Weight = 0.5  # penalty and bonuses are shares of a full batch
    session_bonus: Weight = 0.5
    adapter_bonus: Weight = 0.25
    stale_seconds: Seconds = 1.0  # older load reports are ignored
    heartbeat_seconds: Annotated[float, SECONDS, Range(0.01, 60), LIVE] = 0.25  # the longest time between load reports
    hang_seconds: Annotated[float, SECONDS, Range(0.2, 86_400), LIVE] = 1.2  # a replica silent for this long is hung
    stall_seconds: Seconds = 60.0  # a started answer without a token for this long is given up
    failures: Annotated[int, Range(1, 1000), LIVE] = 3  # consecutive failures that open a replica's health breaker
    cool_down: Seconds = 1.0  # time until an open breaker lets a probe through; doubles up to `max_cool_down`
    max_cool_down: Seconds = 30.0
    max_attempts: Annotated[int, Range(1, 16), LIVE] = 3  # replicas that are tried for one request
    retry_burst: Weight = 10.0  # size of the retry budget; each retry takes 1
    retry_ratio: Weight = 0.1  # added to the retry budget by each answered request
    quarantine_seconds: Annotated[float, SECONDS, Range(0, 86_400), LIVE] = 600.0  # for content that kills two replicas
    wait_share: Share = 0.5  # share of a request's time that it may wait for a replica that is away; 0: refuse at once
    wait_requests: Annotated[int, Range(0, 100_000), LIVE] = 256  # requests that may wait at once for each specialist


@dataclass(frozen=True, slots=True)
class CorrectnessConfig:
    """How answers are evaluated, and when a specialist is demoted."""

    sample_rate: Share = 0.1  # share of evaluated answers, for a lane with history
    fresh_sample_rate: Share = 1.0  # share of evaluated answers, for a fresh lane
    window: Annotated[float, SECONDS, Range(1, 30 * 86_400), LIVE] = 86_400.0  # also the shortest time between changes
    min_samples: Annotated[int, Range(1, 1_000_000), LIVE] = 20  # with fewer, no specialist is demoted or restored
    breach: Seconds = 600.0  # how long the pass rate must stay below the floor
    learn_samples: Annotated[int, Range(10, 1_000_000), LIVE] = 50  # verdicts from which an automatic floor is learned
    floor_margin: Share = 0.1  # how far an automatic floor is below what the learned pass rate certainly is
    queue: Annotated[int, Range(1, 100_000), LIVE] = 256  # waiting answers; beyond it the oldest are dropped
    answer_bytes: Annotated[int, BYTES, Range(1024, 16 << 20), LIVE] = 128 << 10  # longer answers are not evaluated
    compiler: Annotated[str, TextLimits(least=1, most=512), LIVE] = "auto"  # `auto`: g++, or else clang++
    verify_seconds: Seconds = 10.0  # CPU time for one answer; the wall clock limit is three times as long


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """Copies of requests that are sent to a second specialist or lane, for comparison only."""

    budget: Share = 0.1  # maximum shadows per answered request
    max_inflight: Annotated[int, Range(0, 4096), LIVE] = 8  # shadows in flight; 0 disables shadows
    fresh_rate: Share = 0.5  # share of shadowed requests while a lane is fresh; outside the budget
    demoted_rate: Share = 0.2  # share of shadowed requests for a demoted specialist; outside the budget
    timeout: Seconds = 60.0
    similar: Share = 0.6  # answers at least this similar agree, if both pass or neither can be verified
    keep_text: Annotated[bool, LIVE] = False  # keep what the classifier reads of a request whose answers disagree
    private_tenants: Annotated[tuple[str, ...], CountLimits(1024), TextLimits(least=1, most=64), LIVE] = ()
    """Tenants of whose requests no text is kept."""


@dataclass(frozen=True, slots=True)
class LanesConfig:
    """Promotion and rollback of lanes. A lane is a specialist's model with its adapters."""

    promote: Annotated[Literal["auto", "manual"], LIVE] = "manual"  # auto: a candidate that is not worse is promoted
    min_samples: Annotated[int, Range(1, 1_000_000), LIVE] = 50  # until promotion, and until a fresh lane is trusted
    margin: Share = 0.02  # how far a candidate's pass rate may be below that of the serving lane
    roll_back: Annotated[bool, LIVE] = True  # if the rate is below the floor, or below the previous lane's by `worse`
    worse: Share = 0.1


@dataclass(frozen=True, slots=True)
class EscalationConfig:
    enabled: Annotated[bool, LIVE] = True
    refused: Share = 0.05  # a larger share of refused requests escalates
    calm: Share = 0.01  # a smaller share of refused requests relaxes
    min_requests: Annotated[int, Range(1, 1_000_000), LIVE] = 20  # fewer requests within `sustain` are ignored
    sustain: Seconds = 10.0  # time above `refused` before a step up
    relax: Seconds = 60.0  # time below `calm` before a step back is tried whose requests may not fit
    threshold_step: Share = 0.15  # a step between 0 and 0.01 counts as 0.01
    max_threshold: Share = 0.95
    floor_step: Annotated[int, Range(1, 9), LIVE] = 1
    max_floor: Annotated[int, Range(0, 9), LIVE] = 8


@dataclass(frozen=True, slots=True)
class SloConfig:
    window: Annotated[float, SECONDS, Range(10, 3600), LIVE] = 300.0  # window of quantiles and of the preempted share
    long_window: Annotated[float, SECONDS, Range(60, 86_400), LIVE] = 3600.0  # second window of burn rates
    alert_burn: Annotated[float, Range(1, 1000), LIVE] = 6.0  # a burn rate that is a problem if both windows reach it


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    otlp: Annotated[str, TextLimits(most=2048)] = ""  # http(s)://HOST:4317; empty: OTEL_EXPORTER_OTLP_ENDPOINT
    sample: Share = 1.0  # share of traced requests, unless the caller decides


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The router's database, and how many records of each kind it keeps."""

    url: Annotated[str, TextLimits(most=2048)] = field(default="", repr=False)  # empty: SQLite in the state folder
    receipts: Annotated[int, Range(0, 100_000_000), LIVE] = 100_000  # the oldest are deleted first
    comparisons: Annotated[int, Range(0, 10_000_000), LIVE] = 50_000
    texts: Annotated[int, Range(0, 1_000_000), LIVE] = 1000  # texts of comparisons (`shadow.keep_text`); 0: none
    texts_keep: Annotated[float, SECONDS, Range(0, 31 * 86_400, open=True), LIVE] = 7 * 86_400.0
    audit: Annotated[int, Range(1000, 100_000_000), LIVE] = 100_000
    responses: Annotated[int, Range(0, 1_000_000), LIVE] = 10_000  # of /v1/responses, with their text; 0: none
    responses_bytes: Annotated[int, BYTES, Range(1 << 20, 1 << 40), LIVE] = 256 << 20
    responses_keep: Annotated[float, SECONDS, Range(0, 31 * 86_400, open=True), LIVE] = 86_400.0
    queue: Annotated[int, Range(100, 1_000_000), LIVE] = 10_000  # rows; beyond it the oldest are dropped, and counted


@dataclass(frozen=True, slots=True)
class HttpConfig:
    enabled: bool = True  # `http: false` is short for `{enabled: false}`
    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[int, Range(0, 65_535)] = DEFAULT_HTTP_PORT  # 0 for any free port
    allow_origins: Annotated[tuple[str, ...], CountLimits(64), ORIGIN] = ()  # their pages may read answers (CORS)


@dataclass(frozen=True, slots=True)
class JobsConfig:
    concurrency: Annotated[int, Range(0, 4096)] = 4  # concurrent jobs; 0: this router runs none
    priority: Annotated[int, Range(0, 9)] = 2  # priority, if the caller sets none
    timeout: Annotated[float, SECONDS, Range(0, 86_400, open=True)] = 3600.0  # default, counted from submission
    queue: Annotated[int, Range(1, 1_000_000)] = 10_000  # unfinished jobs; further ones are refused
    tenant_queue: Annotated[int, Range(1, 1_000_000)] = 1000  # unfinished jobs of one tenant
    queue_bytes: Annotated[int, BYTES, Range(4 << 20, 1 << 40)] = 256 << 20  # total size of unfinished jobs
    answer_bytes: Annotated[int, BYTES, Range(1024, 16 << 20)] = 4 << 20  # a job with a longer answer fails
    attempts: Annotated[int, Range(1, 100)] = 5  # how often a job is tried if its router or replica is lost
    lease: Annotated[float, SECONDS, Range(0.2, 3600)] = 10.0  # after this long, a job of a silent router is taken over
    keep: Annotated[float, SECONDS, Range(0, 31 * 86_400, open=True)] = 86_400.0  # how long an ended job is stored
    kept: Annotated[int, Range(0, 1_000_000)] = 10_000  # stored ended jobs; the oldest are deleted first
    kept_bytes: Annotated[int, BYTES, Range(0, 1 << 40)] = 1 << 30
    watchers: Annotated[int, Range(1, 100_000)] = 256  # concurrent watchers of jobs; further ones are refused


@dataclass(frozen=True, slots=True)
class TlsConfig:
    certificate: Annotated[str, FilePath()]
    key: Annotated[str, FilePath()]
    client_ca: Annotated[str | None, FilePath()] = None  # accept only callers with a certificate signed by this CA


@dataclass(frozen=True, slots=True)
class RouterConfig:
    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[int, Range(0, 65_535)] = DEFAULT_ROUTER_PORT  # 0 for any free port
    http: Annotated[HttpConfig | None, Shorthand("enabled")] = None  # None: enabled if `host` is loopback
    keys: Annotated[str | None, FilePath()] = None  # a file, watched for changes; None: no keys are required
    tls: TlsConfig | None = None  # for gRPC and HTTP; the files are watched for changes
    default_timeout: Annotated[float, SECONDS, Range(0, 86_400, open=True)] = 120.0  # timeout, if the caller sets none
    max_inflight: Annotated[int, Range(1, 1 << 20)] = 1024  # concurrent requests; further ones are refused
    max_inflight_bytes: Annotated[int, BYTES, Range(4 << 20, 1 << 40)] = 16 << 20  # prompts of running requests
    receipts: Annotated[int, Range(1, 1_000_000)] = 10_000  # receipts in memory; the oldest are dropped first
    receipt_seconds: Annotated[float, SECONDS, Range(0, 30 * 86_400, open=True)] = 3600.0
    validations: Annotated[int, Range(0, 10_000)] = 16  # concurrent validations; further answers are not validated
    validation_seconds: Annotated[float, SECONDS, Range(0, 600, open=True)] = 10.0
    """Longest time that the end of an answer waits for its validation."""
    jobs: JobsConfig = field(default_factory=JobsConfig)

    @property
    def http_listener(self) -> HttpConfig | None:
        """The HTTP listener; None if HTTP is disabled. On an address that other machines can reach, HTTP must be
        configured: a default port would be open to them unnoticed."""
        if self.http is None:
            return HttpConfig() if is_loopback(self.host) else None
        return self.http if self.http.enabled else None

    def override_http(self, port: int | None, *, disabled: bool) -> "RouterConfig":
        """Return the configuration with HTTP `disabled`, or enabled on this port; without options, itself."""
        if disabled:
            return replace(self, http=HttpConfig(enabled=False))
        return self if port is None else replace(self, http=replace(self.http or HttpConfig(), enabled=True, port=port))


@dataclass(frozen=True, slots=True)
class Ensemble:
    specialists: Annotated[tuple[SpecialistConfig, ...], CountLimits(64, least=1), BY_NAME]
    name: Annotated[str, NAME, RUNS] = "octet"
    intents: Annotated[tuple[IntentConfig, ...], CountLimits(256), BY_NAME, Shorthand("specialist"), LIVE] = ()
    rules: Annotated[tuple[RuleConfig, ...], CountLimits(256), LIVE] = ()  # the first rule that matches decides
    tasks: Annotated[tuple[TaskConfig, ...], CountLimits(256), BY_NAME, LIVE] = ()  # always includes `default`
    default: Annotated[str | None, RefersTo("specialists"), LIVE] = None  # for requests that no other source places
    bare: Annotated[str | None, RefersTo("specialists"), LIVE] = None
    """The specialist whose base model, without system prompt and adapters, answers requests that no specialist fits.
    None: they are refused."""
    classifier: ClassifierConfig = field(default_factory=ClassifierConfig)
    dispatch: Annotated[DispatchConfig, RUNS] = field(default_factory=DispatchConfig)
    correctness: Annotated[CorrectnessConfig, RUNS] = field(default_factory=CorrectnessConfig)
    shadow: Annotated[ShadowConfig, RUNS] = field(default_factory=ShadowConfig)
    lanes: Annotated[LanesConfig, RUNS] = field(default_factory=LanesConfig)
    escalation: Annotated[EscalationConfig, RUNS] = field(default_factory=EscalationConfig)
    store: Annotated[StoreConfig, RUNS] = field(default_factory=StoreConfig)
    slo: Annotated[SloConfig, RUNS] = field(default_factory=SloConfig)
    telemetry: Annotated[TelemetryConfig, RUNS] = field(default_factory=TelemetryConfig)
    adapter_root: Annotated[str | None, FilePath(), RUNS] = None  # for adapters loaded later; None: this file's folder
    router: Annotated[RouterConfig, RUNS] = field(default_factory=RouterConfig)
    source: Annotated[Path | None, RUNS] = None  # the file it was read from; None for the embedded default

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(specialist.name for specialist in self.specialists)

    @property
    def default_name(self) -> str | None:
        """The specialist for requests that no source places: `default`, else the only specialist, else None."""
        return self.names[0] if self.default is None and len(self.specialists) == 1 else self.default

    def specialist(self, name: str) -> SpecialistConfig:
        """Raises KeyError for an unknown name."""
        for specialist in self.specialists:
            if specialist.name == name:
                return specialist
        raise KeyError(name)


DEFAULT_TASK = "default"
DEFAULT_TASKS = (
    TaskConfig(DEFAULT_TASK),
    TaskConfig("json_parsing", temperature=0.2, max_tokens=2048, repetition_penalty=1.0, verify="json"),
    TaskConfig("creative_writing", temperature=0.8, max_tokens=4096, repetition_penalty=1.1),
    TaskConfig("code_generation", temperature=0.4, max_tokens=8192, repetition_penalty=1.05, verify="code"),
    TaskConfig("review", temperature=0.2, max_tokens=2048, repetition_penalty=1.05, verify="code"),
    TaskConfig("debug", temperature=0.2, max_tokens=2048, repetition_penalty=1.05, verify="code"),
)


def with_default_tasks(own: tuple[TaskConfig, ...]) -> tuple[TaskConfig, ...]:
    """Return the default tasks and the file's own. A default task is replaced by the file's task of the same name."""
    named = {task.name: task for task in (*DEFAULT_TASKS, *own)}
    return tuple(named.values())
