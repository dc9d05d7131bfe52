"""Taking turns under an age bound: stay with what is cheap, but let nobody be passed over for long."""

from octet.due import is_pressed
from specialist.sequence import Sequence

AdapterStack = tuple[str, ...]


class PrefillTurns:
    """Sequences whose prompt is not computed yet, best rank first; one passed over `age_bound` times goes first.

    But nobody of its own stack overtakes who is first in rank and pressed for time: turns would make all of them late.
    """

    def __init__(self, age_bound: int) -> None:
        self._age_bound = age_bound
        self._ticks = 0
        self._last_served: dict[Sequence, int] = {}

    def __len__(self) -> int:
        return len(self._last_served)

    def add(self, seq: Sequence) -> None:
        self._last_served[seq] = self._ticks

    def discard(self, seq: Sequence) -> None:
        self._last_served.pop(seq, None)

    def pick(self) -> list[Sequence]:
        """Whose prompts to compute next, in this order: all of one adapter stack. Empty when there are none."""
        if not self._last_served:
            return []
        stack = self._stack_of(min(self._last_served, key=self._urgency))
        return stack if _in_a_hurry(stack) else sorted(stack, key=self._urgency)

    def served(self, seqs: list[Sequence]) -> None:
        self._ticks += 1
        stack = self._stack_of(seqs[0])
        for seq in stack if _in_a_hurry(stack) else seqs:
            self._last_served[seq] = self._ticks

    def _stack_of(self, seq: Sequence) -> list[Sequence]:
        """By rank."""
        adapters = seq.request.lane.adapters
        return sorted((each for each in self._last_served if each.request.lane.adapters == adapters), key=_rank)

    def _urgency(self, seq: Sequence) -> tuple[float, ...]:
        last = self._last_served[seq]
        if self._ticks - last >= self._age_bound:
            return (0, last, *seq.rank)
        return (1, 0, *seq.rank)


class DecodeTurns:
    """Adapter stacks with sequences to decode; the current one goes on until another has waited `age_bound` steps.

    After a chunk of prompt every stack is owed a step, so that none waits for two chunks.
    """

    def __init__(self, age_bound: int) -> None:
        self._age_bound = age_bound
        self._ticks = 0
        self._groups: dict[AdapterStack, dict[Sequence, None]] = {}
        self._last_served: dict[AdapterStack, int] = {}
        self._current: AdapterStack | None = None
        self.owed: dict[AdapterStack, None] = {}

    def __len__(self) -> int:
        """How many stacks can decode."""
        return len(self._groups)

    def add(self, seq: Sequence) -> None:
        adapters = seq.request.lane.adapters
        if adapters not in self._groups:
            self._groups[adapters] = {}
            self._last_served[adapters] = self._ticks
        self._groups[adapters][seq] = None

    def discard(self, seq: Sequence) -> None:
        adapters = seq.request.lane.adapters
        group = self._groups.get(adapters, {})
        group.pop(seq, None)
        if not group:
            self._groups.pop(adapters, None)
            self._last_served.pop(adapters, None)
            self.owed.pop(adapters, None)

    def pick(self) -> list[Sequence]:
        """Every sequence of the stack whose turn it is. Empty when there are none."""
        if not self._groups:
            return []
        eligible = self.owed or self._last_served
        longest = min(eligible, key=self._last_served.__getitem__)
        overdue = self._ticks - self._last_served[longest] >= self._age_bound
        if self._current is not None and self._current in eligible and not overdue:
            return list(self._groups[self._current])
        return list(self._groups[longest])

    def served(self, adapters: AdapterStack) -> None:
        self._ticks += 1
        self._current = adapters
        self._last_served[adapters] = self._ticks
        self.owed.pop(adapters, None)

    def owe_all(self) -> None:
        self.owed = dict.fromkeys(self._groups)


def _rank(seq: Sequence) -> tuple[float, ...]:
    return seq.rank


def _in_a_hurry(stack: list[Sequence]) -> bool:
    """Whether it goes by rank alone."""
    return bool(stack) and is_pressed(stack[0].request.arrival, stack[0].request.nearest_deadline)
