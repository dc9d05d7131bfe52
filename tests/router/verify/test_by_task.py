"""Which verifier judges an answer: by the request's structure, the task, the kind of answer, the specialist."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octet.config.ensemble import (
    CorrectnessConfig,
    Ensemble,
    IntentConfig,
    SpecialistConfig,
    TaskConfig,
    with_default_tasks,
)
from octet.v1.specialist_pb2 import Choices, Structure
from router.assembly import _verifier_config
from router.verify.by_task import AnswerPurpose, VerifierSet, open_verifiers
from router.verify.verdict import Verdict
from router.verify.verifiers import FixedVerifier
from tests.specialist.server.harness import run

HAS_COMPILER = shutil.which("g++") is not None or shutil.which("clang++") is not None
CPP, BAD_CPP = "```cpp\nint f() { return 1; }\n```", "```cpp\nint f() { return x 1; }\n```"
PYTHON, BAD_PYTHON = "Use:\n```python\nx = 1\n```", "```python\nx = = 1\n```"
JSON, BAD_JSON, PROSE = '{"a": 1}', '{"a": ', "A mutex guards the queue."
ENSEMBLE = Ensemble(
    (
        SpecialistConfig("writer"),
        SpecialistConfig("coder", verify="cpp"),
        SpecialistConfig("strict", verify="python:required"),
        SpecialistConfig("silent", verify="none"),
    ),
    tasks=with_default_tasks(
        (
            TaskConfig("triage", labels=("Bug", "feature request")),
            TaskConfig("off", verify="none"),
            TaskConfig("chat", verify="non_empty"),
        )
    ),
    intents=(IntentConfig("parse", task="json_parsing"), IntentConfig("ask")),
    correctness=CorrectnessConfig(verify_seconds=100.0),
)
ABOUT_JSON = [
    PROSE,
    "A JSON schema describes the shape of JSON, such as {} or [1].",
    "Write a function for each field:\n\n```\nreturn to_string(x);\n```",
    "Call `nlohmann::json j{x}` and then `j.dump()`.",
]
LIKE_JSON = [BAD_JSON, "Here it is:\n" + BAD_JSON, "```json\n{a: 1}\n```", "```\n[{1: 2\n```", "[1, 2", "Sure:\n[{1}]"]
CHOICE = Structure(choice=Choices(choices=["yes", "no"]))
OBJECT = Structure(json_object=True)
NUMBER = Structure(json_schema='{"type": "object", "required": ["n"]}')
PATTERN = Structure(json_schema='{"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}')


@pytest.fixture(scope="module")
def verifiers() -> VerifierSet:
    return open_verifiers(ENSEMBLE)


def judged(
    verifiers: VerifierSet, specialist: str, task: str, answer: str, structure: Any = None, intent: str = ""
) -> tuple[str, str]:
    found = run(verifiers.verify(AnswerPurpose(specialist, task, intent, structure), "question", answer))
    return found.verifier, found.verdict.outcome


@pytest.mark.parametrize(
    ("specialist", "task", "answer", "expected"),
    [
        ("writer", "default", PROSE, ("non_empty", "passed")),
        ("writer", "default", " \n", ("non_empty", "failed")),
        ("writer", "json_parsing", JSON, ("json", "passed")),
        ("writer", "json_parsing", BAD_JSON, ("json", "failed")),
        ("writer", "json_parsing", PYTHON, ("non_empty", "passed")),
        ("writer", "debug", PYTHON, ("python", "passed")),
        ("writer", "debug", BAD_PYTHON, ("python", "failed")),
        ("writer", "code_generation", PROSE, ("non_empty", "passed")),
        ("writer", "unknown", PROSE, ("non_empty", "passed")),
        ("writer", "triage", "bug", ("labels", "passed")),
        ("writer", "triage", ' "Feature  Request".', ("labels", "passed")),
        ("writer", "triage", "It is a bug.", ("labels", "failed")),
        ("writer", "off", "", ("none", "skipped")),
        ("coder", "chat", "", ("non_empty", "failed")),
        ("coder", "creative_writing", PROSE, ("non_empty", "passed")),
        ("coder", "triage", "bug", ("labels", "passed")),
        ("strict", "default", PROSE, ("python:required", "failed")),
        ("strict", "code_generation", PROSE, ("python:required", "failed")),
        ("strict", "code_generation", PYTHON, ("python:required", "passed")),
        ("strict", "debug", BAD_PYTHON, ("python:required", "failed")),
        ("silent", "json_parsing", BAD_JSON, ("none", "skipped")),
        ("gone", "default", PROSE, ("none", "skipped")),
    ],
)
def test_the_task_and_the_kind_of_answer_choose_the_verifier(
    verifiers: VerifierSet, specialist: str, task: str, answer: str, expected: tuple[str, str]
) -> None:
    assert judged(verifiers, specialist, task, answer) == expected


@pytest.mark.skipif(not HAS_COMPILER, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("specialist", "task", "answer", "expected"),
    [
        ("writer", "code_generation", CPP, ("cpp", "passed")),
        ("writer", "review", BAD_CPP, ("cpp", "failed")),
        ("writer", "json_parsing", BAD_CPP, ("non_empty", "passed")),
        ("coder", "json_parsing", BAD_CPP, ("cpp", "failed")),
        ("coder", "default", BAD_CPP, ("cpp", "failed")),
        ("strict", "debug", CPP, ("cpp", "passed")),
    ],
)
def test_cpp_is_compiled_whoever_answers(
    verifiers: VerifierSet, specialist: str, task: str, answer: str, expected: tuple[str, str]
) -> None:
    assert judged(verifiers, specialist, task, answer) == expected


@pytest.mark.parametrize(
    ("structure", "answer", "outcome"),
    [
        (CHOICE, "yes", "passed"),
        (CHOICE, "maybe", "failed"),
        (OBJECT, JSON, "passed"),
        (OBJECT, "[1]", "failed"),
        (NUMBER, '{"n": 1}', "passed"),
        (NUMBER, JSON, "failed"),
        (PATTERN, '{"a": "' + "a" * 60 + '!"}', "passed"),  # a caller's pattern costs no time
        (Structure(json_schema="{"), JSON, "passed"),
        (Structure(json_schema='{"$ref": "#"}'), BAD_JSON, "failed"),
    ],
)
def test_an_answer_with_a_structure_is_judged_against_it(
    verifiers: VerifierSet, structure: Structure, answer: str, outcome: str
) -> None:
    """The structure comes before the task and the specialist."""
    for specialist, task in (("writer", "default"), ("coder", "code_generation"), ("writer", "triage")):
        assert judged(verifiers, specialist, task, answer, structure) == ("structure", outcome)


def test_a_regular_expression_leaves_the_choice_to_the_task(verifiers: VerifierSet) -> None:
    assert judged(verifiers, "writer", "json_parsing", BAD_JSON, Structure(regex=".*")) == ("json", "failed")


@pytest.mark.parametrize("answer", [PROSE, PYTHON, BAD_PYTHON, JSON, "", "```\nx\n```"])
def test_the_task_does_not_split_what_a_strict_verifier_judges(verifiers: VerifierSet, answer: str) -> None:
    """Otherwise the pinned floor would see only the answers without code, which fail."""
    for task in ("default", "debug"):
        assert judged(verifiers, "strict", task, answer)[0] == "python:required"


def test_a_specialists_schema_is_applied_to_the_task(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(NUMBER.json_schema)
    specialist = SpecialistConfig("parser", verify="json:schema.json")
    tasks = (TaskConfig("strict", verify="json:schema.json"), TaskConfig("loose", verify="json"))
    ensemble = replace(ENSEMBLE, specialists=(specialist, SpecialistConfig("any", verify="json")))
    verifiers = open_verifiers(replace(ensemble, tasks=(*ensemble.tasks, *tasks), source=tmp_path / "octet.yaml"))
    for task in ("json_parsing", "loose", "default"):
        for intent in ("", "parse"):
            for answer, outcome in ((JSON, "failed"), ('{"n": 1}', "passed"), (PROSE, "failed")):
                assert judged(verifiers, "parser", task, answer, intent=intent) == ("json:schema.json", outcome)
    assert judged(verifiers, "any", "strict", JSON) == ("json:schema.json", "failed"), "the task's is the stricter one"


@pytest.mark.parametrize("answer", ABOUT_JSON)
def test_prose_about_json_fails_only_where_json_was_asked_for(verifiers: VerifierSet, answer: str) -> None:
    """The text of a question about JSON reads like one for JSON, so its task is no more than a guess."""
    for intent in ("", "ask", "unknown"):
        assert judged(verifiers, "writer", "json_parsing", answer, intent=intent) == ("non_empty", "passed")
    assert judged(verifiers, "writer", "json_parsing", answer, intent="parse") == ("json", "failed")


def test_verifiers_are_opened_again_if_an_intent_names_another_task() -> None:
    intents = (IntentConfig("parse", specialist="coder", task="json_parsing"), IntentConfig("ask"))
    assert _verifier_config(replace(ENSEMBLE, intents=intents)) == _verifier_config(ENSEMBLE)
    assert _verifier_config(replace(ENSEMBLE, intents=(IntentConfig("parse"),))) != _verifier_config(ENSEMBLE)


@pytest.mark.parametrize("answer", LIKE_JSON)
def test_what_looks_like_json_is_judged_as_json(verifiers: VerifierSet, answer: str) -> None:
    for intent in ("", "parse"):
        assert judged(verifiers, "writer", "json_parsing", answer, intent=intent) == ("json", "failed")


@pytest.mark.parametrize(
    ("specialist", "expected"),
    [("writer", ("non_empty", "passed")), ("strict", ("python:required", "failed")), ("coder", ("cpp", "unavailable"))],
)
def test_without_a_compiler_the_next_verifier_judges(specialist: str, expected: tuple[str, str]) -> None:
    verifiers = open_verifiers(ENSEMBLE)
    assert verifiers.opener is not None
    missing = FixedVerifier("cpp", Verdict("unavailable", "no compiler"))
    verifiers.opener._opened["cpp"] = missing
    verifiers = replace(verifiers, specialists={**verifiers.specialists, "coder": missing})
    for answer in (CPP, BAD_CPP):
        assert judged(verifiers, specialist, "code_generation", answer) == expected
