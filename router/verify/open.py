"""The verifier that a configuration names."""

import logging
from functools import cache
from pathlib import Path

from octet.config.ensemble import CorrectnessConfig
from octet.config.verifiers import SCHEMA_PREFIX, trouble_with_verifier
from router.verify.compiler import AUTO, Compiler, NoCompiler, ask_compiler, find_compiler
from router.verify.cpp import CppVerifier
from router.verify.json_answer import JsonVerifier, read_schema
from router.verify.own import OwnVerifier, check_own
from router.verify.plain import NonEmptyVerifier, NoVerifier, UnavailableVerifier
from router.verify.preamble import default_cache
from router.verify.python_source import PythonVerifier
from router.verify.sandbox import Mode, Sandbox, sandbox_mode
from router.verify.verdict import Verifier, one_line
from router.verify.workshop import Workshop

_log = logging.getLogger(__name__)
_REQUIRED = ":required"
_CLOCK = 3
"""Seconds by the clock for every second of CPU."""


def open_verifier(
    spec: str, correctness: CorrectnessConfig, base: Path | None, workshop: Workshop | None = None
) -> Verifier:
    """`base` is the configuration's folder; verifiers with the same workshop take turns. Raises ValueError that says
    what would be right. One that is right but cannot work on this machine is opened: it says so to the log, and its
    verdicts say so too. The first for C++ starts a few short processes to find out."""
    if trouble := trouble_with_verifier(spec):
        raise ValueError(trouble)
    workshop = workshop or Workshop()
    match spec.removesuffix(_REQUIRED):
        case "non_empty":
            return NonEmptyVerifier()
        case "none":
            return NoVerifier()
        case "cpp":
            return _open_cpp(spec, correctness, workshop)
        case "python":
            return PythonVerifier(
                spec,
                workshop,
                cpu_seconds=correctness.verify_seconds,
                clock_seconds=correctness.verify_seconds * _CLOCK,
                answer_bytes=correctness.answer_bytes,
                is_code_required=spec.endswith(_REQUIRED),
            )
        case _ if spec == "json" or spec.startswith(SCHEMA_PREFIX):
            return _open_json(spec, correctness, base, workshop)
        case _:
            return _open_own(spec, correctness, base)


def _open_json(spec: str, correctness: CorrectnessConfig, base: Path | None, workshop: Workshop) -> Verifier:
    schema = True
    if spec != "json":
        schema = read_schema((base or Path()) / spec.removeprefix(SCHEMA_PREFIX).strip())
    return JsonVerifier(
        spec,
        workshop,
        schema,
        cpu_seconds=correctness.verify_seconds,
        clock_seconds=correctness.verify_seconds * _CLOCK,
        answer_bytes=correctness.answer_bytes,
    )


def _open_own(spec: str, correctness: CorrectnessConfig, base: Path | None) -> Verifier:
    module, _, name = spec.partition(":")
    check_own(module, name, base)
    return OwnVerifier(spec, module, name, base, correctness.verify_seconds * _CLOCK, correctness.answer_bytes)


def _open_cpp(spec: str, correctness: CorrectnessConfig, workshop: Workshop) -> Verifier:
    try:
        driver = find_compiler(correctness.compiler)
    except NoCompiler as error:
        if correctness.compiler != AUTO:
            raise ValueError(f"correctness.compiler: {error}") from error
        return _unavailable(spec, str(error))
    mode, why = sandbox_mode()
    if mode is None:
        return _unavailable(spec, f"there is no sandbox to compile in ({why})")
    return _cpp(spec, driver, mode, correctness, workshop)


def _cpp(spec: str, driver: str, mode: Mode, correctness: CorrectnessConfig, workshop: Workshop) -> Verifier:
    try:
        compiler, cache_folder = _asked(driver), default_cache()
    except (NoCompiler, OSError) as error:
        return _unavailable(spec, str(error))
    return CppVerifier(
        spec,
        compiler,
        Sandbox(mode, workshop, spec),
        cache_folder,
        cpu_seconds=correctness.verify_seconds,
        clock_seconds=correctness.verify_seconds * _CLOCK,
        answer_bytes=correctness.answer_bytes,
        is_code_required=spec.endswith(_REQUIRED),
    )


@cache
def _asked(driver: str) -> Compiler:
    return ask_compiler(driver)


def _unavailable(spec: str, why: str) -> Verifier:
    _log.error("answers cannot be judged by the verifier %r: %s", spec, why)
    return UnavailableVerifier(spec, one_line(why))
