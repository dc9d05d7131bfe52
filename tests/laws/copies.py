"""Laws of copied drafts: each continues a text of its own tenant, from a place that equals the newest tokens."""

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Tokens

from specialist.scheduling.sequence import Sequence
from specialist.scheduling.step import Row, Step
from tests.simulation.laws.scheduler import owner_of, require


class CopyLaws:
    def __init__(self) -> None:
        self._seqs: dict[str, Sequence] = {}
        self._ended: defaultdict[object, list[tuple[int, ...]]] = defaultdict(list)
        self.num_copied = 0  # rows with drafts from other answers

    def submitted(self, seq: Sequence) -> None:
        self._seqs[seq.request.request_id] = seq

    def ended(self, request_id: str) -> None:
        seq = self._seqs.pop(request_id)
        self._ended[owner_of(seq)].append(tuple(seq.chain.view()))

    def assembled(self, step: Step) -> None:
        for row in step.rows:
            if row.num_drafts:
                self._check(row)

    @staticmethod
    def _texts(seqs: Iterable[Sequence], owner: object) -> list[tuple[int, ...]]:
        return [tuple(seq.chain.view()) for seq in seqs if owner_of(seq) == owner]

    def _check(self, row: Row) -> None:
        seq = row.sequence
        known, drafts = tuple(seq.chain.view()), row.tokens[-row.num_drafts :]
        if seq.draft_source == "own_text":
            require(
                continues((*known, *drafts), len(known), known, drafts), "drafts repeat the request's own text", seq
            )
        elif seq.draft_source == "lane":
            self.num_copied += 1
            ending = (each for each in self._seqs.values() if each.finish_reason is not None)  # in this same event
            texts = [*self._ended[owner_of(seq)], *self._texts(ending, owner_of(seq))]
            found = any(continues(text, len(text), known, drafts) for text in texts)
            require(found, "drafts are copied from answers of the same lane and tenant only", seq)


def continues(text: Tokens[int], stop: int, known: Tokens[int], drafts: Tokens[int]) -> bool:
    """Whether the text has the two newest tokens of `known` before `stop`, and then the drafts."""
    return any(text[end - 2 : end] == known[-2:] and text[end : end + len(drafts)] == drafts for end in range(2, stop))
