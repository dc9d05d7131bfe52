"""Generation parameters come from the caller, or else from the task, within bounds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import DEFAULT_TASKS, Ensemble, SpecialistConfig, TaskConfig
from octet.v1 import inference_pb2 as wire
from router.request import Request
from router.routing.policy import (
    RoutingPolicy,
    build_replica_request,
    effective_max_tokens,
    effective_sampling,
    find_task,
    limit_adapters,
    requested_adapters,
)
from tests.router.routing.ensembles import DIGEST, ENSEMBLE, INTENTS, NAMES, opinion
from tests.router.routing.sample_requests import new_validator, sensible, validated_request

ASKS = sensible(NAMES, INTENTS).map(lambda message: new_validator().validate(message, None, None))
USUAL = replace(ENSEMBLE, tasks=DEFAULT_TASKS)
TASK = st.builds(
    TaskConfig, st.just("t"), st.floats(0, 2), st.integers(1, 10_000), st.floats(0.1, 1), st.floats(1.0, 2)
)


@given(ASKS, TASK)
def test_the_callers_parameters_win(ask: Request, task: TaskConfig) -> None:
    tuned = effective_sampling(ask, task)
    said = ask.sampling or wire.Sampling()
    for field, value in said.ListFields():
        assert getattr(tuned, field.name) == value
    for name in ("temperature", "top_p", "repetition_penalty"):
        assert getattr(tuned, name) == getattr(said if said.HasField(name) else task, name)
    assert {field.name for field, _ in tuned.ListFields()} == {
        *(field.name for field, _ in said.ListFields()), "temperature", "top_p", "repetition_penalty"
    }  # fmt: skip
    assert tuned is not ask.sampling


@given(ASKS, TASK, st.none() | st.integers(1, 10_000))
def test_the_smallest_length_limit_wins(ask: Request, task: TaskConfig, own: int | None) -> None:
    for each in ENSEMBLE.specialists:
        longest, source = effective_max_tokens(ask, task, replace(each, max_tokens=own))
        if ask.max_tokens is not None:
            assert (longest, source) == (ask.max_tokens, "caller")
        else:
            lower = task.max_tokens if own is None else min(task.max_tokens, own)
            assert longest == max(lower, ask.min_tokens or 0)
            assert {"task": task.max_tokens, "specialist": own, "caller": ask.min_tokens}[source] == longest


def test_code_generation_may_use_its_own_limit() -> None:
    """Without `max_tokens` of the caller or the specialist, a replica is asked for the task's 8,192 tokens."""
    ensemble = Ensemble((SpecialistConfig("stl"), SpecialistConfig("short", max_tokens=100)), tasks=DEFAULT_TASKS)
    ask = validated_request(prompt="Implement a lock-free queue.", force_specialists=["stl"])
    ask.decision = RoutingPolicy(ensemble).decide(ask, None, "")
    assert (ask.decision.max_tokens, ask.decision.max_tokens_from) == (8192, "task")
    asked = [build_replica_request(ask, each, (), 60.0).max_tokens for each in ensemble.specialists]
    assert asked == [8192, 100], "a specialist that answers instead keeps its own limit"


@given(ASKS)
def test_experts_are_counted_with_the_specialist(ask: Request) -> None:
    for specialist in ENSEMBLE.specialists:
        adapters = limit_adapters(requested_adapters(ask, specialist), ask.max_experts)
        wanted = ask.adapters or specialist.use_adapters
        assert adapters == wanted[: len(adapters)]
        assert len(adapters) == min(len(wanted), (ask.max_experts or 99) - 1)


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("Implement a lock-free queue.", "code_generation"),
        ("write a function that reverses a list", "code_generation"),
        ("Please review this class: struct A {};", "review"),
        ("My program crashes with a segmentation fault", "debug"),
        ("List the sort algorithms as JSON", "json_parsing"),
        ("What is the implementation of std::map? It has a long history in our repository.", "default"),
        ("How does previewing work in a debugger's JSON viewer?", "default"),
        ("x " * 100_000 + "\nNow review it.", "review"),
    ],
)
def test_the_text_determines_the_task(text: str, task: str) -> None:
    assert find_task(validated_request(prompt=text), ENSEMBLE).name == task


def test_the_task_of_an_intent_comes_before_the_text() -> None:
    decision = RoutingPolicy(ENSEMBLE).decide(validated_request(prompt="write a poem", intent="build-fix"), None, "")
    assert (decision.task, decision.sampling.temperature, decision.max_tokens) == ("debug", 0.15, 300)


def test_an_unknown_task_is_ignored() -> None:
    assert find_task(validated_request(prompt="write a poem about a song"), ENSEMBLE).name == "code_generation"
    assert find_task(validated_request(prompt="a short story"), ENSEMBLE).name == "default"


def test_detected_tasks_exist_in_ensembles() -> None:
    found = {
        find_task(validated_request(prompt=text), USUAL).name
        for text in ("as JSON", "review", "debug", "implement", "poem")
    }
    assert found == {task.name for task in DEFAULT_TASKS} - {"default"}


def test_greedy_stays_greedy() -> None:
    ask = validated_request(sampling=wire.Sampling(temperature=0.0))
    assert RoutingPolicy(ENSEMBLE).decide(ask, opinion(stl=0.9), DIGEST).sampling.temperature == 0.0
