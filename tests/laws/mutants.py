"""Deliberate bugs: each is a small edit of product code that the laws must detect."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest

import kvpool.chain
import kvpool.host
import kvpool.pool
import specialist.scheduling.copied_text
import specialist.scheduling.ledger
import specialist.scheduling.scheduler
from specialist.engines.sim.engine import SimEngine, SimState
from specialist.scheduling.draft_model import DraftModel
from specialist.scheduling.drafting import DraftProposer


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    owner: Any
    """The class or module that holds the function."""
    function: str
    was: str
    becomes: str
    laws: tuple[str, ...] = ()
    """Laws of the simulation that may be the first to detect the bug. Its symptom decides which of them is first."""

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original: FunctionType = getattr(self.owner, self.function)
        mutated = _edited(original, self.was, self.becomes)
        monkeypatch.setattr(self.owner, self.function, mutated)
        for module in list(sys.modules.values()):
            # `vars` is used because `getattr` on some modules triggers imports that warn.
            if vars(module).get(self.function) is original:
                monkeypatch.setattr(module, self.function, mutated)


def _edited(function: FunctionType, was: str, becomes: str) -> Callable[..., Any]:
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(was) != 1:
        raise ValueError(f"{function.__qualname__} contains {was!r} {source.count(was)} times instead of once")
    namespace: dict[str, Any] = {}
    exec(source.replace(was, becomes), function.__globals__, namespace)  # noqa: S102
    edited: Callable[..., Any] = namespace[function.__name__]
    return edited


POOL = kvpool.pool.BlockPool
LEDGER = specialist.scheduling.ledger.Ledger
SCHEDULER = specialist.scheduling.scheduler.Scheduler
HYBRID = specialist.scheduling.ledger.Hybrid
HOST = kvpool.host.HostCache
LOOP = specialist.scheduling.scheduler.StepLoop

THE_SIX = (
    Mutant("hash without adapter", kvpool.chain, "chain_root", ", adapters)", ")"),
    Mutant(
        "double free",
        POOL,
        "release",
        "in reversed(table.block_ids):",
        "in [*reversed(table.block_ids), *table.block_ids[:1]]:",
    ),
    Mutant(
        "register before commit",
        SCHEDULER,
        "_launch",
        "self.num_steps += 1",
        "self.num_steps += 1\n"
        "    for row in rows:\n"
        "        self.pool.register(row.table, row.sequence.chain, min(row.stop, row.sequence.num_tokens))",
    ),
    Mutant(
        "preempt equal priority",
        SCHEDULER,
        "_admit_waiting",
        "may_preempt(head.rank, seq.rank)",
        "head.rank[0] <= seq.rank[0]",
    ),
    Mutant(
        "leak on abort while chunked",
        LEDGER,
        "finish",
        "self._release(seq)",
        "seq.prefilling and seq.num_computed or self._release(seq)",
    ),
    Mutant("hit covering the last token", POOL, "_cacheable", "(len(chain) - 1)", "len(chain)"),
)

MORE = (
    Mutant("a suspended request runs on", SCHEDULER, "assemble_step", "    self.ledger.preempt_suspended()\n", ""),
    Mutant("a resumed request is lost", LEDGER, "resume", "self.waiting.push(seq)", "pass"),
    Mutant("suspended beyond its end", LEDGER, "finish", "    self.suspended.pop(seq, None)\n", ""),
    Mutant("hash without tenant salt", kvpool.chain, "chain_root", "*names, tenant_salt", "*names, b''"),
    Mutant("evicted block keeps its key", POOL, "_evict", 'block.key, block.tokens = None, b""', "pass"),
    Mutant("late completion counts", SCHEDULER, "commit", "if step is not self.in_flight:", "if False:"),
    Mutant("every draft is accepted", specialist.scheduling.ledger, "accept", "== sampled[accepted]", "is not None"),
    Mutant("blocks freed in flight", LEDGER, "_release", "if seq.num_scheduled:", "if False:"),
    Mutant("the only runner is preempted", SCHEDULER, "_admit_waiting", "most=len(self.running) - 1", "most=99"),
    Mutant("no watermark", SCHEDULER, "_plan", "if len(self.running) else 0", "if False else 0"),
    Mutant(
        "draft window not reserved",
        specialist.scheduling.ledger.PureAttention,
        "_slots",
        "seq.reserve",
        "seq.num_tokens + 1",
    ),
    Mutant("noise not shared between draft and check", SimEngine, "_compute", "position + 1,", "row.stop,"),
    Mutant("stale suffix index", DraftProposer, "_own_text", "text.extend(known[len(text) :])", "pass"),
    Mutant(
        "drafts from another tenant",
        specialist.scheduling.copied_text.LaneTexts,
        "find",
        "self._ends.get(root, {}).get(newest.tobytes())",
        "next((each[key] for each in self._ends.values() if (key := newest.tobytes()) in each), None)",
    ),
    Mutant("a draft model keeps wrong guesses", DraftModel, "_follow", "if not is_right:", "if False:"),
    Mutant("a draft model keeps what has ended", DraftProposer, "ended", "self.model.model.forget(seq)", "pass"),
    Mutant(
        "newest in line first",
        LEDGER,
        "preempt",
        "self.waiting.push(seq)",
        "seq.rank = (9, 9e9, 9e9, 0); self.waiting.push(seq)",
    ),
    Mutant(
        "highest priority gives way",
        specialist.scheduling.scheduler,
        "victim_order",
        "preemption_order(seq.rank,",
        "preemption_order((-seq.rank[0], *seq.rank[1:]),",
    ),
    Mutant("prefill starves decode", SCHEDULER, "_next_rows", "if running.to_decode.owed:", "if False:"),
    Mutant("a budget for every stack", SCHEDULER, "_prefill_rows", "self._num_chunked,", "0,"),
    Mutant("stacks share without end", SCHEDULER, "_end_chunk", "self.budget.tokens(), self._num", "10**9, self._num"),
    Mutant("expired work runs", SCHEDULER, "assemble_step", "self.expire()", "pass"),
    Mutant("hit without a snapshot", HYBRID, "resumable", "self.snapshots.__contains__", "None"),
    Mutant("state written before commit", SimState, "stage", "[self._staged[0], *values]", "[values[-1], *values]"),
    Mutant("snapshot off by one", HYBRID, "settle", "keys(full)[full - 1]", "keys(full)[max(full - 2, 0)]"),
    Mutant("state keeps rejected drafts", SimState, "trim", "self._staged[ahead]", "self._staged[-1]"),
    Mutant(
        "resume without the tail block", SimState, "restore", "self._memory.write_block(tail, snapshot.tail)", "pass"
    ),
)

HOST_TIER = (
    Mutant(
        "copied after it was overwritten",
        LOOP,
        "complete",
        "        if host is not None:\n"
        "            host.copy_pending()\n"
        "        completions = list(self.engine.run(step))\n",
        "        completions = list(self.engine.run(step))\n        host is None or host.copy_pending()\n",
    ),
    Mutant("zeroed before it was spilled", LOOP, "_commit", "if host is not None and host.to_spill:", "if False:"),
    Mutant(
        "a failed copy is forgotten",
        HOST,
        "copy_pending",
        "self._store.spill([BlockCopy(block_id, place) for place, block_id in self.to_spill.items()])",
        "ordered, self.to_spill = self.to_spill, {}\n"
        "        self._store.spill([BlockCopy(block_id, place) for place, block_id in ordered.items()])",
    ),
    Mutant(
        "overwritten before it was spilled",
        HOST,
        "copy_pending",
        "    if self.to_spill:\n",
        "    if self.to_restore:\n"
        "        self._store.restore([BlockCopy(block_id, each.place) for block_id, each in self.to_restore.items()])\n"
        "    if self.to_spill:\n",
    ),
    Mutant("a place is used again too early", HOST, "hold", "del self._droppable[each.key]", "pass"),
    Mutant("a dropped block keeps its key", HOST, "keep", "del self.blocks[lost]", "pass"),
    Mutant("a spilled block is never copied", HOST, "keep", "self.to_spill[place] = block.block_id", "pass"),
    Mutant("a restored block is never copied", HOST, "restore", "self.to_restore[block.block_id] = found", "pass"),
)
"""Bugs of the host tier of the prefix cache."""
