"""The arithmetic in a refusal adds up, as it is shown."""

import re
from dataclasses import replace
from fractions import Fraction
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from admission.forecast.bookings import Refuse
from admission.forecast.lateness import ShownSum
from tests.admission.forecast.builders import admit_all, booking, new_controller, run_at_once

SECONDS = r"(\d+\.\d+) s"
LIMITS = st.floats(0.001, 30.0)


def check_sentence(sentence: str, limit: str) -> None:
    """Check that the shown parts add up to the shown total, which is the limit and exceeds the shown deadline."""
    found = re.fullmatch(
        rf"(.*): {SECONDS} in all; its (?:deadline|first token) (?:is (?:due )?in {SECONDS}|.*)", sentence
    )
    assert found is not None, sentence
    parts = [Fraction(each) for each in re.findall(SECONDS, found[1])]
    total = Fraction(found[2])
    assert len(parts) >= 2 and sum(parts) == total, sentence
    assert limit == f"at least {found[2]} s"
    if found[3] is not None:
        assert total > Fraction(found[3]), sentence


@given(
    others=st.lists(st.tuples(st.integers(1, 600), st.integers(1, 800)), max_size=6),
    prompt=st.integers(1, 2000),
    tokens=st.integers(1, 2000),
    exact=st.booleans(),
    deadline=LIMITS,
    first=st.none() | LIMITS,
    slots=st.integers(1, 4),
)
def test_parts_of_every_refusal_add_up(
    others: list[tuple[int, int]],
    prompt: int,
    tokens: int,
    exact: bool,
    deadline: float,
    first: float | None,
    slots: int,
) -> None:
    controller = new_controller(max_running=slots)
    names = []
    for number, (prompt_tokens, max_tokens) in enumerate(others):
        names.append(f"other {number}")
        admit_all(controller, booking(names[-1], prompt_tokens=prompt_tokens, max_tokens=max_tokens))
    if names:
        run_at_once(controller, names[0])
    asked = booking("x", prompt_tokens=prompt, max_tokens=tokens, deadline=deadline, first_deadline=first)
    verdict = controller.decide(replace(asked, exact=exact), 0.0)
    if isinstance(verdict, Refuse) and verdict.reason == "deadline_unreachable":
        check_sentence(verdict.arithmetic, verdict.limit)


@given(
    parts=st.lists(st.floats(0, 1e4), min_size=1, max_size=3),
    margin=st.floats(0, 1e3),
    left=st.floats(-5, 1e4),
    is_first=st.booleans(),
)
def test_rounding_hides_no_part(parts: list[float], margin: float, left: float, is_first: bool) -> None:
    total = sum(parts) + margin
    if total <= left:
        left = total - 1e-5
    shown = ShownSum.of([("it takes {}", each) for each in parts], total, left)
    check_sentence(shown.sentence(is_first=is_first), f"at least {shown.total}")
    assert abs(float(shown.total.removesuffix(" s")) - total) <= 0.1 + 1e-9
    texts = [float(re.findall(SECONDS, each)[0]) for each in shown.parts]
    assert all(abs(text - part) <= 0.35 for text, part in zip(texts, parts, strict=False))


def test_work_without_an_end_has_no_sum() -> None:
    shown = ShownSum.of([("{} of work is ahead of it", inf)], inf, 2.0).sentence(is_first=False)
    assert shown == "the work ahead of it has no end in sight: an unlimited time in all; its deadline is in 2.0 s"
