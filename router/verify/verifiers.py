"""Open the verifiers that a configuration names."""

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from octet.config.annotations import SCHEMA_PREFIX, verifier_problem
from octet.config.ensemble import CorrectnessConfig, Ensemble
from router.verify import cpp_compiler
from router.verify.cpp import CppVerifier
from router.verify.custom import CustomVerifier, check_custom_spec
from router.verify.parsed import TextVerifier, read_schema
from router.verify.pool import VerifierPool
from router.verify.sandbox import Sandbox, sandbox_mode
from router.verify.verdict import Verdict, Verifier, VerifierLimits, one_line

_log = logging.getLogger(__name__)
_REQUIRED = ":required"
_CLOCK_FACTOR = 3  # wall-clock seconds allowed for every second of CPU time
_probe_compiler = cache(cpp_compiler.probe_compiler)


def open_verifiers(ensemble: Ensemble) -> dict[str, Verifier]:
    """Return verifiers by specialist; specialists with the same `verify` share one. Only one process runs at a time.
    Raises ValueError with a message that states what is valid."""
    base = None if ensemble.source is None else ensemble.source.parent
    pool = VerifierPool()
    specs = sorted({specialist.verify for specialist in ensemble.specialists})
    opened = {spec: open_verifier(spec, ensemble.correctness, base, pool) for spec in specs}
    return {specialist.name: opened[specialist.verify] for specialist in ensemble.specialists}


def open_verifier(
    spec: str, correctness: CorrectnessConfig, base: Path | None, pool: VerifierPool | None = None
) -> Verifier:
    """`base` is the configuration's folder. Raises ValueError with a message that states what is valid. A valid
    verifier that cannot work on this machine is still opened: it logs the reason, and its verdicts are `unavailable`.
    The first C++ verifier starts a few short processes to probe the compiler."""
    if problem := verifier_problem(spec):
        raise ValueError(problem)
    pool = pool or VerifierPool()
    seconds = correctness.verify_seconds
    limits = VerifierLimits(seconds, seconds * _CLOCK_FACTOR, correctness.answer_bytes)
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
