"""What troubles are found in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from octet.config.ensemble import Ensemble
from octet.v1 import overview_pb2 as wire
from router.view.cache_reuse import Reuse
from router.view.traffic import Door, Minute


@dataclass(frozen=True, slots=True)
class Facts:
    overview: wire.Overview
    """Without troubles."""
    minutes: Mapping[str, Minute] = field(default_factory=dict)
    """By specialist: how many requests its rates are of."""
    door: Door = field(default_factory=Door)
    recent: Mapping[str, Reuse] = field(default_factory=dict)
    """By specialist: how many tokens its cache's reuse is of."""
    usual: Mapping[str, Reuse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rules:
    """From when on something is wrong, as the configuration has it."""

    alert_burn: float = 6.0
    """A promise that is used up this many times too fast, over every window."""
    refused: float = 0.05
    """A share of the requests above this is too much: what escalation begins at."""
    calm: float = 0.01
    """And one below this is none."""
    min_requests: int = 20
    """Fewer say nothing."""


def rules_of(ensemble: Ensemble) -> Rules:
    escalation = ensemble.escalation
    return Rules(ensemble.slo.alert_burn, escalation.refused, escalation.calm, escalation.min_requests)
