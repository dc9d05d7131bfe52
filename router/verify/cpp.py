"""Verifier for C++ answers: checks whether the code compiles, and classifies the compiler's errors."""

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from router.verify.cpp_compiler import NEWER_HEADERS, NEXT_STANDARD, STANDARD, CppCompiler, PrecompiledHeaders
from router.verify.cpp_source import (
    ANSWER_FILE,
    NOT_CODE,
    CppForm,
    CppUnit,
    extract_units,
    forms_in_context,
    forms_joined,
    forms_of_unit,
    looks_like_cpp,
    mask_literals,
)
from router.verify.sandbox import Sandbox, SandboxLimits
from router.verify.verdict import Verdict, VerifierLimits, length_error, one_line

_log = logging.getLogger(__name__)
_MOST_RUNS = 16  # the maximum number of compiler runs for one answer
_RETRY_SECONDS = 60.0  # the pause after the compiler failed its self-test
_VALID_PROGRAM = (
    "int main() { std::vector<std::string> words{std::string()}; return static_cast<int>(words.size()); }\n"
)
_INVALID_PROGRAM = "int main() { return undeclared; }\n"
_HIDE_FILE_NAME = "".join(f'#define {name} "<stdin>"\n' for name in ("__FILE__", "__FILE_NAME__"))
"""The answer must not know the name of its own file."""

ErrorKind = Literal["wrong", "undeclared", "header", "clash", "newer"]
"""wrong: the answer's own error. undeclared: a name that may be defined elsewhere. header: a header that is not
installed. clash: perhaps a conflict with a header that the answer did not ask for. newer: a later standard's name."""

_LINE_SPLICE = re.compile(r"\\[ \t]*\n")
_HASH = r"^[ \t\v\f]*(?:\#|%:)[ \t\v\f]*"
_ERROR_DIRECTIVE = re.compile(rf"{_HASH}error\b(?P<words>[^\n]*)", re.MULTILINE)
_PRAGMA = re.compile(r"\b(?:GCC|clang)\s+error\b|\b_Pragma\b")
"""Pragmas with which an answer can print any error message. An honest answer does not need them."""
_INCLUDE = re.compile(
    rf"{_HASH}(?:include(?:_next)?|import)\b[ \t\v\f]*(?:<(?P<angled>[^>\n]*)>|\"(?P<quoted>[^\"\n]*)\"|(?P<macro>\w))",
    re.MULTILINE,
)
_OF_STD = re.compile(r"\bstd\s*::\s*(\w+)")
_ATTRIBUTE = re.compile(r"note: from 'diagnose_if' attribute on ")
_ERROR_LINE = re.compile(
    r"^(?P<file>[^:\n]*):(?:(?P<line>\d+):)?(?:\d+:)? (?P<fatal>fatal )?error: (?P<message>.*)$", re.MULTILINE
)
_PUBLIC_NAME = "<answer>"
_LONGEST_MESSAGE = 1000  # characters; the rest of a message is ignored
_IN_ANOTHER = "an error in a file that it includes"
_NO_HEADER = re.compile(
    r"(?P<gcc>[^:'\n]+): No such file or directory|'(?P<clang>[^'\n]+)' file not found(?:, did .*)?"
)
_UNDECLARED = re.compile(
    r"^(?:use of undeclared identifier|unknown type name|no template named|use of undeclared) '(?P<clang>[^']+)'"
    r"|^'(?P<gcc>[^']+)' (?:was not declared|does not name a (?:template )?type|has not been declared"
    r"|is not a (?:template|class)|is not a class)|^invalid use of '(?P<this>this)'"
)
_CLASH = re.compile(r"ambiguous|redeclar|redefin|conflict|different kind|previous|overload")
_NEWER = re.compile(r"C\+\+2[3b]|c\+\+2[3b]|[Cc]\+\+26")
_NEWER_NAMES = frozenset(
    ("expected", "unexpected", "print", "println", "generator", "mdspan", "flat_map", "flat_set", "byteswap")
)
_UNEXPECTED = "unexpected"  # C++98 has a function of this name: an older compiler reports a call with wrong arguments
_NOT_IN_STD = re.compile(
    r"(?:no (?:member|template|type|template type) named )?'(?:std::)?(?P<name>\w+)' "
    r"(?:in namespace 'std'|is not a member of 'std'|has not been declared)"
)
_PATH = re.compile(r"(?:/[\w.+@~-]+)+/")
_PRECOMPILED = re.compile(r"^(?:fatal )?error: .*(?:precompiled|PCH)", re.MULTILINE)
_ASKED_FROM = re.compile(
    rf"^{ANSWER_FILE}:(?P<line>\d+):\d+: +(?:required from here|note: in instantiation)", re.MULTILINE
)
_MEMORY = re.compile(r"out of memory|memory exhausted|bad_alloc|cannot allocate", re.IGNORECASE)
_HEADER_PATH = re.compile(r"[\w./+-]+")
_STANDARD_HEADER = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class CompileError:
    kind: ErrorKind
    text: str
    name: str = ""  # the undeclared name, or the header
    hints_at_newer: bool = False  # whether a later standard may accept the code


