"""The systems under load: an ensemble of the bench, endpoints and servers of peers; and the load on one of them."""

import asyncio
import gc
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, process_time, sleep
from typing import TYPE_CHECKING, Literal

from bench.peers.environment import PEERS, VLLM_VERSION, PeerSpec, Say, cpu_flags, prepare
from bench.peers.process import HOST, PeerFailed, ServerProcess, Trial, cpu_of_tree, free_ports, keep_fastest
from bench.processes import scratch_folder, started
from bench.serving.callers import Caller, Endpoint, ServedAnswer, caller_of
from bench.serving.workload import Ask, CallerClass, ClassFields, ServeMistake, Source, to_vllm

if TYPE_CHECKING:
    from specialist.models.checkpoint import Checkpoint

_AHEAD = 0.2  # seconds before the first arrival


@dataclass(frozen=True, slots=True)
class LoadRound:
    system: str
    seconds: float  # of arrivals
    lasted: float  # until the last answer
    answers: tuple[ServedAnswer, ...]
    generator: float  # CPU seconds of the load generator
    load: str = ""  # empty if there is only one
    waiting: float | None = None
    # CPU seconds of the other systems, if the bench started them


async def play(system: str, caller: Caller, asks: Sequence[Ask], seconds: float) -> LoadRound:
    """The garbage collector is off: its pauses would count as latency."""
    gc.collect()
    gc.disable()
    try:
        cpu, start = process_time(), perf_counter() + _AHEAD
        calls = []
        for ask in asks:
            due = start + ask.at
            while (wait := due - perf_counter()) > 0:
                await asyncio.sleep(wait)
            calls.append(asyncio.ensure_future(caller.ask(ask, due)))
        answers = await asyncio.gather(*calls)
        return LoadRound(system, seconds, perf_counter() - start, tuple(answers), process_time() - cpu)
    finally:
        gc.enable()


CROWD, CROWDS = 64, 3  # more than one, because the machine may be shared
PATIENT = CallerClass("crowd", 1.0, 5, 120.0, 120.0)


async def capacity_of(system: str, caller: Caller, crowds: Sequence[Sequence[Ask]]) -> float:
    """Requests per second: the median of all crowds but the first, which warms up."""
    rounds = [await play(system, caller, at_once(crowd), 1.0) for crowd in crowds]
    found = median(map(rate_of, rounds[1:]))
    if not found:
        raise ServeMistake(f"{system}: answered no request of a crowd: its capacity is unknown")
    return found


def at_once(asks: Sequence[Ask]) -> list[Ask]:
    return [replace(ask, at=0.0, caller=PATIENT) for ask in asks]


def rate_of(crowd: LoadRound) -> float:
    ends = [answer.total for answer in crowd.answers if answer.end == "answered"]
    return len(ends) / max(ends) if ends else 0.0


NAME = "talker"
OWN_MODEL = f"octet/{NAME}"
Engine = Literal["native", "sim"]


@dataclass(frozen=True, slots=True)
class OwnSite:
    grpc: str
    http: str  # without a path
    pid: int  # of the supervisor


@contextmanager
def own_site(engine: Engine, replicas: int = 1, file: Path | None = None) -> Iterator[OwnSite]:
    """Of one specialist, or as the file says. Raises SiteFailed."""
    with scratch_folder() as folder:
        if file is None:
            file = folder / "ensemble.yaml"
            file.write_text(
                f"engine: {engine}\nreplicas: {replicas}\nstore: {{url: memory}}\nspecialists: {{{NAME}}}\n"
            )
        arguments = ["serve", str(file.resolve()), "--port", "0", "--http-port", "0", "--json"]
        with started("octet.cli", arguments, folder / "serve.log", ready=r"^\{.*\}") as ensemble:
            ready = json.loads(ensemble.ready[0])
            yield OwnSite(ready["address"], ready["http"], ensemble.pid)


