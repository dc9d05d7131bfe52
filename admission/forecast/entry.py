"""One admitted request in the books."""

from math import inf

from admission.forecast.booking import Booking
from admission.forecast.lengths import Lengths
from admission.forecast.promise import Promise
from octet.due import due, earliest, is_pressed

Rank = tuple[int, float, float, int]
"""By priority, when it is due, arrival, and the order in the books."""


class Entry:
    """Where it stands, and what is left to do as far as one can tell."""

    __slots__ = (
        "begun_at",
        "booking",
        "end_round",
        "expected_left",
        "finish_at",
        "first_at",
        "generated",
        "hopeful_until",
        "left",
        "long_left",
        "lost_seat",
        "num_higher",
        "passed_over",
        "pressed",
        "priority",
        "promise",
        "prompt_left",
        "rank",
        "running",
        "since",
        "size",
        "slots",
        "stack",
        "to_go",
        "turn",
        "unsure",
    )

    def __init__(self, booking: Booking, index: int) -> None:
        self.booking = booking
        self.priority = booking.priority
        nearest = earliest(booking.deadline, booking.first_deadline)
        self.rank: Rank = (-booking.priority, due(booking.arrival, nearest), booking.arrival, index)
        """Smaller is served first."""
        self.pressed = is_pressed(booking.arrival, nearest)
        """It takes no turns with others of its stack."""
        self.stack = booking.adapters
        self.running = False
        self.lost_seat = False
        self.generated = 0
        self.prompt_left = 0
        """Tokens to compute before the next one can be sampled, but for the last of them while it decodes: then 0."""
        self.slots = 0
        """Of the pool, that it fills once its prompt is computed, but for those it shares."""
        self.expected_left = 0.0
        """Tokens to come."""
        self.long_left = 0.0
        """Tokens to come in one of the longest answers."""
        self.unsure = False
        """Nothing is known about how long its answer will be, but that it may be short."""
        self.promise: Promise | None = None
        self.passed_over = 0
        """Chunks since it had its last one, negative."""
        self.num_higher = 0
        """Of higher priority that were let in since."""
        self.hopeful_until = -inf
        """Until then it is taken for granted that it could be in time if there were nobody else."""
        # Written by a walk, to be read before the next one.
        self.begun_at = self.first_at = self.finish_at = inf
        self.turn = 0
        self.left = self.to_go = self.size = self.since = self.end_round = 0.0
        self.wait()

    def wait(self) -> None:
        """It is in line: everything known is to be computed, but for what is found in the cache."""
        booking = self.booking
        self.running = False
        known = booking.prompt_tokens + self.generated
        hit = min(booking.hit_tokens, booking.prompt_tokens - 1)
        self.prompt_left = known - hit
        self.slots = known - min(hit, booking.shared_tokens)

    def start(self, num_tokens: int, hit_tokens: int) -> None:
        self.running = True
        self.passed_over = 0
        self.prompt_left = num_tokens - hit_tokens
        self.slots = num_tokens - min(hit_tokens, self.booking.shared_tokens)

    def give_way(self) -> None:
        """Preempted: what it computed is likely to be found again, but for the last block."""
        self.running = False
        self.lost_seat = True
        self.hopeful_until = -inf
        self.prompt_left = max(1, min(self.prompt_left, self.slots))

    def grow(self, num_tokens: int) -> None:
        self.generated += num_tokens
        self.prompt_left = 0
        self.slots += num_tokens

    def guess(self, lengths: Lengths) -> None:
        booking, so_far = self.booking, self.generated
        self.unsure = not booking.exact and not lengths.known
        if booking.exact:
            self.expected_left = self.long_left = max(1.0, float(booking.max_tokens - so_far))
            return
        self.expected_left = max(1.0, lengths.mean(booking.max_tokens, so_far) - so_far)
        self.long_left = max(self.expected_left, float(lengths.long(booking.max_tokens, so_far) - so_far))

    @property
    def first_deadline(self) -> float | None:
        """None where its first token is there."""
        return None if self.generated else self.booking.first_deadline

    @property
    def timed(self) -> bool:
        """Whether there is a deadline that it may still miss."""
        return self.booking.deadline is not None or self.first_deadline is not None

    @property
    def shed_first(self) -> tuple[float, ...]:
        """Smallest goes first: shadows, the lowest class, who can wait, those without output, the newest."""
        booking = self.booking
        return (
            not booking.shadow,
            booking.priority,
            self.timed,
            self.generated > 0,
            -booking.arrival,
            -self.rank[3],
        )

    def shed_before(self, other: "Entry") -> bool:
        """Whether it gives way to the other: shadows to everybody else, else only lower priorities to higher ones."""
        if self.booking.shadow != other.booking.shadow:
            return self.booking.shadow
        return self.priority < other.priority


def rank_of(entry: Entry) -> Rank:
    return entry.rank


def newness(entry: Entry) -> tuple[float, ...]:
    """Greatest for who gives its seat up first: the lowest class, then the newest."""
    return entry.rank[0], *entry.rank[2:]
