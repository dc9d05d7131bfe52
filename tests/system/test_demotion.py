"""A specialist whose answers become empty, or stop compiling, is demoted. It stays demoted across a restart, and
returns only after a sustained recovery."""

from itertools import pairwise
from pathlib import Path

from octet.config.ensemble import CorrectnessConfig
from octet.v1 import operator_pb2 as wire
from tests.system.harness import (
    BAD,
    GOOD,
    UNCOMPILABLE,
    answerer,
    ask,
    ask_until,
    audit,
    breaker,
    ensemble,
    operate,
    router,
    running_replicas,
)

WINDOW = 3.0
QUICK = CorrectnessConfig(sample_rate=1.0, fresh_sample_rate=1.0, window=WINDOW, min_samples=4, breach=0.5)


def moves_of(entries: list[wire.AuditEntry]) -> list[wire.AuditEntry]:
    """Return the breaker's changes of state. On a slow machine it also records notes that change no state."""
    return [entry for entry in entries if entry.who == "breaker" and entry.before != entry.after]


async def test_demotion_outlasts_a_restart_and_recovery_ends_it(tmp_path: Path) -> None:
    settings = ensemble(f"sqlite:{tmp_path / 'state.db'}", QUICK)
    async with running_replicas("writer", "editor") as replicas:
        async with router(replicas, settings) as routed:
            assert set(await ask_until(routed, "writer")) == {"writer"}
            replicas.scripts["writer"].text = BAD
            seen = await ask_until(routed, "editor")
            assert set(seen) == {"writer", "editor"}
            info = await breaker(routed)
            assert (info.state, info.fallback) == ("shadow_only", "editor")
            received = await ask(routed)
            assert received.receipt is not None
            between = received.receipt.between
            assert (between.instead_of, between.correctness) == ("writer", "shadow_only")
            assert between.shadow.specialist == "writer"
        async with router(replicas, settings) as routed:
            received = await ask(routed)
            assert received.receipt is not None and received.receipt.specialist == "editor", (
                "the demotion survives a restart"
            )
            replicas.scripts["writer"].text = GOOD
            assert set(await ask_until(routed, "writer")) == {"editor", "writer"}
            moves = moves_of(await audit(routed))
        assert [(move.what, move.before, move.after) for move in moves] == [
            ("collapse", "closed", "shadow_only"),
            ("recover", "shadow_only", "recovering"),
            ("close", "recovering", "closed"),
        ]
        apart = [b.at_unix_ms - a.at_unix_ms for a, b in pairwise(moves)]
        assert min(apart) >= WINDOW * 1000 - 50


async def test_code_that_stops_compiling_demotes_its_specialist() -> None:
    patient = CorrectnessConfig(
        sample_rate=1.0, fresh_sample_rate=1.0, window=3600.0, min_samples=3, breach=0.5, verify_seconds=100.0
    )
    async with (
        running_replicas("writer", "editor") as replicas,
        router(replicas, ensemble("memory", patient, "cpp")) as routed,
    ):
        assert await answerer(routed) == "writer"
        replicas.scripts["writer"].text = UNCOMPILABLE
        await ask_until(routed, "editor")
        info = await breaker(routed)
        assert (info.state, info.verifier) == ("shadow_only", "cpp")
        assert info.pass_rate < 0.8 and info.samples >= 3
        assert [move.what for move in moves_of(await audit(routed))] == ["trip"]


async def test_no_caller_and_no_operator_reads_a_collapsed_answer_in_the_reason() -> None:
    """The reason of a demotion reaches every tenant, so it describes the answers and quotes none."""
    patient = CorrectnessConfig(sample_rate=1.0, fresh_sample_rate=1.0, window=600.0)
    secret = "squirrel"
    async with (
        running_replicas("writer", "editor") as replicas,
        router(replicas, ensemble("memory", patient)) as routed,
    ):
        replicas.scripts["writer"].text = f"{secret} " * 100
        await ask_until(routed, "editor")
        fallen, forced = await ask(routed), await ask(routed, force_specialists=["writer"])
        assert fallen.receipt is not None and forced.error is not None and forced.receipt is not None
        assert "of the last 12 judged answers are" in fallen.receipt.between.why
        assert "degenerate (a unit of 9 characters repeats" in forced.error.message
        overview = await operate(routed, "GetOverview", wire.GetOverviewRequest(), wire.Overview)
        shown = (fallen.receipt, forced.error, forced.receipt, overview, await breaker(routed), *await audit(routed))
        assert not [each for each in shown if "squirrel" in str(each)]