@dataclass(frozen=True, slots=True)
class OwnEnsemble:
    engine: Engine
    replicas: int
    doors: tuple[str, ...]  # http, grpc
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class ServeOptions:
    source: Callable[[float | None], Source]  # at a rate, or at its own
    rate: float | None
    shares: tuple[float, ...]  # of the first system's capacity, each one load; empty for one load at `rate`
    classes: tuple[CallerClass, ...]
    own: OwnEnsemble | None
    endpoints: tuple[Endpoint, ...]
    seconds: float
    runs: int
    seed: int
    context: int
    key: str | None = None
    give_up: float = 120.0  # seconds, unless the deadline is sooner
    peers: tuple[str, ...] = ()  # names of SERVER_PEERS
    quick: bool = False


MODEL = "demo"
_KV_SPACE_GIB = "3"
_KEPT_SECONDS = "600"
_BFLOAT16 = ("amx_bf16", "avx512_bf16")


@dataclass(frozen=True, slots=True)
class ServerPlace:
    environment: Path  # virtual environment
    weights: Path  # a Hugging Face directory in float32
    words: Path  # its tokenizer
    port: int
    context: int  # tokens of prompt and answer


@dataclass(frozen=True, slots=True)
class Variant:
    words: str  # description
    variables: Mapping[str, str]  # environment variables


@dataclass(frozen=True, slots=True)
class ServerPeer:
    spec: PeerSpec  # what to install
    command: Callable[[ServerPlace], Sequence[str]]
    variants: Callable[[ServerPlace], Sequence[Variant]]  # the fastest is measured
    class_fields: ClassFields

    @property
    def name(self) -> str:
        return self.spec.name


