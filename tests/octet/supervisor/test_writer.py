"""Writing without waiting for the reader."""

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.supervisor.console import NonBlockingWriter

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        os.close(fd)


def read_all(reading: int, outlet: NonBlockingWriter) -> str:
    os.set_blocking(reading, False)
    received = b""
    while True:
        outlet.flush()
        try:
            received += os.read(reading, 1 << 16)
        except BlockingIOError:
            return received.decode()


def test_writer_never_waits_for_its_reader(pipe: Pipe) -> None:
    reading, writing = pipe
    outlet = NonBlockingWriter(writing)
    lines = [f"{number} {'x' * 100}\n" for number in range(5_000)]
    assert all(map(outlet.write, lines))
    assert [outlet.is_waiting, read_all(reading, outlet), outlet.is_waiting] == [True, "".join(lines), False]
    assert os.get_blocking(writing), "the descriptor must stay blocking for other writers"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 2000))
def test_excess_output_is_dropped_in_whole_lines_and_counted(sizes: list[int], most: int) -> None:
    reading, writing = os.pipe()
    outlet = NonBlockingWriter(writing, most)
    while os.write(writing, b"." * 4096) and _has_room(writing):
        continue
    lines = [f"{number}:{'x' * size}\n" for number, size in enumerate(sizes)]
    kept = [line for line in lines if outlet.write(line)]
    received = read_all(reading, outlet).lstrip(".")
    lost = len(lines) - len(kept)
    note = f"... {lost} lines lost: the reader was too slow\n" if lost else ""
    assert received == "".join(kept) + note
    assert len("".join(kept)) <= max(most, len(lines[0]))
    for fd in (reading, writing, outlet.fd):
        os.close(fd)


def _has_room(writing: int) -> bool:
    return bool(select.select([], [writing], [], 0)[1])


def test_closed_reader_is_ignored() -> None:
    reading, writing = os.pipe()
    outlet = NonBlockingWriter(writing)
    os.close(reading)
    assert outlet.write("unread\n") and not outlet.is_waiting
    outlet.finish()
    os.close(writing)


def test_file_output_is_appended(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        file.write("before\n")
        file.flush()
        outlet = NonBlockingWriter(file.fileno())
        assert outlet.write("between\n") and not outlet.is_waiting
        file.write("after\n")
    assert (tmp_path / "log").read_text() == "before\nbetween\nafter\n"


def test_finish_waits_a_limited_time(pipe: Pipe) -> None:
    outlet = NonBlockingWriter(pipe[1])
    outlet.write("x" * (1 << 19))
    outlet.finish()
    assert outlet.is_waiting
