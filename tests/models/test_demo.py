"""The demo model is served only if it is exactly the published one, and a single process prepares it."""

import io
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from specialist.models.demo import SMOLLM2, ModelSource, cache_directory, demo_model
from specialist.models.fields import ModelRefused
from specialist.models.progress import bar

CONTENT = bytes(range(256)) * 8192


def wheel_of(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("pkg/model.gguf"), content)
    return packed.getvalue()


WHEEL = wheel_of(CONTENT)
SMALL = ModelSource(
    requirement="octet-no-such-project==0.0.1",
    wheel="pkg-0.0.1-py3-none-any.whl",
    wheel_bytes=len(WHEEL),
    wheel_sha256=sha256(WHEEL).hexdigest(),
    member="pkg/model.gguf",
    model="model.gguf",
    num_bytes=len(CONTENT),
    sha256=sha256(CONTENT).hexdigest(),
)


def drop(cache: Path, wheel: bytes = WHEEL) -> None:
    cache.mkdir(exist_ok=True)
    (cache / SMALL.wheel).write_bytes(wheel)


def test_a_wheel_dropped_in_is_enough(tmp_path: Path) -> None:
    drop(tmp_path)
    model = demo_model(tmp_path, source=SMALL)
    assert model.read_bytes() == CONTENT
    assert not list(tmp_path.glob(".preparing-*"))


def test_a_whole_file_is_used_again_and_a_damaged_one_made_anew(tmp_path: Path) -> None:
    drop(tmp_path)
    made = demo_model(tmp_path, source=SMALL).stat().st_ino
    assert demo_model(tmp_path, source=SMALL).stat().st_ino == made
    for damage in (CONTENT[:-1], CONTENT[:-1] + b"\0", b""):
        (tmp_path / SMALL.model).write_bytes(damage)
        assert demo_model(tmp_path, source=SMALL).read_bytes() == CONTENT


@pytest.mark.parametrize("wheel", [WHEEL[:-1], wheel_of(CONTENT[:-1] + b"\0"), b""], ids=["cut", "other", "empty"])
def test_another_wheel_is_refused(tmp_path: Path, wheel: bytes) -> None:
    drop(tmp_path, wheel)
    with pytest.raises(ModelRefused, match="sha256"):
        demo_model(tmp_path, source=SMALL)
    assert not (tmp_path / SMALL.model).exists()


def test_another_model_in_the_right_wheel_is_refused(tmp_path: Path) -> None:
    wheel = wheel_of(CONTENT + b"more")
    drop(tmp_path, wheel)
    source = SMALL._replace(wheel_sha256=sha256(wheel).hexdigest(), sha256="0" * 64)
    with pytest.raises(ModelRefused, match="sha256"):
        demo_model(tmp_path, source=source)
    assert not (tmp_path / SMALL.model).exists()


def test_without_network_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelRefused, match=rf"put {SMALL.wheel} .* into {tmp_path}"):
        demo_model(tmp_path, source=SMALL)


PREPARE = """
import sys
from pathlib import Path
from specialist.models.demo import demo_model
from tests.models.test_demo import SMALL
print(demo_model(Path(sys.argv[1]), source=SMALL).stat().st_ino)
"""


def test_of_two_concurrent_processes_one_prepares_the_model(tmp_path: Path) -> None:
    drop(tmp_path)
    command = [sys.executable, "-c", PREPARE, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    inodes = {process.communicate()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(inodes) == 1
    assert (tmp_path / SMALL.model).read_bytes() == CONTENT


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTET_CACHE", "/some/where")
    assert cache_directory() == Path("/some/where")
    monkeypatch.delenv("OCTET_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_directory() == Path("/home/somebody/.cache/octet")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "ends"), [(Terminal(), "] 100 %\n"), (io.StringIO(), "task: done\n")])
def test_progress_ends_at_the_end(stream: io.StringIO, ends: str) -> None:
    say = bar(stream)
    for done in range(0, 1001):
        say("task", done, 1000)
    assert stream.getvalue().endswith(ends)
    assert stream.getvalue().count("\n") == (1 if stream.isatty() else 2)


def test_the_published_model_is_served_from_the_cache(demo_gguf: Path) -> None:
    assert demo_gguf.stat().st_size == SMOLLM2.num_bytes
