"""A specialist's top escalation level is the highest one that still changes a knob. Only intents that may be routed to
the specialist matter."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from admission.escalation import knobs_at_level
from octet.config.ensemble import EscalationConfig, IntentConfig
from router.control.knobs import EscalationController, KnobController
from router.control.state import SharedState
from tests.router.control.fake_replicas import FakeReplicas
from tests.router.control.harness import ENSEMBLE
from tests.router.store.stores import make_store

RULES = EscalationConfig(threshold_step=0.3, max_threshold=0.9, floor_step=2, max_floor=8)
intents = st.builds(
    IntentConfig,
    name=st.sampled_from(["codegen", "review", "chat", "unspecified"]),
    specialist=st.sampled_from([None, "algo", "stl"]),
    shadow_threshold=st.sampled_from([0.0, 0.3, 0.9]),
    priority_floor=st.sampled_from([0, 5, 9]),
)


@given(st.lists(intents, unique_by=lambda intent: intent.name), st.sampled_from(["algo", "stl", "debug"]))
def test_the_top_level_is_the_last_that_changes_a_knob(configured: list[IntentConfig], specialist: str) -> None:
    known = SharedState(
        replace(ENSEMBLE, intents=tuple(configured), escalation=RULES), make_store("memory"), FakeReplicas()
    )
    escalation = EscalationController(known, None)  # type: ignore[arg-type]
    rules = escalation.rules
    top = escalation.top_level(specialist)
    elsewhere = {intent.name for intent in configured if intent.specialist not in (None, specialist)} - {"unspecified"}
    base = KnobController(known, None, escalation).intents()  # type: ignore[arg-type]

    def knobs(level: int) -> list[tuple[float, int]]:
        """Return the knobs at this level, for every intent that may be routed to the specialist."""
        return [
            knobs_at_level(level, each.shadow_threshold, each.priority_floor, rules)
            for name, each in base.items()
            if name not in elsewhere
        ]

    assert knobs(top) == knobs(top + 1) == knobs(top + 9)
    assert top == 0 or knobs(top) != knobs(top - 1)
