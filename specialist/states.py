"""How sequences enter and leave the pool: at once for pure attention, with their recurrent state for hybrids."""

from collections import OrderedDict
from collections.abc import Callable

from kvpool import AdmissionPlan, BlockKey, BlockPool
from specialist.sequence import Sequence
from specialist.state import SequenceState, Snapshot, SnapshotUnusable


class PureAttention:
    """Everything a sequence has computed is in its blocks."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool

    def plan(self, seq: Sequence, headroom: int) -> AdmissionPlan:
        return self.pool.admit(seq.chain, self._slots(seq), headroom=headroom)

    def enter(self, seq: Sequence, plan: AdmissionPlan) -> None:
        """Take the planned blocks. Raises SnapshotUnusable with all of them given back; planning again then works."""
        seq.table = self.pool.apply(plan)
        seq.num_computed = plan.num_hit_tokens

    def clip(self, seq: Sequence, num_tokens: int) -> int:
        """How many of the next `num_tokens` a chunk may cover."""
        return num_tokens

    def settle(self, seq: Sequence) -> None:
        """A commit has moved `num_computed`, or has rolled a step back to it."""

    def save(self, seq: Sequence) -> None:
        """The sequence is about to be preempted."""

    def drop(self, seq: Sequence) -> None:
        """The sequence has ended."""

    def _slots(self, seq: Sequence) -> int:
        return min(seq.reserve, self.pool.num_slots)


class Hybrid(PureAttention):
    """Attention and recurrent layers interleaved: a prefix can be resumed only where a snapshot stands.

    A hit needs every KV block and a snapshot at exactly that boundary. A preempted sequence keeps its state
    and its partial block on the host; if one of its full blocks is evicted meanwhile, they are worthless.
    """

    def __init__(self, pool: BlockPool, new_state: Callable[[], SequenceState], max_snapshot_bytes: int) -> None:
        super().__init__(pool)
        self._new_state = new_state
        self.max_snapshot_bytes = max_snapshot_bytes
        self.snapshots: OrderedDict[BlockKey, Snapshot] = OrderedDict()
        """By the key of the block they stand behind, the longest unused first."""
        self._num_bytes = 0
        self.num_failed_snapshots = 0

    @property
    def num_snapshot_bytes(self) -> int:
        """Held for later prompts and for the preempted together; never more than `max_snapshot_bytes`."""
        return self._num_bytes

    def plan(self, seq: Sequence, headroom: int) -> AdmissionPlan:
        if seq.saved is not None:
            plan = self._plan_resume(seq, seq.saved, headroom)
            if plan is not None:
                return plan
            self._forget_saved(seq)
        return self.pool.admit(seq.chain, self._slots(seq), headroom=headroom, resumable=self.snapshots.__contains__)

    def _plan_resume(self, seq: Sequence, saved: Snapshot, headroom: int) -> AdmissionPlan | None:
        """A plan that shares every full block below the saved boundary, or None if one is gone."""
        full = saved.num_tokens // self.pool.block_size
        boundary = seq.chain.keys(full)[full - 1] if full else None
        plan = self.pool.admit(seq.chain, self._slots(seq), headroom=headroom, resumable=lambda key: key == boundary)
        return plan if len(plan.hit) == full else None

    def enter(self, seq: Sequence, plan: AdmissionPlan) -> None:
        size = self.pool.block_size
        state = self._new_state()
        table = self.pool.apply(plan)
        try:
            if seq.saved is not None:
                partial = seq.saved.num_tokens % size != 0
                state.restore(seq.saved, table.block_ids[len(plan.hit)] if partial else None)
            elif plan.hit:
                key = seq.chain.keys(len(plan.hit))[len(plan.hit) - 1]
                self.snapshots.move_to_end(key)
                state.restore(self.snapshots[key], None)
        except Exception as error:
            self._forget(seq, plan)
            self.pool.release(table)
            raise SnapshotUnusable(f"{seq.request.request_id}: {error}") from error
        self._forget_saved(seq)
        seq.state, seq.table, seq.num_computed = state, table, state.num_tokens
        # Where a later prompt may want to resume: behind the last block its own lookup could cover, and where
        # this prompt parted from blocks that are cached but have no snapshot.
        seq.snapshot_at = (plan.num_cached * size, (seq.num_tokens - 1) // size * size)

    def _forget(self, seq: Sequence, plan: AdmissionPlan) -> None:
        if seq.saved is not None:
            self._forget_saved(seq)
        else:
            self._discard(seq.chain.keys(len(plan.hit))[len(plan.hit) - 1])

    def clip(self, seq: Sequence, num_tokens: int) -> int:
        """End the chunk at the first boundary inside it where a snapshot is wanted."""
        start = seq.num_computed
        ends = [at - start for at in seq.snapshot_at if start < at < start + num_tokens]
        return min(ends, default=num_tokens)

    def settle(self, seq: Sequence) -> None:
        if seq.state is None:
            return
        seq.state.trim(seq.num_computed)
        if seq.num_computed in seq.snapshot_at and seq.num_computed > 0:
            full = seq.num_computed // self.pool.block_size
            self._keep(seq.chain.keys(full)[full - 1], seq.state)

    def save(self, seq: Sequence) -> None:
        """What a preempted sequence saves goes before what later prompts might want; without room it is lost."""
        state, seq.state = seq.state, None
        if state is None or seq.num_computed == 0:
            return
        full, rest = divmod(seq.num_computed, self.pool.block_size)
        try:
            snapshot = state.snapshot(seq.running_table().block_ids[full] if rest else None)
        except Exception:  # the tokens can always be computed again
            self.num_failed_snapshots += 1
            return
        if snapshot is None:
            return
        seq.saved = snapshot
        self._num_bytes += snapshot.nbytes
        self._make_room()
        if self._num_bytes > self.max_snapshot_bytes:
            self._forget_saved(seq)

    def drop(self, seq: Sequence) -> None:
        seq.state = None
        self._forget_saved(seq)

    def _forget_saved(self, seq: Sequence) -> None:
        if seq.saved is not None:
            self._num_bytes -= seq.saved.nbytes
            seq.saved = None

    def _keep(self, key: BlockKey, state: SequenceState) -> None:
        if key in self.snapshots:
            self.snapshots.move_to_end(key)
            return
        snapshot = state.snapshot(None)
        if snapshot is not None:
            self.snapshots[key] = snapshot
            self._num_bytes += snapshot.nbytes
            self._make_room()

    def _make_room(self) -> None:
        while self.snapshots and self._num_bytes > self.max_snapshot_bytes:
            self._discard(next(iter(self.snapshots)))

    def _discard(self, key: BlockKey) -> None:
        self._num_bytes -= self.snapshots.pop(key).nbytes
