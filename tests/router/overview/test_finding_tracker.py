"""When a finding started, and how long it is reported."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import overview_pb2 as wire
from router.observe.overview.findings import CRITICAL, NOTE, Finding, FindingTracker, detect_findings
from tests.router.overview.harness import START_MS
from tests.router.overview.test_findings import FINE, RULES, facts_of


def step(memory: FindingTracker, seconds: float, *found: Finding) -> list[wire.Trouble]:
    return memory.step(found, seconds, START_MS + round(seconds * 1000))


def refusal(share: int = 12) -> Finding:
    return Finding(CRITICAL, "refusing", "debug", f"{share} % of requests refused", "capacity", "debug")


def test_short_findings_are_not_reported() -> None:
    memory = FindingTracker()
    assert step(memory, 0, refusal()) == [] and step(memory, 4, refusal()) == []
    assert step(memory, 4.5) == [] and step(memory, 5, refusal()) == [], "the finding began again"
    (trouble,) = step(memory, 10, refusal())
    assert trouble.since_unix_ms == START_MS + 5000, "the reported time must be the start of the finding"
    assert trouble.text == "debug: 12 % of requests refused since 22:13 UTC"


@given(st.lists(st.tuples(st.floats(0.1, 25), st.booleans()), max_size=40))
def test_a_reported_finding_does_not_flicker(steps: list[tuple[float, bool]]) -> None:
    """A reported finding stays, and keeps its start time, until it has been absent for half a minute."""
    memory, now, last_so, since = FindingTracker(), 0.0, None, None
    for seconds, is_so in steps:
        now += seconds
        reported = step(memory, now, *([refusal()] if is_so else []))
        last_so = now if is_so else last_so
        if since is None:
            since = reported[0].since_unix_ms if reported else None
        elif last_so is not None and now - last_so < 30:
            assert [each.since_unix_ms for each in reported] == [since]
        else:
            assert reported == []
            since = None
        assert memory.reported == {("refusing", "debug")} if reported else not memory.reported
        assert all(each.since_unix_ms <= START_MS + round(now * 1000) for each in reported)


def test_a_reported_finding_lasts_until_it_clears() -> None:
    """If the share of refused requests varies around the threshold, there is only a single finding."""
    memory, reported = FindingTracker(), []
    for second, refused in enumerate((6, 6, 4, 2, 6, 1, 4, 0, 6, 3) * 10):
        minutes = {"debug": replace(FINE, refused=refused)}
        found = detect_findings(replace(facts_of("debug"), traffic=minutes), RULES, memory.reported)
        reported.append([each.since_unix_ms for each in step(memory, 5.0 * second, *found)])
    assert reported[0] == [] and all(each == [START_MS] for each in reported[1:])
    assert not detect_findings(replace(facts_of("debug"), traffic={"debug": replace(FINE, refused=4)}), RULES)


def test_a_finding_that_is_over_is_marked() -> None:
    memory = FindingTracker()
    for second in (0, 60):
        step(memory, second, refusal())
    (trouble,) = step(memory, 85)
    assert trouble.text == ("debug: resolved at 22:14 UTC, still watched: 12 % of requests refused since 22:13 UTC")
    (trouble,) = step(memory, 86, refusal(13))
    assert trouble.text == "debug: 13 % of requests refused since 22:13 UTC", "the finding is present again"


def test_stored_findings_are_reported_at_start() -> None:
    wrong = Finding(CRITICAL, "correctness", "debug", "71 % are right", "bad-refresh", "debug")
    memory = FindingTracker()
    assert [each.kind for each in step(memory, 0, wrong, refusal())] == ["correctness"], (
        "findings about requests need some time of observation"
    )
    memory = FindingTracker()
    assert step(memory, 0) == [] and len(step(memory, 3, wrong)) == 1, "the store is read a little later"
    memory = FindingTracker()
    assert step(memory, 0) == [] and step(memory, 60, wrong) == [] and len(step(memory, 65, wrong)) == 1


def test_operator_decisions_are_reported_and_cleared_at_once() -> None:
    memory = FindingTracker()
    held = Finding(NOTE, "breaker_held", "debug", "held", since_ms=START_MS - 3 * 86_400_000)
    (trouble,) = step(memory, 0, held)
    assert trouble.since_unix_ms == START_MS - 3 * 86_400_000 and trouble.text.endswith("since 2023-11-11 22:13 UTC")
    assert step(memory, 0.5) == []