def parse_compile_error(output: str, code: str) -> CompileError | None:
    """Return the first error in the compiler's output, if any. Its text quotes only the answer, never another file."""
    found = _ERROR_LINE.search(output)
    if found is None:
        return None
    if found["file"] != ANSWER_FILE:
        asked = _ASKED_FROM.search(output)
        where = f"line {asked['line']}: its use of a header causes an error in the header" if asked else _IN_ANOTHER
        return CompileError("clash" if _CLASH.search(output) else "wrong", where)
    message = found["message"][:_LONGEST_MESSAGE].replace(ANSWER_FILE, _PUBLIC_NAME)
    text = _PATH.sub("", f"line {found['line']}: {message}" if found["line"] else message)
    if found["fatal"]:
        header = _NO_HEADER.fullmatch(message)
        name = header[header.lastgroup or 0] if header else ""
        return CompileError(_header_error_kind(name) if includes_header(name, code) else "wrong", text, name)
    kind, name = _error_kind(message, output, code)
    hints_at_newer = _NEWER.search(output) is not None or bool(used_std_names(_NEWER_NAMES, code))
    return CompileError(kind, text, name, hints_at_newer)


def _error_kind(message: str, output: str, code: str) -> tuple[ErrorKind, str]:
    """Return the kind of the error, and the undeclared name if the kind is "undeclared", else ""."""
    if is_from_answer(message, output, code):
        return "wrong", ""
    used = used_std_names(_NEWER_NAMES, code)
    missing = _NOT_IN_STD.match(message)
    if missing["name"] in used if missing else _UNEXPECTED in used and message.startswith("too many arguments"):
        return "newer", ""
    undeclared = _UNDECLARED.match(message)
    if undeclared is not None:
        return "undeclared", undeclared["clang"] or undeclared["gcc"] or undeclared["this"]
    return ("clash" if _CLASH.search(output) else "wrong"), ""


def _header_error_kind(name: str) -> ErrorKind:
    """Return "header" if a library may be missing; "wrong" for a local path or an invented standard header."""
    if name.startswith("/") or ".." in name or not _HEADER_PATH.fullmatch(name):
        return "wrong"
    return "header" if name in NEWER_HEADERS or not _STANDARD_HEADER.fullmatch(name) else "wrong"


def is_from_answer(message: str, output: str, code: str) -> bool:
    """Whether the code itself sets the text of a nonfatal error, as with `#error`. Such text can imitate any error."""
    if _ATTRIBUTE.search(output):
        return True
    bare, shown = _without_comments(code), _normalized(message)
    return _PRAGMA.search(bare) is not None or any(
        _normalized(each["words"]).startswith(shown) for each in _ERROR_DIRECTIVE.finditer(bare)
    )


def includes_header(name: str, code: str) -> bool:
    """Whether the code includes this header, or a header named by a macro."""
    found = _INCLUDE.finditer(_without_comments(code))
    return any(each["macro"] or name in (each["angled"], each["quoted"]) for each in found)


def used_std_names(names: frozenset[str], code: str) -> frozenset[str]:
    """Return the names that the code uses from `std`, outside comments and literals."""
    return names & frozenset(_OF_STD.findall(mask_literals(_LINE_SPLICE.sub("", code))))


def _without_comments(code: str) -> str:
    """Return the code as the compiler reads directives: comments become spaces, continued lines are joined."""
    return NOT_CODE.sub(lambda found: " " if found[0].startswith("/") else found[0], _LINE_SPLICE.sub("", code))


def _normalized(words: str) -> str:
    return " ".join(words.split())


class _CannotJudge(Exception):
    """No verdict is possible, for reasons outside the answer."""


class _LimitExceeded(Exception):
    """Compiling the answer exceeds a limit."""


