"""A sandboxed program cannot read, write or reach anything outside, and does not outlive its sandbox. In these tests a
probe that tries every access runs in place of the compiler."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from router.verify import sandbox_child
from router.verify.pool import VerifierPool
from router.verify.sandbox import (
    Sandbox,
    SandboxedProgram,
    SandboxLimits,
    SandboxMode,
    SandboxResult,
    outermost_paths,
    sandbox_mode,
    shared_libraries,
)
from tests.patience import PATIENCE
from tests.router.verify.conftest import MODES, found, run

SOURCE = Path(__file__).with_name("probe.cpp")
LIMITS = SandboxLimits(cpu=5, seconds=120, memory=1 << 30)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Yield a folder that every user may read, so that only the sandbox keeps the probe out."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def probe(folder: Path) -> str:
    program = folder / "probe"
    subprocess.run([found("g++"), "-O0", "-w", SOURCE, "-o", program], check=True)
    return str(program)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> SandboxMode:
    return request.param  # type: ignore[no-any-return]


def caged(program: list[str], **more: object) -> SandboxedProgram:
    return SandboxedProgram(program, [program[0], *shared_libraries(program[0])], **more)  # type: ignore[arg-type]


def ended(
    mode: SandboxMode, what: SandboxedProgram, given: bytes = b"", limits: SandboxLimits = LIMITS
) -> SandboxResult:
    return run(Sandbox(mode, VerifierPool()).run(what, given, limits))


def test_nothing_outside_can_be_read_written_or_reached(mode: SandboxMode, probe: str, folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o666)
    paths = [str(secret), "/etc/passwd", "/etc/hostname", "/proc/self/environ", "/proc/1/root", "/dev/zero", "/sys"]
    paths += [str(Path(__file__)), str(Path.home()), "/", "/var", "/dev/null"]
    result = ended(mode, caged([probe, str(os.getpid()), ":".join(paths)]))
    assert result.ending == "exited" and result.code == 0, result
    said = dict(line.partition("=")[::2] for line in result.output.splitlines() if "=" in line)
    allowed = {what for what, how in said.items() if how == "done"}
    # In the mode `namespaces`, the probe sees an empty root and its own private folder.
    assert allowed == ({"read /", "file here"} if mode == "namespaces" else set())
    assert secret.read_text() == "secret"
    lines = result.output.splitlines()
    assert "nice 19" in lines
    assert not [line for line in lines if line.startswith(("environment", "open"))]
    assert len(said) > 2 * len(paths) + 12
    if os.geteuid() == 0 and mode == "namespaces":
        assert "uid 0" not in lines


def test_a_listening_socket_outside_is_out_of_reach(mode: SandboxMode, probe: str) -> None:
    """As a control, the test first connects to the listener from outside the sandbox."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        result = ended(mode, caged([probe, str(os.getpid()), "/"]))
    assert "socket 2 =Operation not permitted" in result.output


def test_visible_files_cannot_be_written(mode: SandboxMode, folder: Path) -> None:
    program = shutil.which("touch")
    assert program is not None
    shown = folder / "shown"
    shown.mkdir(exist_ok=True)
    shown.chmod(0o777)
    what = caged([program, str(shown / "new")])
    result = ended(mode, SandboxedProgram(what.command, [*what.readable, str(shown)]))
    assert result.code != 0
    assert list(shown.iterdir()) == []


def test_a_folder_can_be_made_writable(mode: SandboxMode, folder: Path) -> None:
    program = shutil.which("touch")
    assert program is not None
    given = folder / f"given-{mode}"
    given.mkdir()
    given.chmod(0o777)
    inside = Sandbox(mode, VerifierPool()).output_path(str(given))
    result = ended(mode, caged([program, f"{inside}/new"], writable=str(given)))
    # `touch` creates the file, then tries to set its time, which is not permitted.
    assert [path.name for path in given.iterdir()] == ["new"], result


@pytest.mark.parametrize(
    ("script", "fate"), [("while :; do :; done", "out_of_cpu"), ("while :; do echo flood >&2; done", "flood")]
)
def test_a_program_over_its_limits_is_ended(mode: SandboxMode, script: str, fate: str) -> None:
    result = ended(mode, caged(["/bin/sh", "-c", script]), limits=SandboxLimits(cpu=1, seconds=120))
    assert result.ending == fate
    assert len(result.output) <= 1 << 16


