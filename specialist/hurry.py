"""When a chunk of prompt has to wait, because whoever decodes would be late behind it."""

from collections.abc import Iterable

from specialist.sequence import Sequence

LONE_CHUNKS = 2
"""Chunks in a step while nobody decodes: whoever comes meanwhile waits for its end, and it may stall."""
_STALL = 3.0
"""A chunk may well take so many times what it should."""
_FRESH = 0.2
"""What the last round counts for."""


class Hurry:
    """Rounds follow each other without chunks between them as long as somebody needs it who can still be in time, and
    only for prompts that rank behind it."""

    def __init__(self, chunk_seconds: float) -> None:
        """`chunk_seconds` is what a chunk is meant to take."""
        self._chunk = chunk_seconds
        self._round = 0.0

    def observe(self, seconds: float) -> None:
        """A decode step took so long."""
        self._round += _FRESH * (seconds - self._round) if self._round else seconds

    def holds(self, prompt: Sequence, running: Iterable[Sequence], now: float, num_chunks: int) -> bool:
        """Whether the prompt, of so many chunks, waits for one of those who run."""
        return any(
            seq.rank < prompt.rank
            and not seq.prefilling
            and not seq.suspect
            and self._needs_every_round(seq, now, num_chunks)
            for seq in running
        )

    def _needs_every_round(self, seq: Sequence, now: float, num_chunks: int) -> bool:
        if seq.request.deadline is None or not self._round:
            return False
        time_left = seq.request.deadline - now
        rounds = seq.max_total_tokens - seq.num_tokens
        behind_chunks = rounds * self._round + (min(rounds, num_chunks) + _STALL) * self._chunk
        return rounds * self._round <= time_left < behind_chunks
