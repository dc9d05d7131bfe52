"""The choice of the next turn among running sequences, made by scanning all of them."""

from tests.simulation.laws.scheduler import LONGEST
from tests.specialist.naive_sequence import NaiveSequence, rank


class NaiveTurns:
    def __init__(self, age_bound: int) -> None:
        self.age_bound = age_bound
        self.running: list[NaiveSequence] = []
        """The running sequences, in the order in which they began to need their current kind of work: a prompt chunk, a
        token, or a step of their own."""
        self.num_prefills = self.num_decodes = 0
        self.owed: list[tuple[str, ...]] = []
        """Adapter stacks that could decode at the last prompt chunk and have had no step since."""
        self.stack: tuple[str, ...] | None = None
        self.last_decode: dict[tuple[str, ...], int] = {}
        """For each stack that can decode, the number of its last decode step. Until it has had one, the number of the
        last decode step before it could decode."""

    def file(self, seq: NaiveSequence) -> None:
        """Put the sequence last among the running ones, because it was just admitted or now needs a different kind of
        work (see `running`)."""
        self.leave(seq)
        seq.last_prefill = self.num_prefills
        self.running.append(seq)
        self._note_stacks()

    def leave(self, seq: NaiveSequence) -> None:
        self.running = [other for other in self.running if other is not seq]
        self._note_stacks()

    def pick(self) -> list[NaiveSequence]:
        suspects = [seq for seq in self.running if seq.suspect]
        prompts = [seq for seq in self.running if seq.remaining > 1]
        if suspects and not self.owed:
            return suspects[:1]
        if prompts and not self.owed:
            return self._prompts_of_one_stack(prompts)
        stack = self._stack_to_decode(self.owed or list(self.last_decode))
        return [seq for seq in self.running if seq.remaining == 1 and seq.adapters == stack and not seq.suspect]

    def count(self, served: list[NaiveSequence]) -> None:
        """Record that the next step serves these sequences. A step that runs only a suspect (a request that may have
        made an earlier step fail) is not counted as a turn."""
        if served[0].suspect:
            return
        if served[0].remaining > 1:
            self._count_prefill(served)
        else:
            self._count_decode(served[0].adapters)

    def owe(self) -> None:
        """Record the end of a prompt chunk: before the next chunk, every stack that can decode gets a step."""
        self.owed = list(self.last_decode)

    def _count_prefill(self, served: list[NaiveSequence]) -> None:
        self.num_prefills += 1
        stack = self._stack(served[0])
        for seq in stack if self._is_hurried(stack) else served:
            seq.last_prefill = self.num_prefills

    def _count_decode(self, stack: tuple[str, ...]) -> None:
        self.num_decodes += 1
        self.stack = stack
        self.last_decode[stack] = self.num_decodes
        self.owed = [other for other in self.owed if other != stack]

    def _prompts_of_one_stack(self, prompts: list[NaiveSequence]) -> list[NaiveSequence]:
        latest = self.num_prefills - self.age_bound
        overdue = sorted((s for s in prompts if s.last_prefill <= latest), key=lambda s: (s.last_prefill, rank(s)))
        order = overdue + sorted((s for s in prompts if s.last_prefill > latest), key=rank)
        stack = self._stack(order[0])
        return stack if self._is_hurried(stack) else [seq for seq in order if seq in stack]

    def _stack(self, first: NaiveSequence) -> list[NaiveSequence]:
        """Return the prompts of the sequence's stack, by rank."""
        prompts = [seq for seq in self.running if seq.remaining > 1 and not seq.suspect]
        return sorted((seq for seq in prompts if seq.adapters == first.adapters), key=rank)

    @staticmethod
    def _is_hurried(stack: list[NaiveSequence]) -> bool:
        """Return whether the stack's first prompt has a deadline so near that taking turns could make it late."""
        first = stack[0].request
        return any(
            each is not None and each < first.arrival + LONGEST for each in (first.deadline, first.first_deadline)
        )

    def _stack_to_decode(self, stacks: list[tuple[str, ...]]) -> tuple[str, ...] | None:
        overdue = any(self.num_decodes - self.last_decode[stack] >= self.age_bound for stack in stacks)
        if self.stack in stacks and not overdue:
            return self.stack
        return min(stacks, key=self.last_decode.__getitem__, default=None)

    def _note_stacks(self) -> None:
        stacks = [seq.adapters for seq in self.running if seq.remaining == 1 and not seq.suspect]
        known = {stack: last for stack, last in self.last_decode.items() if stack in stacks}
        self.last_decode = known | {stack: self.num_decodes for stack in stacks if stack not in known}
        self.owed = [stack for stack in self.owed if stack in stacks]
