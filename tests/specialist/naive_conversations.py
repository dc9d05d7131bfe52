"""A record of earlier conversations as plain token lists. Nothing is ever dropped from it."""

from kvpool import BlockTable
from specialist.scheduling.step import ConversationMissReason
from tests.specialist.naive_sequence import NaiveSequence

Name = tuple[bytes, bytes]


class NaiveConversations:
    def __init__(self) -> None:
        self._left: dict[Name, tuple[tuple[str, ...], tuple[int, ...]]] = {}

    def ended(self, seq: NaiveSequence, table: BlockTable) -> None:
        tokens = seq.chain.tokens(0, table.num_registered * table.block_size)
        if not tokens or not seq.request.session_key:
            return
        adapters, before = self._left.get(_name(seq), ((), ()))
        if adapters != seq.adapters or before[: len(tokens)] != tokens:
            self._left[_name(seq)] = (seq.adapters, tokens)

    def why(self, seq: NaiveSequence, num_hit: int, size: int) -> ConversationMissReason:
        possible = (len(seq.chain) - 1) // size * size
        if num_hit == possible or seq.times_preempted:
            return ""
        if not seq.request.session_key:
            return "no_session"
        if _name(seq) not in self._left:
            return "first_time"
        adapters, left = self._left[_name(seq)]
        if adapters != seq.adapters:
            return "other_adapter"
        asked = seq.chain.tokens(0, possible)
        same = max(n for n in range(0, min(len(left), possible) + 1, size) if left[:n] == asked[:n])
        if num_hit < same:
            return "evicted"
        return "diverged" if same < min(len(left), possible) else ""


def _name(seq: NaiveSequence) -> Name:
    return seq.request.tenant_salt, seq.request.session_key
