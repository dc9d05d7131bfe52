"""The law of every parser: invalid input is refused with a typed error, quickly, and with little memory."""

import gc
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.fuzz.mutate import mutated
from tests.fuzz.parser import Parser

MOST_MEMORY = 512 << 20
"""Bytes that a parser's inputs may add to the peak memory."""
_HANGS = 5
"""An input is abandoned after this multiple of the parser's time limit."""


class LawBroken(AssertionError):
    """A parser violated the law of this module. The message names the parser and the seed."""


class _Hangs(BaseException):
    """Raised when a parser hangs. It is not an Exception, so that no parser can swallow it."""


def check(parser: Parser, seeds: range) -> int:
    """Check the parser with the input of each seed. Return how many inputs were refused. Raises LawBroken for the first
    input that breaks the law."""
    check_valid(parser, "before anything else")
    _reset_peak()
    before = _peak()
    refused = 0
    for seed in seeds:
        refused += not judge(parser, mutated(parser, seed), f"seed {seed}")
        if _peak() - before > MOST_MEMORY:
            raise LawBroken(f"{parser.name}, seed {seed}: the process grew by more than {MOST_MEMORY >> 20} MiB")
    check_valid(parser, f"after {len(seeds)} inputs")
    gc.collect()
    return refused


def check_valid(parser: Parser, when: str) -> None:
    for index, raw in enumerate(parser.seeds):
        if not judge(parser, raw, f"valid input {index}, {when}"):
            raise LawBroken(f"{parser.name}: valid input {index} is refused {when}: {_why(parser, raw)}")


def judge(parser: Parser, raw: bytes, what: str) -> bool:
    """Return whether the parser accepted the input. Raises LawBroken if the parser broke the law."""
    began = time.process_time()
    try:
        with _given_up(parser.cpu_seconds * _HANGS):
            parser.parse(raw)
        accepted = True
    except parser.refuses:
        accepted = False
    except _Hangs:
        raise LawBroken(f"{parser.name}, {what}: hangs with {abridge(raw)}") from None
    except Exception as error:
        raise LawBroken(f"{parser.name}, {what}: {type(error).__name__}: {error!s:.200} from {abridge(raw)}") from error
    took = time.process_time() - began
    if took > parser.cpu_seconds:
        raise LawBroken(f"{parser.name}, {what}: {took:.2f} s of CPU time for {abridge(raw)}")
    return accepted


def abridge(raw: bytes) -> str:
    return repr(raw) if len(raw) <= 300 else f"{raw[:200]!r}... {raw[-60:]!r} ({len(raw):,} bytes)"


def _why(parser: Parser, raw: bytes) -> str:
    try:
        parser.parse(raw)
    except parser.refuses as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    return "no more, when asked again"


def _reset_peak() -> None:
    """Lower the peak to the memory in use. Otherwise, memory that was used before and freed would hide the growth."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


@contextmanager
def _given_up(seconds: float) -> Iterator[None]:
    """Raise _Hangs when the block has used this much CPU time. Wall time would also include the time of other
    processes."""
    usual: Callable[[int, FrameType | None], object] | int | None = signal.signal(signal.SIGPROF, _hangs)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, usual)


def _hangs(_signal: int, _frame: FrameType | None) -> None:
    raise _Hangs
