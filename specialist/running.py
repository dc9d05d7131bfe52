"""The sequences that hold blocks, filed by what they need next."""

from collections.abc import Iterator

from specialist.sequence import Sequence
from specialist.turns import DecodeTurns, PrefillTurns


class Running:
    """Every admitted sequence is in exactly one of three files: to prefill, to decode, or a suspect to run alone."""

    def __init__(self, age_bound: int) -> None:
        self._members: dict[Sequence, None] = {}
        self.to_prefill = PrefillTurns(age_bound)
        self.to_decode = DecodeTurns(age_bound)
        self.suspects: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        """In order of admission."""
        return iter(self._members)

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._members

    def add(self, seq: Sequence) -> None:
        self._members[seq] = None
        self._file(seq)

    def discard(self, seq: Sequence) -> None:
        if self._members.pop(seq, seq) is None:
            self._unfile(seq)

    def refile(self, seq: Sequence) -> None:
        """What the sequence needs next may have changed."""
        self._unfile(seq)
        self._file(seq)

    def _file(self, seq: Sequence) -> None:
        if seq.suspect:
            self.suspects[seq] = None
        elif seq.prefilling:
            self.to_prefill.add(seq)
        else:
            self.to_decode.add(seq)

    def _unfile(self, seq: Sequence) -> None:
        self.to_prefill.discard(seq)
        self.to_decode.discard(seq)
        self.suspects.pop(seq, None)
