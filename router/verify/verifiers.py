"""Open the verifiers that a configuration names, and verify answers in Python and JSON."""

import asyncio
import json
import logging
import re
import signal
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from octet.config.annotations import SCHEMA_PREFIX, verifier_problem
from octet.config.ensemble import CorrectnessConfig, Ensemble
from router.verify import cpp_compiler
from router.verify.checks import check_schema, is_foreign_cell, refuse_constant
from router.verify.cpp import CppVerifier
from router.verify.custom import CustomVerifier, check_custom_spec
from router.verify.fences import extract_blocks
from router.verify.pool import PoolTask, TaskResult, VerifierPool, isolated_command
from router.verify.sandbox import Sandbox, sandbox_mode
from router.verify.verdict import Outcome, Verdict, Verifier, VerifierLimits, length_error, one_line

_log = logging.getLogger(__name__)
_REQUIRED = ":required"
_CLOCK_FACTOR = 3  # wall-clock seconds allowed for every second of CPU time
_probe_compiler = cache(cpp_compiler.probe_compiler)
_MOST_OUTPUT = 1 << 20
_MOST_SCHEMA = 1 << 20
JSON_TAGS = frozenset({"json", "jsonc", "json5", "application"})
PYTHON_TAGS = frozenset({"python", "py", "python3", "py3", "pycon", "ipython"})
_PROMPT = re.compile(r"^(?:>>> ?|\.\.\. ?)")
_SIGNS = re.compile(
    r"^[ \t]*(?:def \w+\(|class \w+[:(]|import \w|from [\w.]+ import |if __name__|print\(|@\w|for \w+ in |return\b)",
    re.MULTILINE,
)
_LIKE_CODE = re.compile(r"[=()#:\[\]]")


