"""Situations that a scheduler meets, each built afresh up to the step before the one to measure."""

from collections.abc import Sequence

from bench.pool_states import BLOCK_SIZE, hold
from bench.replica import ANSWER, Replica
from kvpool import TokenChain, chain_root
from specialist.request import Request

SHORT_PROMPT = 64
DRAFT_WINDOW = 4


class ConstantProposer:
    """Always the same guess, right or wrong."""

    def __init__(self, token: int) -> None:
        self._token = token

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        return (self._token,) * limit


def decoding(num_running: int, prompt_length: int = SHORT_PROMPT, max_running: int = 128) -> Replica:
    """Everyone decodes and nobody waits; the pool has room for as much again."""
    replica = Replica(2 * num_running * (prompt_length // BLOCK_SIZE + 8), max_running=max_running)
    replica.decode(replica.requests(num_running, prompt_length))
    return replica


def queueing(num_running: int, num_waiting: int) -> Replica:
    """Every seat is taken."""
    replica = decoding(num_running, max_running=num_running)
    replica.submit(replica.requests(num_waiting, SHORT_PROMPT))
    replica.scheduler.take_events()
    return replica


def speculating(num_running: int, prompt_length: int, *, accepted: bool) -> Replica:
    """Everyone decodes with a full draft window, of which all is accepted or nothing."""
    proposer = ConstantProposer(ANSWER if accepted else ANSWER + 1)
    replica = Replica(2 * num_running * (prompt_length // BLOCK_SIZE + 16), proposer=proposer)
    replica.decode(replica.requests(num_running, prompt_length, draft_window=DRAFT_WINDOW))
    return replica


def blocked(
    num_running: int,
    head_length: int,
    *,
    cached: bool = False,
    prompt_length: int = SHORT_PROMPT,
    more_important: bool = False,
) -> Replica:
    """Seats are free, blocks are not: the head of the queue is planned anew in every step, and never fits.

    A more important one does not even fit if all but one give way, so nobody does.
    """
    replica = Replica(2 * (head_length // BLOCK_SIZE) + 8_192, watermark=0.05)
    replica.decode(replica.requests(num_running, prompt_length))
    head = replica.requests(1, head_length, priority=int(more_important))
    if cached:
        _cache(replica, head[0])
    replica.pin_all_but(2 * num_running)
    replica.submit(head)
    replica.step(replica.answer())
    return replica


def prefilling(prompt_length: int, chunk: int, num_decoding: int = 0) -> Replica:
    """The first chunk of a long prompt is in flight; the next step is for those who decode, if there are any."""
    replica = Replica(4 * (prompt_length // BLOCK_SIZE) + 4_096, chunk=chunk)
    if num_decoding:
        replica.decode(replica.requests(num_decoding, SHORT_PROMPT))
    replica.submit(replica.requests(1, prompt_length))
    if num_decoding:
        replica.step(replica.answer())
    else:
        replica.scheduler.assemble_step()
    return replica


def outgrowing(num_running: int, prompt_length: int) -> Replica:
    """Each sequence needs a block for its next step, and there is one block too few: somebody is preempted."""
    replica = decoding(num_running, prompt_length)
    first = replica.in_flight.rows[0]
    while first.sequence.num_tokens < first.table.num_slots:
        replica.step(replica.answer())
    replica.pin_all_but(num_running - 1)
    return replica


def overtaken(num_running: int, num_victims: int) -> Replica:
    """A more important prompt arrives that fits only if `num_victims` of those who decode give way."""
    replica = decoding(num_running)
    replica.pin_all_but(0)
    num_blocks = num_victims * len(replica.in_flight.rows[0].table)
    replica.submit(replica.requests(1, num_blocks * BLOCK_SIZE - 1, priority=1))
    return replica


def _cache(replica: Replica, request: Request) -> None:
    """Someone outside the scheduler holds the whole prompt."""
    root = chain_root(request.lane, request.tenant_salt, replica.scheduler.config.kv_dtype, BLOCK_SIZE)
    hold(replica.pool, TokenChain(root, BLOCK_SIZE, request.prompt))
