"""The soak finds what it looks for, on a CPU and within a number of steps."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from specialist.engines.base import Completion
from specialist.scheduling.step import Step, StepOutcome
from specialist.server.replica import AssembledReplica
from tests.native import gpu_sanitize
from tests.native.gpu_soak import SMALL, DeviceMemory, soak


def test_random_load_keeps_every_law() -> None:
    found = soak("cpu", SMALL, steps=1500)
    assert found["compared"] > 5 and found["prefix tokens"] > 0 and found["accepted drafts"] > 0
    for what in ("ended: length", "ended: stop", "ended: cancelled", "ended: deadline", "preempted: admission"):
        assert found[what] > 0, what


def changes_tokens_of_large_steps(replica: AssembledReplica) -> None:
    run = replica.engine.run

    def wrong(step: Step) -> Iterable[Completion]:
        for completion in run(step):
            outcome = completion.outcome
            if len(step.rows) > 2 and isinstance(outcome, StepOutcome):
                sampled = tuple((1,) * len(each) if isinstance(each, tuple) else each for each in outcome.sampled)
                outcome = StepOutcome(sampled, outcome.logprobs)
            yield Completion(step, outcome)

    replica.engine.run = wrong  # type: ignore[method-assign]


def keeps_a_block(replica: AssembledReplica) -> None:
    pool: Any = replica.scheduler.pool
    release, kept = pool.release, list[Any]()

    def forgets(table: Any) -> Any:
        if kept:
            return release(table)
        return kept.append(table)

    pool.release = forgets


def fails_at_a_step(replica: AssembledReplica) -> None:
    def fails(step: Step) -> Iterable[Completion]:
        raise RuntimeError("a kernel broke")

    replica.engine.run = fails  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changes_tokens_of_large_steps, "another answer than alone"),
        (keeps_a_block, "blocks are in use without requests"),
        (fails_at_a_step, "a kernel broke"),
    ],
)
def test_a_planted_bug_is_found(change: Any, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        soak("cpu", SMALL, steps=500, change=change)


@pytest.mark.parametrize(("errors", "result"), [(0, "clean"), (2, "errors")])
@pytest.mark.slow
def test_a_sanitizer_sees_the_load(errors: int, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / gpu_sanitize.TOOL
    tool.write_text(
        '#!/bin/sh\n[ "$PYTORCH_NO_CUDA_MEMORY_CACHING $1 $2 $3 $4" = "1 --tool memcheck --error-exitcode 9" ] || '
        f'exit 3\nshift 4\n"$@" || exit 4\necho "========= ERROR SUMMARY: {errors} errors"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    report = gpu_sanitize.check("memcheck", "cpu", steps=30, timeout=120)
    assert (report["result"], report["errors"]) == (result, errors), report
    assert ("load" in report) == (not errors)


def test_memory_that_grows_is_found() -> None:
    memory = DeviceMemory("cuda", warm=(1 << 30, 2 << 30), last=((1 << 30) + (1 << 20), 2 << 30))
    memory.check()
    memory.last = (1 << 30, (2 << 30) + (65 << 20))
    with pytest.raises(AssertionError, match="memory grew"):
        memory.check()
