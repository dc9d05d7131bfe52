"""Mistakes planted on purpose in scheduler, block pool, breaker, admission and router: the simulation must notice."""

import admission.breaker
import admission.forecast.desk
import admission.forecast.entry
import kvpool.chain
import router.decide.compose
import router.dispatch.course
import router.dispatch.dispatcher
import router.dispatch.live
import router.dispatch.relay
import router.replicas.replica
import specialist.loop
import specialist.service.engine_thread
import specialist.service.reception
from tests.laws.mutants import LEDGER, POOL, SCHEDULER, Mutant

BREAKER = admission.breaker.Breaker
DESK = admission.forecast.desk.Desk
COURSE = router.dispatch.course.Course
ENGINE = specialist.service.engine_thread.EngineThread

IN_THE_POOL = (
    Mutant("a reference is kept", POOL, "release", "block.ref_count -= 1", "block.ref_count -= block.key is None"),
    Mutant(
        "double free",
        POOL,
        "release",
        "in reversed(table.block_ids):",
        "in [*reversed(table.block_ids), *table.block_ids[:1]]:",
    ),
    Mutant("evicted block keeps its key", POOL, "_evict", 'block.key, block.tokens = None, b""', "pass"),
    Mutant("hash without adapter", kvpool.chain, "chain_root", "        adapters,\n", ""),
    Mutant("hash without tenant salt", kvpool.chain, "chain_root", "        tenant_salt,\n", "        b'',\n"),
    Mutant("a hit covers the last token", POOL, "_cacheable", "(len(chain) - 1)", "len(chain)"),
)

IN_THE_SCHEDULER = (
    Mutant(
        "preempt equal priority",
        SCHEDULER,
        "_admit_waiting",
        "seq.request.priority < head.request.priority",
        "seq.request.priority <= head.request.priority",
    ),
    Mutant("a cancel is lost", SCHEDULER, "end", "and self.ledger.finish(seq, reason, detail)", "and bool(detail)"),
    Mutant("a late end of a step counts", SCHEDULER, "commit", "if step is not self.in_flight:", "if False:"),
    Mutant("expired work runs", SCHEDULER, "assemble_step", "self.expire()", "pass"),
    Mutant("prefill starves decode", SCHEDULER, "_next_rows", "if running.to_decode.owed:", "if False:"),
    Mutant("no watermark", SCHEDULER, "_headroom", "if len(self.running) else 0", "if False else 0"),
    Mutant("called back into nowhere", LEDGER, "call_back", "self.waiting.push(seq)", "pass"),
    Mutant("an adapter is kept", ENGINE, "_finish", "    job.release()\n", "    pass\n"),
)

IN_THE_BREAKER = (
    Mutant("never closes", BREAKER, "succeeded", "self._opened = self._probed = None", "self._probed = None"),
    Mutant(
        "opens on too few", BREAKER, "failed", "self._num_failures >= self._most_failures", "self._num_failures >= 1"
    ),
    Mutant("never opens", BREAKER, "failed", "            self.trip()\n", "            pass\n"),
    Mutant("many probes at once", BREAKER, "allow", "if not self.would_allow:", 'if self.state == "open":'),
    Mutant("forgets no failure", BREAKER, "succeeded", "self._num_failures = 0", "pass"),
)

IN_ADMISSION = (
    Mutant(
        "nobody else counts",
        DESK,
        "_judge",
        "if check.own_late > 0 or check.hurt:",
        "if check.own_late > 0:",
    ),
    Mutant(
        "one's own deadline does not count", DESK, "_judge", "if check.own_late > 0 or check.hurt:", "if check.hurt:"
    ),
    Mutant("everybody is let in", DESK, "_judge", "if check.own_late > 0 or check.hurt:", "if False:"),
    Mutant("a line without an end", DESK, "_verdict", "self.books.num_live >= self.room.total", "False"),
    Mutant("come back at once", DESK, "_spread", "return jittered(seconds, self._jitter())", "return 0.0"),
    Mutant("written into no book", DESK, "enter", "    self.books.add(entry)\n", "    pass\n"),
)

IN_THE_ROUTER = (
    Mutant(
        "asked again after the first token",
        router.dispatch.dispatcher.Dispatcher,
        "_follow",
        "if attempt.started:",
        "if False:",
    ),
    Mutant("the wrong lane", router.decide.compose, "replica_request", "adapters=adapters,", "adapters=adapters[:1],"),
    Mutant(
        "poison goes round",
        COURSE,
        "_may_ask_again",
        "self._num_unsafe > _MOST_UNSAFE or self._num_paid >= self._most_attempts",
        "False",
    ),
    Mutant(
        "bytes are not given back",
        router.dispatch.live.LiveRequests,
        "_leave",
        "self._num_bytes -= live.num_bytes",
        "pass",
    ),
    Mutant("a place is not given back", router.replicas.replica.Replica, "leave", "self.inflight -= 1", "pass"),
    Mutant(
        "a chunk is written twice",
        router.dispatch.relay,
        "relay",
        "await write(raw)",
        "await write(raw); await write(raw)",
    ),
    Mutant("a cancel goes nowhere", router.dispatch.live.Live, "end", "self._task.cancel()", "pass"),
)
