"""The requests and the block pool of a simulation: which blocks are free, and which requests share blocks."""

from bisect import bisect_right
from math import ceil, inf

from admission.forecast.bookings import BookedRequest, ReplicaCapacity, pass_on_blocks, share_blocks

_EPSILON = 1e-9


class SimulatedRequest:
    """A request in the simulation, and its outcome: seconds from now until it begins, has its first token, and ends an
    answer of expected length. `end_round` counts the rounds (decode steps of all adapter stacks) until that end."""

    begun_at = first_at = finish_at = inf
    end_round = 0.0
    # While it decodes: the tokens known when decoding began, and the round in which it began.
    size = since = 0.0
    is_running = has_sharers = False
    holder: "SimulatedRequest | None" = None  # the holder of the blocks that it shares

    def __init__(self, request: BookedRequest) -> None:
        self.request = request
        self.rank = request.rank
        self.stack = request.stack
        self.is_urgent = request.is_urgent
        self.slots = request.slots  # for all tokens except shared ones; while it decodes, for those computed at `since`
        self.shared = request.shared
        booking = request.booking
        self.entry_slots = max(1, min(1 + booking.draft_window, booking.max_tokens - request.generated))
        """Slots that it needs when it enters, besides those for known tokens: one for the next token, and drafts."""
        self.left: float = request.prompt_left  # prompt tokens to compute
        self.to_go = request.expected_left  # answer tokens to come, as of the last time it was not decoding
        self.num_total = request.booking.prompt_tokens + request.generated + request.expected_left

    @property
    def long_round(self) -> float:
        """The round in which this request would end if its answer were among the longest."""
        return self.round_of(self.request.long_left)

    def round_of(self, num_left: float) -> float:
        """The round in which this request would end if `num_left` tokens of its answer were left now."""
        return self.end_round + max(0.0, num_left - self.request.expected_left)


class SimulatedPool:
    """Counts whole blocks, as the real pool does. From the start, a prompt has blocks for all its tokens, for the first
    answer token and for drafts. A decoding request takes another block when its last one is full."""

    def __init__(
        self,
        capacity: ReplicaCapacity,
        jobs: dict[BookedRequest, SimulatedRequest],
        prompts: list[SimulatedRequest],
        decoding: list[tuple[float, int, SimulatedRequest]],
    ) -> None:
        """`prompts` and `decoding` are the running requests. The simulation changes both lists in place."""
        self._jobs, self._prompts, self._decoding = jobs, prompts, decoding
        self._block_size, self._num_blocks = capacity.block_size, capacity.num_blocks
        self._entry_blocks = capacity.num_blocks - capacity.headroom
        self._heirs: dict[BookedRequest, SimulatedRequest] = {}  # the present holder of blocks, by their first holder
        self.used_slots = 0.0
        most_slots = max((job.entry_slots for job in jobs.values()), default=1)
        self._beyond_full = 1 + most_slots / capacity.block_size  # the most blocks of a request besides its full ones

    def count_shortage(self, job: SimulatedRequest, rounds: float) -> int:
        """Return how many more blocks must be free after `rounds` rounds for the job to enter."""
        return max(0, self._count_blocks(rounds) - self._room_besides(job))

    def count_held(self, job: SimulatedRequest, rounds: float) -> int:
        """Return how many blocks a running job alone holds after `rounds` rounds."""
        is_prompt = job in self._prompts
        slots = job.slots + job.entry_slots if is_prompt else job.slots + rounds - _EPSILON - job.since
        running = [*self._prompts, *(each for _, _, each in self._decoding)] if job.has_sharers else []
        passed_on = max((each.shared for each in running if each.holder is job), default=0)
        return ceil(slots / self._block_size) - int(passed_on // self._block_size)

    def _room_besides(self, job: SimulatedRequest) -> int:
        """Return how many blocks others may hold when the job enters: not its own, for its prompt, a token and its
        drafts, and not the headroom."""
        slots = job.slots + job.entry_slots
        if job.shared:
            slots += job.shared - self._find_holder(job)[1]
        return self._entry_blocks - ceil(slots / self._block_size)

    def has_room(self, job: SimulatedRequest, rounds: float) -> bool:
        """Whether the job's prompt and a token fit into the blocks free after `rounds` rounds, less the headroom."""
        num_free = self._room_besides(job)
        num_running = len(self._prompts) + len(self._decoding)
        least = self.used_slots / self._block_size  # blocks in use if all were full
        if least > num_free or least + num_running * self._beyond_full <= num_free:
            return least <= num_free
        return self._count_blocks(rounds) <= num_free

    def rounds_in_pool(self, rounds: float, count: float) -> float:
        """Return for how many of the next `count` rounds there are enough blocks; `rounds` rounds are done."""
        num_rows = len(self._decoding)
        num_running = num_rows + len(self._prompts)
        most = (self.used_slots + count * num_rows) / self._block_size + num_running * self._beyond_full
        if most <= self._num_blocks:
            return count
        further = range(1, ceil(count) + 1)
        return min(count, bisect_right(further, self._num_blocks, key=lambda each: self._count_blocks(rounds + each)))

    def _count_blocks(self, rounds: float) -> int:
        """Blocks in use after `rounds` rounds."""
        size, rounds = self._block_size, rounds - _EPSILON
        prompts = sum(-((-job.slots - job.entry_slots) // size) for job in self._prompts)
        return int(prompts + sum(-((job.since - job.slots - rounds) // size) for _, _, job in self._decoding))

    def add_running(self, job: SimulatedRequest) -> None:
        job.is_running = True
        if self._heirs:
            self._heirs.pop(job.request, None)
        self.used_slots += job.slots

    def remove_running(self, job: SimulatedRequest, slots: float) -> None:
        self.used_slots -= slots
        job.is_running = False
        if not job.has_sharers:
            return
        running = [*self._prompts, *(each for _, _, each in self._decoding)]
        if sharers := [each for each in running if each.holder is job]:
            before = sum(each.slots for each in sharers)
            heir = self._heirs[job.request] = pass_on_blocks(job, sharers, sharers)
            heir.has_sharers = True
            self.used_slots += sum(each.slots for each in sharers) - before

    def share_blocks(self, job: SimulatedRequest) -> None:
        """Let the request share blocks with their holder. If no holder runs, the request becomes the holder."""
        holder, shared = self._find_holder(job)
        self.used_slots += share_blocks(job, holder, shared)
        if holder is not None:
            holder.has_sharers = True
        elif job.request.holder is not None:
            self._heirs[job.request.holder] = job

    def _find_holder(self, sharer: SimulatedRequest) -> tuple[SimulatedRequest | None, float]:
        """Return the running holder of the sharer's shared blocks, and the shared tokens; (None, 0) if none runs."""
        shared, holder = sharer.shared, sharer.request.holder
        while holder is not None:
            job = self._jobs.get(holder)
            if job is not None and job.is_running:
                return job, shared
            heir = self._heirs.get(holder)
            if heir is None:
                break
            shared, holder = min(shared, heir.request.shared), heir.request
        return None, 0.0
