"""The verifiers that a configuration may name, and the errors for other names."""

import logging
from pathlib import Path

import pytest

from octet.config.annotations import VERIFIERS, verifier_problem
from octet.config.ensemble import CorrectnessConfig
from router.verify import verifiers as opening
from router.verify.verifiers import open_verifier
from tests.router.verify.conftest import judged

CONFIG = CorrectnessConfig()


@pytest.mark.parametrize("spec", VERIFIERS)
def test_every_configurable_verifier_opens(spec: str) -> None:
    assert open_verifier(spec, CONFIG, None).name == spec


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("c++", "cpp, "),
        ("", "there is no verifier"),
        ("json:", "json:SCHEMA_FILE"),
        ("json: ", "json:SCHEMA_FILE"),
        ("cpp:strict", "cpp:required"),
        ("json:missing.json", "cannot read"),
        ("a b:c", "module:name"),
        ("mod:", "module:name"),
        (":name", "module:name"),
        ("no_module_of_this_name:x", "there is no module"),
        ("../x:y", "module:name"),
    ],
)
def test_errors_name_valid_values(spec: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        open_verifier(spec, CONFIG, tmp_path)


@pytest.mark.parametrize("spec", [*VERIFIERS, "json:a/b.json", "mod:name", "a.b.c:d.e"])
def test_valid_specs_are_accepted(spec: str) -> None:
    assert verifier_problem(spec) == ""


def test_a_schema_path_is_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text('{"type": "object", "required": ["verdict"]}')
    verifier = open_verifier("json:answer.json", CONFIG, tmp_path)
    assert judged(verifier, '{"verdict": 1}').outcome == "passed"
    assert judged(verifier, "{}").why == "the answer: 'verdict' is a required property"


def test_simple_verifiers_give_their_verdicts() -> None:
    assert judged(open_verifier("non_empty", CONFIG, None), "x").outcome == "passed"
    assert judged(open_verifier("non_empty", CONFIG, None), " \n\t\u200b").outcome == "failed"
    assert judged(open_verifier("none", CONFIG, None), "x").outcome == "skipped"


def test_a_nonexistent_compiler_is_refused() -> None:
    with pytest.raises(ValueError, match=r"correctness.compiler: there is no program '/no/such/g\+\+'"):
        open_verifier("cpp", CorrectnessConfig(compiler="/no/such/g++"), None)


def test_a_program_that_is_not_a_compiler_is_unavailable() -> None:
    verdict = judged(open_verifier("cpp", CorrectnessConfig(compiler="true"), None), "```cpp\nint x;\n```")
    assert verdict.outcome == "unavailable" and "not a C++ compiler" in verdict.why


def test_without_a_sandbox_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "sandbox_mode", lambda: (None, "namespaces: not allowed; landlock: not there"))
    with caplog.at_level(logging.ERROR):
        verifier = open_verifier("cpp", CONFIG, None)
    assert "no sandbox to compile in" in caplog.text
    verdict = judged(verifier, "```cpp\nint x;\n```")
    assert verdict.outcome == "unavailable" and "not allowed" in verdict.why


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with caplog.at_level(logging.ERROR):
        verifier = open_verifier("cpp", CONFIG, None)
    assert "neither g++ nor clang++ is installed" in caplog.text
    assert judged(verifier, "x").outcome == "unavailable"