@dataclass(eq=False)
class CppVerifier:
    name: str
    compiler: CppCompiler
    sandbox: Sandbox
    cache: Path
    limits: VerifierLimits
    is_code_required: bool = False

    def __post_init__(self) -> None:
        self.headers = PrecompiledHeaders(self.compiler, self.cache)
        self._lock = asyncio.Lock()
        self._is_ready = False
        self._problem = ""
        self._retry_at = 0.0

    async def verify(self, question: str, answer: str) -> Verdict:
        async with self._lock:
            started = time.monotonic()
            try:
                verdict = await self._judge(question, answer)
            except _LimitExceeded as error:
                verdict = Verdict("failed", str(error))
            except _CannotJudge as error:
                verdict = Verdict("unavailable", str(error))
            except Exception as error:  # no exception here is the answer's fault
                _log.exception("Failed to verify a C++ answer.")
                verdict = Verdict("unavailable", f"{type(error).__name__}: {error}")
            return Verdict(verdict.outcome, one_line(verdict.why), time.monotonic() - started)

    async def close(self) -> None:
        """Do nothing: no process runs between two answers."""

    async def _judge(self, question: str, answer: str) -> Verdict:
        if why := length_error(answer, self.limits.answer_bytes):
            return Verdict("skipped", why)
        units = await asyncio.to_thread(extract_units, question, answer)
        if not units:
            return Verdict("failed" if self.is_code_required else "skipped", "the answer contains no C++")
        await self._prepare()
        return await _judge_units(_CompileSession(self), units)

    async def _prepare(self) -> None:
        if self._is_ready and not self.headers.is_lost:
            return
        if not self._problem or time.monotonic() >= self._retry_at:
            self._problem = await self._find_problem()
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            if self._problem:
                _log.error("C++ answers cannot be verified: %s", self._problem)
        if self._problem:
            raise _CannotJudge(self._problem)
        self._is_ready = True

    async def _find_problem(self) -> str:
        """Precompile the headers and test the compiler. Return "" if it works, else the problem."""
        try:
            await self.headers.prepare(self.sandbox)
        except OSError as error:
            return f"no folder for the precompiled headers: {error}"
        problem = await self._self_test()
        if problem and self.headers.is_precompiled:
            self.headers.discard()
            problem = await self._self_test()
        return problem

    async def still_works(self) -> bool:
        """Return whether the self-test still succeeds. If not, everything is prepared again for the next answer."""
        if not await self._self_test():
            return True
        self.headers.discard()
        self._is_ready = False
        return False

    async def _self_test(self) -> str:
        """Return "" if the compiler accepts a valid program and refuses an invalid one, else the problem."""
        limits = SandboxLimits(max(30.0, self.limits.cpu_seconds), 90.0)
        program = self.compiler.check(STANDARD, self.headers.header, is_precompiled=self.headers.is_precompiled)
        accepted = await self.sandbox.run(program, _VALID_PROGRAM.encode(), limits)
        refused = await self.sandbox.run(program, _INVALID_PROGRAM.encode(), limits)
        if accepted.ending == "exited" and accepted.code == 0 and parse_compile_error(refused.output, "") is not None:
            return ""
        return f"{self.compiler.version} does not work in the sandbox: {accepted.output.strip() or accepted}"


