"""The door of a replica: what could never run here is refused before it queues."""

from dataclasses import replace

from kvpool import BlockPool, TokenChain, chain_root
from specialist.config import SchedulerConfig
from specialist.errors import InvalidRequest, LaneMismatch, NeverFits
from specialist.request import Request
from specialist.sequence import Sequence


class Intake:
    def __init__(self, pool: BlockPool, config: SchedulerConfig, *, speculates: bool) -> None:
        self._pool = pool
        self._config = config
        self._speculates = speculates
        self._num_received = 0

    def receive(self, request: Request) -> Sequence:
        """Raises Refused. An answer that would outgrow the whole pool is cut short instead."""
        self.check(request)
        self._num_received += 1
        return Sequence(
            request,
            self._chain(request),
            index=self._num_received,
            max_total_tokens=min(len(request.prompt) + request.max_tokens, self._pool.num_slots),
            draft_window=self._draft_window(request),
        )

    def check(self, request: Request) -> None:
        """Raises Refused for what could never run here."""
        self._check_lane(request)
        self._check_size(request)

    def _check_lane(self, request: Request) -> None:
        if differences := replace(request.lane, adapters=()).differences(self._config.lane):
            raise LaneMismatch(differences)

    def _check_size(self, request: Request) -> None:
        needed = self._pool.blocks_for(len(request.prompt) + 1)
        if needed > self._pool.capacity:
            raise NeverFits(needed, self._pool.capacity, self._pool.block_size)

    def _chain(self, request: Request) -> TokenChain:
        size = self._pool.block_size
        root = chain_root(request.lane, request.tenant_salt, self._config.kv_dtype, size)
        try:
            return TokenChain(root, size, request.prompt)
        except ValueError as error:
            raise InvalidRequest("prompt", str(error)) from error

    def _draft_window(self, request: Request) -> int:
        """A window that could never fit is given up: the request decodes without speculation."""
        fits = len(request.prompt) + 1 + request.draft_window <= self._pool.num_slots
        return request.draft_window if self._speculates and fits else 0