class VerifierOpener:
    """Opens each verifier of an ensemble once. Used on any thread."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._correctness = ensemble.correctness
        self._base = None if ensemble.source is None else ensemble.source.parent
        self._opened: dict[str, Verifier] = {}
        self._lock = Lock()
        self.pool = VerifierPool()
        self.limits = verifier_limits(ensemble.correctness)

    @property
    def opened(self) -> tuple[Verifier, ...]:
        return tuple(self._opened.values())

    def open(self, spec: str) -> Verifier:
        """Return the verifier for `spec`. Raises ValueError if `spec` is invalid."""
        with self._lock:
            if spec not in self._opened:
                self._opened[spec] = open_verifier(spec, self._correctness, self._base, self.pool)
            return self._opened[spec]


def verifier_limits(correctness: CorrectnessConfig) -> VerifierLimits:
    seconds = correctness.verify_seconds
    return VerifierLimits(seconds, seconds * _CLOCK_FACTOR, correctness.answer_bytes)


def open_verifier(
    spec: str, correctness: CorrectnessConfig, base: Path | None, pool: VerifierPool | None = None
) -> Verifier:
    """Return the verifier for `spec`, the `verify` of a specialist; `base` is the configuration's folder. Raises
    ValueError if `spec` is invalid; the message states what is valid. If the verifier cannot work on this machine, the
    reason is logged, and its verdicts are `unavailable`."""
    if problem := verifier_problem(spec):
        raise ValueError(problem)
    pool = pool or VerifierPool()
    limits = verifier_limits(correctness)
    is_code_required = spec.endswith(_REQUIRED)
    match spec.removesuffix(_REQUIRED):
        case "non_empty":
            return NonEmptyVerifier()
        case "none":
            return FixedVerifier("none", Verdict("skipped", "verification is turned off"))
        case "cpp":
            return _open_cpp(spec, correctness.compiler, pool, limits, is_code_required=is_code_required)
        case "python":
            return TextVerifier(spec, pool, limits, "python", is_code_required=is_code_required)
        case "json":
            return TextVerifier(spec, pool, limits, "json")
        case _ if spec.startswith(SCHEMA_PREFIX):
            path = (base or Path()) / spec.removeprefix(SCHEMA_PREFIX).strip()
            return TextVerifier(spec, pool, limits, "json", schema=read_schema(path))
        case _:
            module, _, name = spec.partition(":")
            check_custom_spec(module, name, base)
            return CustomVerifier(spec, module, name, base, limits)


def _open_cpp(
    spec: str, compiler: str, pool: VerifierPool, limits: VerifierLimits, *, is_code_required: bool
) -> Verifier:
    try:
        driver = cpp_compiler.find_compiler(compiler)
    except cpp_compiler.CompilerUnavailable as error:
        if compiler != cpp_compiler.AUTO_COMPILER:
            raise ValueError(f"correctness.compiler: {error}") from error
        return _unavailable(spec, str(error))
    mode, why = sandbox_mode()
    if mode is None:
        return _unavailable(spec, f"no sandbox to compile in ({why})")
    try:
        probed, cache_folder = _probe_compiler(driver), cpp_compiler.default_cache_folder()
    except (cpp_compiler.CompilerUnavailable, OSError) as error:
        return _unavailable(spec, str(error))
    sandbox = Sandbox(mode, pool, spec)
    return CppVerifier(spec, probed, sandbox, cache_folder, limits, is_code_required=is_code_required)


def _unavailable(spec: str, why: str) -> Verifier:
    _log.error("The verifier %r is unavailable: %s", spec, why)
    return FixedVerifier(spec, Verdict("unavailable", one_line(why)))


class NonEmptyVerifier:
    """Passes an answer with at least one visible character."""

    name = "non_empty"

    async def verify(self, question: str, answer: str) -> Verdict:
        is_visible = any(character.isprintable() and not character.isspace() for character in answer)
        return Verdict("passed") if is_visible else Verdict("failed", "the answer is empty")

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FixedVerifier:
    """Returns the same verdict on every answer: verification is turned off, or cannot work on this machine."""

    name: str
    _verdict: Verdict

    async def verify(self, question: str, answer: str) -> Verdict:
        return self._verdict

    async def close(self) -> None: ...


@dataclass(eq=False)
class TextVerifier:
    """Checks whether the Python or JSON in an answer is valid. A child process runs `router.verify.checks`; the answer
    also fails if the child exceeds its CPU time or overflows its stack."""

    name: str
    _pool: VerifierPool
    _limits: VerifierLimits
    _language: Literal["python", "json"]
    schema: Any = True
    is_code_required: bool = False

    def __post_init__(self) -> None:
        self._cpu_seconds = ceil(self._limits.cpu_seconds)
        self._command = isolated_command("router.verify.checks", str(self._cpu_seconds), self._language)

    async def verify(self, question: str, answer: str) -> Verdict:
        if why := length_error(answer, self._limits.answer_bytes):
            return Verdict("skipped", why)
        texts = await asyncio.to_thread(extract_python if self._language == "python" else extract_json, answer)
        if not texts:
            return Verdict("failed" if self.is_code_required else "skipped", "the answer contains no Python")
        stdin = json.dumps({"texts": texts, "schema": self.schema}).encode()
        task = PoolTask(self._command, stdin, self._limits.clock_seconds, _MOST_OUTPUT, owner=self.name)
        try:
            result = await self._pool.run(task)
        except OSError as error:
            return Verdict("unavailable", one_line(f"cannot start a process: {error}"))
        outcome, why = self._read(result)
        return Verdict(outcome, one_line(why), result.seconds)

    async def close(self) -> None:
        """Do nothing: no process runs between two answers."""

    def _read(self, result: TaskResult) -> tuple[Outcome, str]:
        if result.ending == "out_of_time":
            return "unavailable", f"no verdict within {self._limits.clock_seconds:g} s: the machine is busy"
        if result.ending == "exited" and result.code == 0:
            try:
                first = next((str(error) for error in json.loads(result.stdout) if error), "")
            except ValueError:
                return "unavailable", "the check wrote something other than its verdict"
            return ("failed", first) if first else ("passed", "")
        if result.code in (-signal.SIGKILL, -signal.SIGXCPU):
            return "failed", f"verification takes more than {self._cpu_seconds} s of CPU"
        if result.code == -signal.SIGSEGV:
            return "failed", "the answer is nested too deeply to parse"
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
        return "unavailable", f"the check exited with {result.code}: {lines[-1] if lines else 'no output'}"


def extract_python(text: str) -> list[str]:
    """Return the fenced Python, one source per block; without fences, the whole text if it is only code."""
    blocks = extract_blocks(text)
    if not blocks:
        return [text] if _SIGNS.search(text) and not any(map(_is_prose, text.split("\n"))) else []
    named = [block.code for block in blocks if block.language in PYTHON_TAGS]
    unnamed = [block.code for block in blocks if not block.language and _SIGNS.search(block.code)]
    return [_as_module(code) for code in named or unnamed if code.strip() and not is_foreign_cell(code)]


def _is_prose(line: str) -> bool:
    words = line[:400].split()
    return len(words) > 3 and words[0][0].isupper() and words[-1][-1] in ".!?:" and not _LIKE_CODE.search(line[:-1])


def _as_module(code: str) -> str:
    """Dedent the code. Of an interactive session (`>>>`), keep only the input."""
    lines = code.split("\n")
    if any(line.startswith(">>>") for line in lines):
        lines = [_PROMPT.sub("", line) for line in lines if _PROMPT.match(line)]
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines) + "\n"


def extract_json(text: str) -> list[str]:
    """Return the JSON blocks of the answer; the whole answer if it begins with { or [, or has no JSON block."""
    stripped = text.strip().removeprefix("\ufeff")
    if stripped[:1] in ("{", "["):
        return [stripped]
    blocks = extract_blocks(text)
    named = [block.code for block in blocks if block.language in JSON_TAGS]
    unnamed = [block.code for block in blocks if not block.language]
    return [code.strip() for code in named or unnamed if code.strip()] or [stripped]


def read_schema(path: Path) -> Any:
    """Return the checked schema. Raises ValueError with a message that states what is wrong with it."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read the schema {path}: {error.strerror or error}") from error
    if len(raw) > _MOST_SCHEMA:
        raise ValueError(f"the schema {path} is longer than {_MOST_SCHEMA} bytes")
    try:
        schema = json.loads(raw, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the schema {path} is not JSON: {error}") from error
    check_schema(schema, str(path))
    return schema