class _CompileSession:
    """Runs the compiler for one answer, with limits on the total CPU time and the number of runs."""

    def __init__(self, verifier: CppVerifier) -> None:
        self._verifier = verifier
        self._limits = verifier.limits
        self._is_tested = False
        self._cpu_left = self._limits.cpu_seconds
        self._clock_left = self._limits.clock_seconds  # does not include waiting for a turn
        self.runs_left = _MOST_RUNS

    async def compile(self, form: CppForm, *, standard: str = STANDARD, bare: bool = False) -> CompileError | None:
        """Return the error, if any. `bare` omits the standard headers. Raises _LimitExceeded and _CannotJudge."""
        self.runs_left -= 1
        is_precompiled = self._verifier.headers.is_precompiled and standard == STANDARD
        header = None if bare else self._verifier.headers.header
        program = self._verifier.compiler.check(standard, header, is_precompiled=is_precompiled)
        limits = SandboxLimits(max(1.0, self._cpu_left), max(1.0, self._clock_left))
        text = f"{_HIDE_FILE_NAME}{form.text}".encode("utf-8", "replace")
        result = await self._verifier.sandbox.run(program, text, limits)
        self._cpu_left -= result.cpu
        self._clock_left -= result.seconds
        if result.ending == "trouble":
            raise _CannotJudge(result.output)
        if result.ending == "out_of_time":
            raise _CannotJudge(f"compiling the answer took over {self._limits.clock_seconds:g} s: the machine is busy")
        if result.ending == "out_of_cpu" or self._cpu_left <= 0:
            raise _LimitExceeded(f"compiling the answer takes more than {self._limits.cpu_seconds:g} s of CPU")
        if result.ending == "exited" and result.code == 0:
            return None
        if is_precompiled and not bare:
            await self._check_headers(result.output)
        error = parse_compile_error(result.output, form.text)
        if error is None and _MEMORY.search(result.output):
            raise _LimitExceeded("compiling the answer takes too much memory")
        return error or CompileError("wrong", "the compiler failed without an error message")

    async def _check_headers(self, output: str) -> None:
        """If the output suggests that the precompiled headers are damaged, repeat the self-test, at most once per
        answer. Raises _CannotJudge if the test fails. If it succeeds, the answer itself has caused the output."""
        if self._is_tested or (parse_compile_error(output, "") is not None and not _PRECOMPILED.search(output)):
            return
        self._is_tested = True
        if not await self._verifier.still_works():
            raise _CannotJudge("the precompiled headers are unusable and will be compiled again")


async def _judge_units(session: _CompileSession, units: Sequence[CppUnit]) -> Verdict:
    if len(units) > 1:
        for form in forms_joined(units):
            if await session.compile(form) is None:
                return Verdict("passed")
    verdicts = [await _judge_unit(session, unit) for unit in units]
    for outcome in ("failed", "passed"):
        for verdict in verdicts:
            if verdict.outcome == outcome:
                return verdict
    return verdicts[0]


async def _judge_unit(session: _CompileSession, unit: CppUnit) -> Verdict:
    if unit.needs_modules:
        return Verdict("skipped", "C++ modules are not supported")
    error, wraps = await _compile_alone(session, unit)
    if error is not None and error.kind in ("undeclared", "header") and unit.context:
        error = await _compile_in_context(session, unit, error)
    if error is None:
        return Verdict("passed")
    excuse = _excuse(unit, error, wraps=wraps)
    return Verdict("skipped", f"{excuse}: {error.text}") if excuse else Verdict("failed", error.text)


async def _compile_alone(session: _CompileSession, unit: CppUnit) -> tuple[CompileError | None, bool]:
    """Compile the forms of the unit in turn, until one compiles. Return the error by which to judge the unit (None on
    success), and whether the form that gave this result wraps its statements."""
    first: tuple[CompileError, bool] | None = None
    for form in forms_of_unit(unit):
        if session.runs_left <= 0:
            break
        error = await session.compile(form)
        if error is not None and error.hints_at_newer:
            error = await session.compile(form, standard=NEXT_STANDARD)
        if error is not None and error.kind == "clash" and "#" in unit.code:
            error = await session.compile(form, bare=True)
        if error is None:
            return None, form.wraps
        # Only a form with `using namespace std` shows which name is really undeclared.
        if first is None or (first[0].kind == error.kind == "undeclared" and not first[1]):
            first = error, form.wraps
        if error.kind == "header" or (error.kind == "wrong" and not form.wraps):
            break
    return first or (CompileError("wrong", "the limit of compiler runs is reached"), False)


async def _compile_in_context(session: _CompileSession, unit: CppUnit, alone: CompileError) -> CompileError | None:
    """Compile the unit with its context. Return None on success, else the last error that the context did not cause."""
    error = alone
    for form in forms_in_context(unit):
        if session.runs_left <= 0:
            break
        found = await session.compile(form)
        if found is None:
            return None
        error = error if found.kind == "clash" or "line" not in found.text else found
    return error


def _excuse(unit: CppUnit, error: CompileError, *, wraps: bool) -> str:
    """Return why the error does not count against the answer; empty if it counts."""
    if unit.is_expendable:
        return "the answer itself says that the code is wrong"
    if error.kind == "header":
        return "it needs a header that is not installed"
    if error.kind == "newer":
        return "it needs a newer standard than the compiler supports"
    if error.kind == "undeclared" and not unit.is_whole:
        if wraps and looks_like_cpp(unit.code):
            return "it is a fragment that uses names from elsewhere"
        if error.name and error.name in unit.context:
            return "it uses names from the question"
    return ""
