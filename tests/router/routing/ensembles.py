"""A small ensemble with every feature of routing, and classifier results for it."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from octet.config.ensemble import (
    REJECT,
    ClassifierConfig,
    Ensemble,
    IntentConfig,
    RuleConfig,
    SpecialistConfig,
    TaskConfig,
)
from router.routing.classifier.base import ClassifierUnavailable, Distribution

ENSEMBLE = Ensemble(
    specialists=(
        SpecialistConfig("algo", fallback="stl", system="You know algorithms.", use_adapters=("fast", "small")),
        SpecialistConfig("build", fallback="debug", max_tokens=300),
        SpecialistConfig("debug", system="You find bugs.", max_tokens=5000, context=4096),
        SpecialistConfig("stl", fallback="algo"),
    ),
    intents=(
        IntentConfig("build-fix", specialist="build", task="debug"),
        IntentConfig("review", task="review", priority_floor=3),
        IntentConfig("codegen"),
    ),
    rules=(
        RuleConfig("linker", "build", detect="linker-output"),
        RuleConfig("sanitizer", "debug", detect="sanitizer-report"),
        RuleConfig("pool", "algo", contains=("thread pool", "thread-pool")),
    ),
    tasks=(
        TaskConfig("default"),
        TaskConfig("json_parsing", temperature=0.2, repetition_penalty=1.0),
        TaskConfig("code_generation", temperature=0.4, max_tokens=8192, repetition_penalty=1.05),
        TaskConfig("review", temperature=0.25, max_tokens=700),
        TaskConfig("debug", temperature=0.15, max_tokens=900),
    ),
)
NAMES = ENSEMBLE.names
INTENTS = tuple(intent.name for intent in ENSEMBLE.intents)
WITH_DEFAULT = replace(ENSEMBLE, default="stl")
DIGEST = "c" * 64


def opinion(**probabilities: float) -> Distribution:
    """Return a distribution with these probabilities. The remaining probability goes to `reject`."""
    return made({**probabilities, REJECT: 1.0 - sum(probabilities.values())})


def made(probabilities: dict[str, float]) -> Distribution:
    return Distribution.of(probabilities.items())


@st.composite
def opinions(draw: st.DrawFn, names: Sequence[str] = NAMES) -> Distribution:
    weights = {name: draw(st.integers(0, 100)) for name in (*names, REJECT)}
    total = sum(weights.values()) or 1
    if not any(weights.values()):
        weights[REJECT] = 1
    return made({name: weight / total for name, weight in weights.items()})


THRESHOLDS = st.builds(
    ClassifierConfig,
    path=st.sampled_from([None, "trained.safetensors"]),
    reject_threshold=st.floats(0, 1),
    min_confidence=st.floats(0, 1),
    second_threshold=st.floats(0, 1),
)
ENSEMBLES = st.builds(
    lambda thresholds, default: replace(ENSEMBLE, classifier=thresholds, default=default),
    THRESHOLDS,
    st.none() | st.sampled_from(NAMES),
)


class FixedOpinions:
    """A classifier that returns the same result, or no result, for every text."""

    digest = DIGEST

    def __init__(self, thought: Distribution | None, *, is_cached: bool = False) -> None:
        self._thought = thought
        self._is_cached = is_cached
        self.num_asked = 0

    def cached(self, text: str, tenant: str = "") -> Distribution | None:
        return self._thought if self._is_cached else None

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        self.num_asked += 1
        if self._thought is None:
            raise ClassifierUnavailable("its breaker is open")
        return self._thought
