"""Which verifier judges an answer: by the request's structure, the task, the kind of answer, the specialist."""

import shutil
from typing import Any

import pytest

from octet.config.ensemble import Ensemble, SpecialistConfig, TaskConfig, with_default_tasks
from octet.v1.specialist_pb2 import Choices, Structure
from router.verify.by_task import AnswerPurpose, VerifierSet, open_verifiers
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
)
CHOICE = Structure(choice=Choices(choices=["yes", "no"]))
OBJECT = Structure(json_object=True)
NUMBER = Structure(json_schema='{"type": "object", "required": ["n"]}')
PATTERN = Structure(json_schema='{"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}')


@pytest.fixture(scope="module")
def verifiers() -> VerifierSet:
    return open_verifiers(ENSEMBLE)


def judged(verifiers: VerifierSet, specialist: str, task: str, answer: str, structure: Any = None) -> tuple[str, str]:
    found = run(verifiers.verify(AnswerPurpose(specialist, task, structure), "question", answer))
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
