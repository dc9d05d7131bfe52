"""Words for what a receipt holds in short: reasons, times, names."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType

REASONS = MappingProxyType(
    {
        "malformed": "it could not be read",
        "invalid_field": "a field was missing, out of range or too large",
        "prompt_too_long": "its prompt was too long",
        "unknown_adapter": "it named an adapter that nobody has",
        "adapter_refused": "an adapter could not be taken",
        "queue_full": "too many were waiting",
        "draining": "nothing new is taken there while it drains",
        "caller_stalled": "the caller stopped reading",
        "deadline": "its time was up",
        "engine_failed": "the engine failed at it",
        "replica_failed": "the replica could not serve any more",
        "not_ready": "it was not warm yet",
        "cancelled": "it was cancelled, or its caller was gone",
        "no_specialist": "nobody here should answer it",
        "unknown_specialist": "it named a specialist that is not here",
        "no_replica": "no replica could be reached",
        "replica_lost": "the replica was lost",
        "unknown_request": "nothing is known of such a request",
        "duplicate_request": "a request with its id was being answered",
        "internal": "the server failed at it",
        "deadline_unreachable": "it could not have been answered before its deadline",
        "would_delay_others": "letting it in would have made somebody late who was let in before",
        "shed": "it had to give way to a higher priority",
        "below_floor": "only higher priorities were taken",
        "demoted": "the specialist is kept from answering now, and nobody stands in for it",
        "unauthenticated": "it showed no key that is known",
        "forbidden": "its key may not do this",
        "key_limit": "its key had had all that it may have for now",
        "no_tools": "the specialist's model cannot call tools",
        "store_unavailable": "the store did not answer",
        "quarantined": "two replicas had died with the same content in flight",
    }
)
NO_ROOM = frozenset({"queue_full", "deadline_unreachable", "would_delay_others", "shed"})
"""Of one replica: another may have had room."""


@dataclass(frozen=True, slots=True)
class Part:
    """Sentences about one thing; none: there is nothing to say about it."""

    title: str
    sentences: tuple[str, ...]


def part(title: str, *sentences: str) -> Part:
    """Without those that are empty."""
    return Part(title, tuple(each for each in sentences if each))


def reason(word: str) -> str:
    """A newer server's reason is told by its own word."""
    return REASONS.get(word, word.replace("_", " "))


def time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def listed(things: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = list(things) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def sentence(text: str) -> str:
    """What somebody else wrote, with a full stop behind it."""
    stripped = text.strip()
    return stripped if not stripped or stripped[-1] in ".!?" else f"{stripped}."
