"""Whether the C++ in an answer compiles."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.verify.compiler import NEXT_STANDARD, STANDARD, Compiler
from router.verify.cpp_error import Complaint, complaint_in, is_about_memory, is_about_precompiled
from router.verify.cpp_text import looks_like_cpp
from router.verify.cpp_units import Form, Unit, forms_of, in_context, joined, units_of
from router.verify.preamble import Preamble
from router.verify.sandbox import Ended, Limits, Sandbox
from router.verify.verdict import Outcome, Verdict, one_line, too_long

_log = logging.getLogger(__name__)
_MOST_RUNS = 16
"""Of the compiler, for one answer."""
_TRY_AGAIN_SECONDS = 60.0
_PROOF = "int main() { std::vector<std::string> words{std::string()}; return static_cast<int>(words.size()); }\n"
_NAMELESS = "".join(f'#define {name} "<stdin>"\n' for name in ("__FILE__", "__FILE_NAME__"))
"""An answer is not told what its own file is called."""
_NO_PROOF = "int main() { return undeclared; }\n"


@dataclass(frozen=True, slots=True)
class _Finding:
    outcome: Outcome
    why: str = ""


class _Unjudged(Exception):
    """Nobody can tell, for no fault of the answer's."""


class _TooMuch(Exception):
    """The answer takes more than it may."""


class CppVerifier:
    def __init__(
        self,
        name: str,
        compiler: Compiler,
        sandbox: Sandbox,
        cache: Path,
        *,
        cpu_seconds: float,
        clock_seconds: float,
        answer_bytes: int,
        is_code_required: bool = False,
    ) -> None:
        self.name = name
        self._compiler = compiler
        self._sandbox = sandbox
        self._preamble = Preamble(compiler, cache)
        self._cpu_seconds = cpu_seconds
        self._clock_seconds = clock_seconds
        self._answer_bytes = answer_bytes
        self._is_code_required = is_code_required
        self._turn = asyncio.Lock()
        self._is_ready = False
        self._trouble = ""
        self._try_again = 0.0

    async def verify(self, question: str, answer: str) -> Verdict:
        async with self._turn:
            started = time.monotonic()
            try:
                finding = await self._judged(question, answer)
            except _Unjudged as unjudged:
                finding = _Finding("unavailable", str(unjudged))
            except Exception as error:  # whatever it is, it is not the answer's fault
                _log.exception("a C++ answer could not be judged")
                finding = _Finding("unavailable", f"{type(error).__name__}: {error}")
            return Verdict(finding.outcome, one_line(finding.why), time.monotonic() - started)

    async def close(self) -> None:
        """Nothing runs between two answers."""

    async def _judged(self, question: str, answer: str) -> _Finding:
        if why := too_long(answer, self._answer_bytes):
            return _Finding("skipped", why)
        units = await asyncio.to_thread(units_of, question, answer)
        if not units:
            return _Finding("failed" if self._is_code_required else "skipped", "there is no C++ in it")
        await self._get_ready()
        limits = Limits(self._cpu_seconds, self._clock_seconds)
        bench = _Bench(self._compiler, self._sandbox, self._preamble, limits, self._still_works)
        try:
            return await _judged_together(bench, units)
        except _TooMuch as much:
            return _Finding("failed", str(much))

    async def _get_ready(self) -> None:
        if self._is_ready and not self._preamble.is_lost:
            return
        if self._trouble and time.monotonic() < self._try_again:
            raise _Unjudged(self._trouble)
        self._trouble = await self._prepared()
        if self._trouble:
            self._try_again = time.monotonic() + _TRY_AGAIN_SECONDS
            _log.error("C++ answers cannot be judged: %s", self._trouble)
            raise _Unjudged(self._trouble)
        self._is_ready = True

    async def _prepared(self) -> str:
        """Empty, or what is in the way: the compiler must accept what is right and refuse what is wrong."""
        try:
            await self._preamble.prepare(self._sandbox)
        except OSError as error:
            return f"no folder for the compiled headers: {error}"
        trouble = await self._proven()
        if trouble and self._preamble.is_precompiled:
            self._preamble.distrust()
            trouble = await self._proven()
        return trouble

    async def _still_works(self) -> bool:
        """Found by doing, whatever it looks like; if not, everything is made anew for the next answer."""
        if not await self._proven():
            return True
        self._preamble.distrust()
        self._is_ready = False
        return False

    async def _proven(self) -> str:
        limits = Limits(max(30.0, self._cpu_seconds), 90.0)
        caged = self._compiler.check(STANDARD, self._preamble.header, is_precompiled=self._preamble.is_precompiled)
        accepted = await self._sandbox.run(caged, _PROOF.encode(), limits)
        refused = await self._sandbox.run(caged, _NO_PROOF.encode(), limits)
        if accepted.fate == "exited" and accepted.code == 0 and complaint_in(refused.said, "") is not None:
            return ""
        return f"{self._compiler.version} does not work in the sandbox: {accepted.said.strip() or accepted}"