def _vllm(place: ServerPlace) -> Sequence[str]:
    """The module: the command `vllm` needs a package of that name, and the CPU build has another."""
    return (
        *(str(place.environment / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(place.weights), "--tokenizer", str(place.words), "--served-model-name", MODEL),
        *("--dtype", _dtype(), "--max-model-len", str(place.context), "--scheduling-policy", "priority"),
        *("--host", HOST, "--port", str(place.port), "--disable-uvicorn-access-log"),
    )


def _vllm_variants(place: ServerPlace) -> Sequence[Variant]:
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
    return Variant(f"{settings}; with priorities but no deadlines, stopped while others run", {**usual, **variables})


def _dtype() -> str:
    return "bfloat16" if set(_BFLOAT16) & set(cpu_flags()) else "float32"


def _threads() -> int:
    return len(os.sched_getaffinity(0))


SERVER_PEERS: Mapping[str, ServerPeer] = {
    peer.name: peer for peer in (ServerPeer(PEERS["vllm"], _vllm, _vllm_variants, to_vllm),)
}


_WAKE_SECONDS = 60.0
_POLL = 0.25


@dataclass(frozen=True, slots=True)
class System:
    endpoint: Endpoint
    caller: Caller
    peer: ServerProcess | None = None  # stopped while others are measured
    pid: int | None = None
    # of an ensemble that the bench started and never stops, because its supervisor would see a hang

    @property
    def name(self) -> str:
        return self.endpoint.name

    @property
    def where(self) -> str:
        return f"{self.name}: {self.endpoint.where}, {self.endpoint.model}"

    @property
    def root(self) -> int | None:
        return self.pid if self.peer is None else self.peer.pid

    def close(self) -> None:
        if self.peer is not None:
            self.peer.close()

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        if self.peer is None:
            yield
            return
        self.peer.resume()
        await self._until_it_answers(self.peer)
        yield
        self.peer.check()
        await self.caller.close()
        self.peer.pause()

    async def _until_it_answers(self, peer: ServerProcess) -> None:
        end = monotonic() + _WAKE_SECONDS
        while True:
            try:
                await self.caller.check()
                return
            except ServeMistake as mistake:
                peer.check()
                if monotonic() > end:
                    raise PeerFailed(self.name, f"not awake after {_WAKE_SECONDS:g} s: {mistake}") from mistake
            await asyncio.sleep(_POLL)


def cpu_waiting(systems: Sequence[System], asked: System) -> float | None:
    roots = {each.root for each in systems} - {asked.root}
    known = [root for root in roots if root is not None]
    try:
        return sum(map(cpu_of_tree, known)) if known else None
    except OSError:
        return None


START_SECONDS = 600.0  # the first start compiles kernels
_HEARTBEAT = 30.0

_TRIAL_CROWD, _TRIAL = 16, (64, 24)  # requests; tokens of prompt and answer


@dataclass(frozen=True, slots=True)
class PeerSite:
    peers: Path  # environments and logs
    model: "Callable[[], Checkpoint]"
    context: int  # tokens of prompt and answer
    seconds: float = START_SECONDS  # to start

    def place_for(self, peer: ServerPeer, say: Say) -> ServerPlace:
        environment = prepare(peer.spec, self.peers, say)
        from bench.peers.model_files import write_hf_directory, write_hf_tokenizer

        checkpoint, models = self.model(), self.peers / "models"
        weights, words = write_hf_directory(checkpoint, models), write_hf_tokenizer(checkpoint, models)
        return ServerPlace(environment.directory, weights, words, 0, self.context)


@dataclass(frozen=True, slots=True)
class RunningPeer:
    endpoint: Endpoint
    process: ServerProcess
    settings: str
    rate: float  # requests per second in its trial


def start_peer(peer: ServerPeer, site: PeerSite, say: Say, *, try_all: bool) -> RunningPeer:
    """The fastest variant, ready and paused. Raises PeerUnavailable, PeerFailed and errors of the model."""
    place = site.place_for(peer, say)
    variants = peer.variants(place)
    tried = enumerate(variants if try_all else variants[:1], 1)
    return keep_fastest([partial(_launch, peer, site, place, number, variant, say) for number, variant in tried], say)


def _launch(
    peer: ServerPeer, site: PeerSite, place: ServerPlace, number: int, variant: Variant, say: Say
) -> Trial[RunningPeer]:
    place = replace(place, port=free_ports(1)[0])
    log = site.peers / f"{peer.name}.serve.{number}.log"
    env = {**os.environ, **variant.variables}
    env.pop("PYTHONPATH", None)  # a peer must not find our packages
    endpoint = Endpoint("http", f"http://{HOST}:{place.port}/v1", MODEL, peer.name, peer.class_fields)
    process = ServerProcess(peer.name, peer.command(place), env, log)
    try:
        _until_ready(process, place.port, site.seconds, say)
        rate = asyncio.run(_trial(endpoint))
    except ServeMistake as mistake:
        process.close()
        raise PeerFailed(peer.name, str(mistake)) from mistake
    except BaseException:
        process.close()
        raise
    process.pause()
    line = f"{peer.name}: {rate:.3g} requests/s of a crowd of {_TRIAL_CROWD}: {variant.words}"
    return Trial(-rate, line, RunningPeer(endpoint, process, variant.words, rate), process.close)


async def _trial(endpoint: Endpoint) -> float:
    caller = caller_of(endpoint, None, PATIENT.total)
    try:
        await caller.check()
        numbers = range(_TRIAL_CROWD)
        crowds = [[Ask(number, 0.0, *_TRIAL, PATIENT, seed) for number in numbers] for seed in range(-2, 0)]
        return await capacity_of(endpoint.name, caller, crowds)
    finally:
        await caller.close()


def _until_ready(process: ServerProcess, port: int, seconds: float, say: Say) -> None:
    say(f"{process.name}: starting its server")
    start = class_fields = monotonic()
    while not _answers(port):
        process.check()
        now = monotonic()
        if now - start > seconds:
            raise PeerFailed(process.name, f"no answer within {seconds:g} s of its start")
        if now - class_fields > _HEARTBEAT:
            class_fields = now
            say(f"{process.name}: still starting, {now - start:.0f} s")
        sleep(_POLL)


def _answers(port: int) -> bool:
    with closing(HTTPConnection(HOST, port, timeout=_HEARTBEAT)) as connection:
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
