"""What may go wrong in a script, by the words that tell of it: what it has armed, and nothing else."""

from bench.simulation.script import REPLICA_DEEDS, Script
from octet.mishap import words_of

_OF_FAULTS = ("injected", "the engine did not complete the step")
"""What engines' faults are called by those who meet them."""
_OF_AN_ABSENT_STORE = "the store does not answer"
"""Told where the error itself is not: a change is in force, and not yet written down."""
_OF_LOST_REPLICAS = "is quarantined"
"""So many replicas were lost with one content; its own doing or not."""


def excuses_of(script: Script) -> tuple[str, ...]:
    """Whatever is logged as an error has one of them in it."""
    setup = script.setup
    found = [words_of(point) for point in setup.mishaps]
    if setup.fault_rate:
        found += _OF_FAULTS
    if "store.away" in setup.mishaps:
        found.append(_OF_AN_ABSENT_STORE)
    if "step.dies" in setup.mishaps or any(deed.kind in REPLICA_DEEDS for deed in script.deeds):
        found.append(_OF_LOST_REPLICAS)
    return tuple(found)
