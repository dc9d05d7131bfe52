"""The systems under load: an ensemble started here, endpoints, and servers of peers; and the load on one of them."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, process_time
from typing import TYPE_CHECKING, Literal

from bench import processes
from bench.peers.environment import PEERS, VLLM_VERSION, PeerSpec, cpu_flags, peer_variables, prepare
from bench.processes import HOST, PeerFailed, ServerProcess, Trial, free_ports, keep_fastest
from bench.serving.callers import BenchCaller, BenchEndpoint, ServedAnswer, Unreachable, build_caller
from bench.serving.workload import Ask, CallerClass, ClassFields, ServeMistake, to_vllm
from bench.timing import Say, no_collector

if TYPE_CHECKING:
    from specialist.models.checkpoint import Checkpoint

_AHEAD = 0.2  # seconds before the first arrival


@dataclass(frozen=True, slots=True)
class LoadRound:
    system: str
    seconds: float  # seconds of arrivals
    lasted: float  # seconds until the last answer
    answers: tuple[ServedAnswer, ...]
    generator: float  # CPU seconds of the load generator
    load: str = ""  # empty if there is only one
    waiting: float | None = None  # CPU seconds of the other systems, if the bench started them


async def play(system: str, caller: BenchCaller, asks: Sequence[Ask], seconds: float) -> LoadRound:
    with no_collector():
        cpu, start = process_time(), perf_counter() + _AHEAD
        calls = []
        for ask in asks:
            due = start + ask.at
            while (wait := due - perf_counter()) > 0:
                await asyncio.sleep(wait)
            calls.append(asyncio.ensure_future(caller.ask(ask, due)))
        answers = await asyncio.gather(*calls)
        return LoadRound(system, seconds, perf_counter() - start, tuple(answers), process_time() - cpu)


CROWD, CROWDS = 64, 3  # requests per crowd; crowds: more than one, because the machine may be shared
PATIENT = CallerClass("crowd", 1.0, 5, 120.0, 120.0)


async def measure_capacity(system: str, caller: BenchCaller, crowds: Sequence[Sequence[Ask]]) -> float:
    """Send each crowd of requests at once. Return the median requests per second; the first crowd is a warm-up."""
    rounds = [await play(system, caller, at_once(crowd), 1.0) for crowd in crowds]
    found = median(map(compute_rate, rounds[1:]))
    if not found:
        raise ServeMistake(f"{system} answered no request of a burst, so its capacity is unknown")
    return found


def at_once(asks: Sequence[Ask]) -> list[Ask]:
    return [replace(ask, at=0.0, caller=PATIENT) for ask in asks]


def compute_rate(crowd: LoadRound) -> float:
    ends = [answer.total for answer in crowd.answers if answer.end == "answered"]
    return len(ends) / max(ends) if ends else 0.0


_POLL, _HEARTBEAT = 0.25, 30.0
_WAKE_SECONDS = 60.0


@dataclass(slots=True)
class System:
    endpoint: BenchEndpoint
    process: ServerProcess | None = None  # a peer's server, stopped while others are measured
    pid: int | None = None  # of an ensemble started here, which is never stopped: its supervisor would see a hang
    settings: str = ""
    caller: BenchCaller = field(init=False)

    @property
    def name(self) -> str:
        return self.endpoint.name

    @property
    def root(self) -> int | None:
        return self.pid if self.process is None else self.process.pid

    @asynccontextmanager
    async def calling(self, key: str | None, give_up: float) -> AsyncIterator[None]:
        self.caller = build_caller(self.endpoint, key, give_up)
        try:
            yield
        finally:
            await self.caller.close()

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        if self.process is None:
            yield
            return
        self.process.resume()
        await self.until_it_answers(self.process, _WAKE_SECONDS)
        yield
        self.process.check()
        await self.caller.close()
        self.process.pause()

    async def until_it_answers(self, process: ServerProcess, seconds: float, say: Say = lambda line: None) -> None:
        start = noted = monotonic()
        while True:
            try:
                await self.caller.check()
                return
            except Unreachable as error:
                process.check()
                now = monotonic()
                if now - start > seconds:
                    raise PeerFailed(self.name, f"no answer within {seconds:g} s: {error}") from error
            if now - noted > _HEARTBEAT:
                noted = now
                say(f"{self.name}: still starting, {now - start:.0f} s")
            await asyncio.sleep(_POLL)


def cpu_waiting(systems: Sequence[System], asked: System) -> float | None:
    roots = {each.root for each in systems} - {asked.root}
    known = [root for root in roots if root is not None]
    try:
        return sum(map(processes.cpu_of_tree, known)) if known else None
    except OSError:
        return None


NAME = "talker"
Engine = Literal["native", "sim"]


@dataclass(frozen=True, slots=True)
class OwnEnsemble:
    engine: Engine
    replicas: int
    doors: tuple[str, ...]  # http or grpc
    file: Path | None = None


@contextmanager
def start_own(own: OwnEnsemble) -> Iterator[list[System]]:
    """Start the ensemble in the file or, without a file, one with a single specialist. Yield a system for each
    endpoint. Raises SiteFailed."""
    with processes.scratch_folder() as folder:
        file, model = own.file, "octet"
        if file is None:
            file, model = folder / "ensemble.yaml", f"octet/{NAME}"
            settings = f"engine: {own.engine}\nreplicas: {own.replicas}\nstore: {{url: memory}}\n"
            file.write_text(f"{settings}specialists: {{{NAME}}}\n")
        arguments = ["serve", str(file.resolve()), "--port", "0", "--http-port", "0", "--json"]
        with processes.started("octet.cli", arguments, folder / "serve.log", ready=r"^\{.*\}") as ensemble:
            ready = json.loads(ensemble.ready[0])
            doors = {
                "http": BenchEndpoint("http", f"{ready['http']}/v1", model, "octet"),
                "grpc": BenchEndpoint("grpc", ready["address"], model, "octet grpc"),
            }
            yield [System(doors[door], pid=ensemble.pid) for door in own.doors]


MODEL = "demo"
_KV_SPACE_GIB = "3"
_KEPT_SECONDS = "600"
_BFLOAT16 = ("amx_bf16", "avx512_bf16")
START_SECONDS = 600.0  # the first start compiles kernels
_TRIAL_CROWD, _TRIAL = 16, (64, 24)  # requests; tokens of prompt and answer


@dataclass(frozen=True, slots=True)
class ServerPlace:
    peers: Path  # environments and logs
    environment: Path  # virtual environment
    weights: Path  # a Hugging Face directory in float32
    words: Path  # the directory of its tokenizer
    context: int  # tokens of prompt and answer
    port: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    words: str  # description
    variables: Mapping[str, str]  # environment variables


@dataclass(frozen=True, slots=True)
class ServerPeer:
    spec: PeerSpec  # what to install
    command: Callable[[ServerPlace], Sequence[str]]
    variants: Callable[[ServerPlace], Sequence[Variant]]  # the fastest of them is measured
    class_fields: ClassFields


def _vllm(place: ServerPlace) -> Sequence[str]:
    """Return a command that runs vLLM's server as a module. The script `vllm` does not work with the CPU build, whose
    package has another name."""
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
    threads = len(os.sched_getaffinity(0))
    all_cores = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "LD_PRELOAD": str(intel)}
    return [unasked, _vllm_variant(f"{threads} threads of Intel's OpenMP", all_cores)]


def _vllm_variant(words: str, variables: Mapping[str, str]) -> Variant:
    usual = {
        "VLLM_CPU_KVCACHE_SPACE": _KV_SPACE_GIB,
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": _KEPT_SECONDS,  # a connection that ends while in use would be a failure
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    settings = f"vLLM {VLLM_VERSION} for CPU, its OpenAI server, the same weights in {_dtype()}, {words}"
    return Variant(f"{settings}; with priorities but no deadlines, stopped while others run", {**usual, **variables})


def _dtype() -> str:
    return "bfloat16" if set(_BFLOAT16) & set(cpu_flags()) else "float32"


SERVER_PEERS: Mapping[str, ServerPeer] = {"vllm": ServerPeer(PEERS["vllm"], _vllm, _vllm_variants, to_vllm)}


def prepare_place(
    peer: ServerPeer, peers: Path, model: "Callable[[], Checkpoint]", context: int, say: Say
) -> ServerPlace:
    environment = prepare(peer.spec, peers, say)
    from bench.peers.model_files import write_hf_directory, write_hf_tokenizer

    checkpoint, models = model(), peers / "models"
    weights, words = write_hf_directory(checkpoint, models), write_hf_tokenizer(checkpoint, models)
    return ServerPlace(peers, environment.directory, weights, words, context)


def start_server(
    peer: ServerPeer, place: ServerPlace, say: Say, *, try_all: bool, seconds: float = START_SECONDS
) -> System:
    """Start the variants, and return the fastest, ready and paused. Raises PeerFailed if no variant starts."""
    variants = peer.variants(place)
    tried = enumerate(variants if try_all else variants[:1], 1)
    return keep_fastest(
        [partial(_launch, peer, place, number, variant, seconds, say) for number, variant in tried], say
    )


def _launch(
    peer: ServerPeer, place: ServerPlace, number: int, variant: Variant, seconds: float, say: Say
) -> Trial[System]:
    name, place = peer.spec.name, replace(place, port=free_ports(1)[0])
    endpoint = BenchEndpoint("http", f"http://{HOST}:{place.port}/v1", MODEL, name, peer.class_fields)
    log = place.peers / f"{name}.serve.{number}.log"
    process = ServerProcess(name, peer.command(place), peer_variables(variant.variables), log)
    system = System(endpoint, process, settings=variant.words)
    try:
        say(f"{name}: starting its server")
        rate = asyncio.run(_trial(system, process, seconds, say))
    except ServeMistake as mistake:
        process.close()
        raise PeerFailed(name, str(mistake)) from mistake
    except BaseException:
        process.close()
        raise
    process.pause()
    line = f"{name}: {rate:.3g} requests/s of a crowd of {_TRIAL_CROWD}: {variant.words}"
    return Trial(-rate, line, system, process.close)


async def _trial(system: System, process: ServerProcess, seconds: float, say: Say) -> float:
    async with system.calling(None, PATIENT.total):
        await system.until_it_answers(process, seconds, say)
        numbers = range(_TRIAL_CROWD)
        crowds = [[Ask(number, 0.0, *_TRIAL, PATIENT, seed) for number in numbers] for seed in range(-2, 0)]
        return await measure_capacity(system.name, system.caller, crowds)