class _Bench:
    """Compiles for one answer, which has so much CPU and so many runs in all."""

    def __init__(
        self,
        compiler: Compiler,
        sandbox: Sandbox,
        preamble: Preamble,
        limits: Limits,
        still_works: Callable[[], Awaitable[bool]],
    ) -> None:
        self._compiler = compiler
        self._sandbox = sandbox
        self._preamble = preamble
        self._limits = limits
        self._still_works = still_works
        self._is_proven = False
        self._cpu_left = limits.cpu
        self._clock_left = limits.seconds
        """Waiting for a turn costs nothing."""
        self._num_runs = 0

    @property
    def may_go_on(self) -> bool:
        return self._num_runs < _MOST_RUNS

    async def complaint(self, form: Form, *, standard: str = STANDARD, bare: bool = False) -> Complaint | None:
        """None where it compiles. Raises _TooMuch and _Unjudged."""
        self._num_runs += 1
        is_precompiled = self._preamble.is_precompiled and standard == STANDARD
        header = None if bare else self._preamble.header
        caged = self._compiler.check(standard, header, is_precompiled=is_precompiled)
        limits = Limits(max(1.0, self._cpu_left), max(1.0, self._clock_left))
        ended = await self._sandbox.run(caged, f"{_NAMELESS}{form.text}".encode("utf-8", "replace"), limits)
        self._cpu_left -= ended.cpu
        self._clock_left -= ended.seconds
        self._check(ended)
        if ended.fate == "exited" and ended.code == 0:
            return None
        if is_precompiled and not bare:
            await self._suspect(ended.said)
        return self._read(ended.said, form.text)

    def _check(self, ended: Ended) -> None:
        if ended.fate == "trouble":
            raise _Unjudged(ended.said)
        if ended.fate == "out_of_time":
            raise _Unjudged(f"not compiled within {self._limits.seconds:g} s by the clock: the machine is busy")
        if ended.fate == "out_of_cpu" or self._cpu_left <= 0:
            raise _TooMuch(f"compiling it takes more than {self._limits.cpu:g} s of CPU")

    async def _suspect(self, said: str) -> None:
        """What is said may be the answer's own words: once for each answer it is tried whether the headers are fine."""
        if self._is_proven or (complaint_in(said, "") is not None and not is_about_precompiled(said)):
            return
        self._is_proven = True
        if not await self._still_works():
            raise _Unjudged("the headers compiled beforehand are of no use any more: they will be compiled anew")

    def _read(self, said: str, text: str) -> Complaint:
        complaint = complaint_in(said, text)
        if complaint is not None:
            return complaint
        if is_about_memory(said):
            raise _TooMuch("compiling it takes too much memory")
        return Complaint("wrong", "the compiler gave up on it")


async def _judged_together(bench: _Bench, units: Sequence[Unit]) -> _Finding:
    if len(units) > 1:
        for form in joined(units):
            if await bench.complaint(form) is None:
                return _Finding("passed")
    findings = [await _judged_alone(bench, unit) for unit in units]
    for outcome in ("failed", "passed"):
        for finding in findings:
            if finding.outcome == outcome:
                return finding
    return findings[0]


async def _judged_alone(bench: _Bench, unit: Unit) -> _Finding:
    if unit.needs_modules:
        return _Finding("skipped", "C++ modules are not judged")
    complaint, wraps = await _first_complaint(bench, unit)
    if complaint is not None and complaint.is_of_context and unit.context:
        complaint = await _complaint_in_context(bench, unit, complaint)
    if complaint is None:
        return _Finding("passed")
    excuse = _excuse(unit, complaint, wraps=wraps)
    return _Finding("skipped", f"{excuse}: {complaint.text}") if excuse else _Finding("failed", complaint.text)


async def _complaint_in_context(bench: _Bench, unit: Unit, alone: Complaint) -> Complaint | None:
    complaint = alone
    for form in in_context(unit):
        if not bench.may_go_on:
            break
        leaning = await bench.complaint(form)
        if leaning is None:
            return None
        complaint = _nearer(complaint, leaning)
    return complaint


async def _first_complaint(bench: _Bench, unit: Unit) -> tuple[Complaint | None, bool]:
    """None as soon as one form compiles; otherwise what was said first, but for names that a later form may know."""
    said: tuple[Complaint, bool] | None = None
    for form in forms_of(unit):
        if not bench.may_go_on:
            break
        complaint = await bench.complaint(form)
        if complaint is not None and complaint.hints_at_newer:
            complaint = await bench.complaint(form, standard=NEXT_STANDARD)
        if complaint is not None and complaint.fault == "clash" and "#" in unit.code:
            complaint = await bench.complaint(form, bare=True)
        if complaint is None:
            return None, form.wraps
        if said is None or (said[0].fault == complaint.fault == "undeclared" and not said[1]):
            said = complaint, form.wraps
        if complaint.fault == "header" or (complaint.fault == "wrong" and not form.wraps):
            break
    return said or (Complaint("wrong", "the compiler was asked too often"), False)


def _nearer(alone: Complaint, leaning: Complaint) -> Complaint:
    """With its context there, what is still wrong counts, unless it is the context itself that clashes."""
    return alone if leaning.fault == "clash" or "line" not in leaning.text else leaning


def _excuse(unit: Unit, complaint: Complaint, *, wraps: bool) -> str:
    """Why it cannot be held against the answer; empty where it can."""
    if unit.is_expendable:
        return "its author calls it wrong"
    if complaint.fault == "header":
        return "it needs a header that is not here"
    if complaint.fault == "newer":
        return "it needs a later standard than the compiler knows"
    if complaint.fault == "undeclared" and not unit.is_whole:
        if wraps and looks_like_cpp(unit.code):
            return "a fragment that leans on names from elsewhere"
        if complaint.name and complaint.name in unit.context:
            return "it leans on names of the question"
    return ""
