"""Turns sequences into rows of a step, with blocks to write to."""

from kvpool import BlockPool, as_tokens
from specialist.sequence import Sequence
from specialist.speculation import Proposer
from specialist.step import Row

Drafts = dict[Sequence, tuple[int, ...]]


class RowBuilder:
    def __init__(self, pool: BlockPool, proposer: Proposer | None) -> None:
        self._pool = pool
        self._proposer = proposer
        self.num_failed_guesses = 0

    def drafts(self, seqs: list[Sequence]) -> Drafts:
        """Guesses for those who speculate, never past the longest answer they may give."""
        if self._proposer is None:
            return {}
        return {seq: self._guess(seq, self._proposer) for seq in seqs if seq.draft_window and not seq.suspect}

    def growing(self, seqs: list[Sequence], drafts: Drafts) -> dict[Sequence, int]:
        """Who needs new blocks to take its step, and how many."""
        size = self._pool.block_size
        growing = {}
        for seq in seqs:
            num_tokens = seq.num_tokens + len(drafts.get(seq, ())) if drafts else seq.num_tokens
            missing = num_tokens - len(seq.running_table().block_ids) * size
            if missing > 0:
                growing[seq] = -(-missing // size)
        return growing

    def row(self, seq: Sequence, num_tokens: int, drafts: tuple[int, ...] = ()) -> Row:
        """The next `num_tokens` known tokens and the drafts behind them."""
        table, start = seq.running_table(), seq.num_computed
        num_samples = 1 + len(drafts) if start + num_tokens == seq.num_tokens else 0
        tokens = seq.chain.tokens(start, start + num_tokens) + drafts
        stop = start + len(tokens)
        if stop > len(table.block_ids) * table.block_size:
            self._pool.grow(table, stop)
        seq.num_scheduled = len(tokens)
        return Row(seq, table, start, tokens, len(drafts), num_samples)

    def _guess(self, seq: Sequence, proposer: Proposer) -> tuple[int, ...]:
        limit = min(seq.draft_window, seq.max_total_tokens - seq.num_tokens - 1)
        if limit <= 0:
            return ()
        try:
            return as_tokens(proposer.propose(seq.chain.view(), limit)[:limit])
        except Exception:  # a guess is never worth a request
            self.num_failed_guesses += 1
            return ()
