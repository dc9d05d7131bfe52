"""Whether the C++ in an answer compiles."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from router.verify.compiler import NEXT_STANDARD, STANDARD, Compiler
from router.verify.cpp_error import Complaint, complaint_in, is_about_memory, is_about_precompiled
from router.verify.cpp_text import looks_like_cpp
from router.verify.cpp_units import Form, Unit, forms_of, in_context, joined, units_of
from router.verify.preamble import Preamble
from router.verify.sandbox import Ended, Limits, Sandbox
from router.verify.verdict import Outcome, Verdict, one_line

_log = logging.getLogger(__name__)
_MOST_RUNS = 16
"""Of the compiler, for one answer."""
_TRY_AGAIN_SECONDS = 60.0
_PROOF = "int main() { std::vector<std::string> words{std::string()}; return static_cast<int>(words.size()); }\n"
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
        if len(answer.encode("utf-8", "replace")) > self._answer_bytes:
            return _Finding("skipped", f"longer than {self._answer_bytes} bytes")
        units = await asyncio.to_thread(units_of, question, answer)
        if not units:
            return _Finding("failed" if self._is_code_required else "skipped", "there is no C++ in it")
        await self._get_ready()
        bench = _Bench(self._compiler, self._sandbox, self._preamble, self._cpu_seconds, self._clock_seconds)
        try:
            return await _judged_together(bench, units)
        except _TooMuch as much:
            return _Finding("failed", str(much))

    async def _get_ready(self) -> None:
        if self._is_ready:
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
        self, compiler: Compiler, sandbox: Sandbox, preamble: Preamble, cpu_seconds: float, clock_seconds: float
    ) -> None:
        self._compiler = compiler
        self._sandbox = sandbox
        self._preamble = preamble
        self._cpu_seconds = cpu_seconds
        self._cpu_left = cpu_seconds
        self._clock_seconds = clock_seconds
        self._end = time.monotonic() + clock_seconds
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
        limits = Limits(max(1.0, self._cpu_left), max(1.0, self._end - time.monotonic()))
        ended = await self._sandbox.run(caged, form.text.encode("utf-8", "replace"), limits)
        self._cpu_left -= ended.cpu
        return self._read(ended, form.text)

    def _read(self, ended: Ended, text: str) -> Complaint | None:
        if ended.fate == "trouble":
            raise _Unjudged(ended.said)
        if ended.fate == "out_of_time":
            raise _Unjudged(f"not compiled within {self._clock_seconds:g} s by the clock: the machine is busy")
        if ended.fate == "out_of_cpu" or self._cpu_left <= 0:
            raise _TooMuch(f"compiling it takes more than {self._cpu_seconds:g} s of CPU")
        if is_about_precompiled(ended.said):
            self._preamble.distrust()
            raise _Unjudged("the headers compiled beforehand are out of date: they will be compiled anew")
        if ended.fate == "exited" and ended.code == 0:
            return None
        complaint = complaint_in(ended.said, text)
        if complaint is not None:
            return complaint
        if is_about_memory(ended.said):
            raise _TooMuch("compiling it takes too much memory")
        return Complaint("wrong", "the compiler gave up on it")


async def _judged_together(bench: _Bench, units: Sequence[Unit]) -> _Finding:
    if len(units) > 1 and await bench.complaint(joined(units)) is None:
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
    if complaint is not None and complaint.is_of_context and unit.context and bench.may_go_on:
        leaning = await bench.complaint(in_context(unit))
        complaint = None if leaning is None else _nearer(complaint, leaning)
    if complaint is None:
        return _Finding("passed")
    excuse = _excuse(unit, complaint, wraps=wraps)
    return _Finding("skipped", f"{excuse}: {complaint.text}") if excuse else _Finding("failed", complaint.text)


async def _first_complaint(bench: _Bench, unit: Unit) -> tuple[Complaint | None, bool]:
    """None as soon as one form compiles; otherwise what was said first, but for names that a later form may know."""
    said: tuple[Complaint, bool] | None = None
    for form in forms_of(unit):
        if not bench.may_go_on:
            break
        complaint = await bench.complaint(form)
        if complaint is not None and complaint.fault == "newer":
            complaint = await bench.complaint(form, standard=NEXT_STANDARD)
        if complaint is not None and complaint.fault == "clash" and "#" in unit.code:
            complaint = await bench.complaint(form, bare=True)
        if complaint is None:
            return None, form.wraps
        if said is None or (said[0].fault == "undeclared" and not said[1]):
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