def test_the_time_limit_ends_a_waiting_program(mode: SandboxMode) -> None:
    program = shutil.which("sleep")
    assert program is not None
    result = ended(mode, caged([program, "1000"]), limits=SandboxLimits(cpu=1, seconds=0.5))
    assert result.ending == "out_of_time"


def test_file_size_is_limited(folder: Path) -> None:
    program = shutil.which("dd")
    assert program is not None
    command = [program, "of=big", "bs=1M", "count=8", "iflag=fullblock"]
    result = ended("namespaces", caged(command), given=b"\0" * (8 << 20), limits=SandboxLimits(5, 120, file=1 << 20))
    assert result.code != 0


def test_a_cancelled_sandbox_leaves_no_process_and_no_file(
    mode: SandboxMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test process adopts orphaned processes, so it would find any process that is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandbox_child.libc.prctl(36, 1, 0, 0, 0)
    program = shutil.which("sleep")
    assert program is not None
    others = set(_offspring())  # These are processes of other tests, such as a database.

    async def cancelled() -> None:
        task = asyncio.ensure_future(
            Sandbox(mode, VerifierPool()).run(caged([program, "1000"]), b"", SandboxLimits(5, 600))
        )
        while not any("sleep" in _command(child) for child in set(_offspring()) - others):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        run(cancelled())
        _poll(lambda: not set(_offspring()) - others)
    finally:
        sandbox_child.libc.prctl(36, 0, 0, 0, 0)
    assert not list(tmp_path.iterdir())


def test_the_sandbox_does_not_outlive_its_parent(mode: SandboxMode) -> None:
    program, length = shutil.which("sleep"), f"{100 + MODES.index(mode)}.{os.getpid()}"
    script = (
        "import asyncio; from router.verify.sandbox import *; from router.verify.pool import VerifierPool\n"
        f"caged = SandboxedProgram([{program!r}, {length!r}], [{program!r}, *shared_libraries({program!r})])\n"
        f"asyncio.run(Sandbox({mode!r}, VerifierPool()).run(caged, b'', SandboxLimits(5, 600)))\n"
    )

    def sleeps() -> bool:
        return any(_command(pid) == f"{program} {length}" for pid in _all_pids())

    started = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[3])
    _poll(sleeps)
    started.send_signal(signal.SIGKILL)
    started.wait()
    _poll(lambda: not sleeps())


def test_the_stronger_mode_is_chosen() -> None:
    assert sandbox_mode() == ("namespaces", "")
    assert sandbox_child.landlock_version(sandbox_child.libc) > 0


def test_the_sandbox_needs_no_root(probe: str) -> None:
    """Through a user namespace, a user without privileges gets the same sandbox."""
    python = shutil.which("python3", path="/usr/bin") if os.geteuid() == 0 else sys.executable
    if python is None:
        pytest.skip("no Python that users other than root can run")
    script = (
        "import asyncio; from router.verify.sandbox import *; from router.verify.pool import VerifierPool\n"
        f"files = [{probe!r}, *shared_libraries({probe!r})]\n"
        f"caged = SandboxedProgram([{probe!r}, '1', '/etc/passwd:/proc/self/environ'], files)\n"
        "ended = asyncio.run(Sandbox('namespaces', VerifierPool()).run(caged, b'', SandboxLimits(5, 120, 1 << 30)))\n"
        "print(ended.ending, ended.code); print(ended.output)\n"
    )
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [python, "-B", "-c", script], cwd="/", env={"PYTHONPATH": root}, capture_output=True, text=True, **nobody
    )  # type: ignore[call-overload]
    lines = done.stdout.splitlines()
    assert lines[:1] == ["exited 0"], (done.stdout, done.stderr)
    assert [line for line in lines if line.endswith("=done")] == ["file here=done"]


def test_only_the_outermost_paths_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "ab").mkdir()
    names = [str(tmp_path / name) for name in ("a/b", "a", "ab", "a/../a", "none")]
    assert outermost_paths(names) == [str(tmp_path / "a"), str(tmp_path / "ab")]


def _offspring() -> list[int]:
    """Return the live descendants of this process. An orphan that has ended is a zombie: nothing here reaps it."""
    found_now: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {child for parent in new for child in _children(parent)} - found_now
        found_now |= new
    return sorted(pid for pid in found_now if not _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def _poll(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
