"""Mistakes planted on purpose in scheduler, block pool, breaker, admission and router: the simulation must notice."""

import admission.breaker
import admission.forecast.desk
import admission.forecast.entry
import admission.forecast.judge
import admission.forecast.trial
import kvpool.chain
import octet.store.worker
import router.decide.compose
import router.dispatch.course
import router.dispatch.dispatcher
import router.dispatch.live
import router.dispatch.relay
import router.dispatch.sweep
import router.replicas.replica
import specialist.loop
import specialist.service.engine_thread
import specialist.service.reception
from tests.laws.mutants import LEDGER, POOL, SCHEDULER, Mutant

BREAKER = admission.breaker.Breaker
DESK = admission.forecast.desk.Desk
JUDGE = admission.forecast.judge.Judge
TRIAL = admission.forecast.trial.Trial
COURSE = router.dispatch.course.Course
ENGINE = specialist.service.engine_thread.EngineThread

IN_THE_POOL = (
    Mutant(
        "a reference is kept",
        POOL,
        "release",
        "block.ref_count -= 1",
        "block.ref_count -= block.key is None",
        laws=("InvariantViolation",),
    ),
    Mutant(
        "double free",
        POOL,
        "release",
        "in reversed(table.block_ids):",
        "in [*reversed(table.block_ids), *table.block_ids[:1]]:",
        laws=("nothing fails unheard",),
    ),
    Mutant(
        "evicted block keeps its key",
        POOL,
        "_evict",
        'block.key, block.tokens = None, b""',
        "pass",
        laws=("InvariantViolation",),
    ),
    Mutant(
        "hash without adapter",
        kvpool.chain,
        "chain_root",
        "        adapters,\n",
        "",
        laws=("no block crosses lanes or tenants",),
    ),
    Mutant(
        "hash without tenant salt",
        kvpool.chain,
        "chain_root",
        "        tenant_salt,\n",
        "        b'',\n",
        laws=("everything comes to an end",),
    ),
    Mutant(
        "a hit covers the last token",
        POOL,
        "_cacheable",
        "(len(chain) - 1)",
        "len(chain)",
        laws=("a hit never covers the last token",),
    ),
)

IN_THE_SCHEDULER = (
    Mutant(
        "preempt equal priority",
        SCHEDULER,
        "_admit_waiting",
        "seq.request.priority < head.request.priority",
        "seq.request.priority <= head.request.priority",
        laws=("only for a strictly higher priority",),
    ),
    Mutant(
        "a cancel is lost",
        SCHEDULER,
        "end",
        "and self.ledger.finish(seq, reason, detail)",
        "and bool(detail)",
        laws=("nobody is computed who was to end",),
    ),
    Mutant(
        "a late end of a step counts",
        SCHEDULER,
        "commit",
        "if step is not self.in_flight:",
        "if False:",
        laws=("no request stops the loop of steps",),
    ),
    Mutant(
        "expired work runs", SCHEDULER, "assemble_step", "self.expire()", "pass", laws=("no work past the deadline",)
    ),
    Mutant(
        "who has no token in time runs on",
        SCHEDULER,
        "expire",
        "if seq.deadline is None or seq.deadline > now:",
        "if seq.request.deadline is None or seq.request.deadline > now:",
        laws=("no work past the deadline of the first token",),
    ),
    Mutant(
        "prefill starves decode",
        SCHEDULER,
        "_next_rows",
        "if running.to_decode.owed:",
        "if False:",
        laws=("decode is not starved by prefill",),
    ),
    Mutant(
        "no watermark",
        SCHEDULER,
        "_headroom",
        "if len(self.running) else 0",
        "if False else 0",
        laws=("the watermark stays free",),
    ),
    Mutant(
        "called back into nowhere",
        LEDGER,
        "call_back",
        "self.waiting.push(seq)",
        "pass",
        laws=("waiting, running or aside",),
    ),
    Mutant("an adapter is kept", ENGINE, "_finish", "    job.release()\n", "    pass\n", laws=("no adapter is held",)),
)

IN_THE_BREAKER = (
    Mutant(
        "never closes",
        BREAKER,
        "succeeded",
        "self._opened = self._probed = None",
        "self._probed = None",
        laws=("a breaker is as it was told",),
    ),
    Mutant(
        "opens on too few",
        BREAKER,
        "failed",
        "self._num_failures >= self._most_failures",
        "self._num_failures >= 1",
        laws=("a breaker is as it was told",),
    ),
    Mutant(
        "never opens",
        BREAKER,
        "failed",
        "            self.trip()\n",
        "            pass\n",
        laws=("a breaker is as it was told",),
    ),
    Mutant(
        "many probes at once",
        BREAKER,
        "allow",
        "if not self.would_allow:",
        'if self.state == "open":',
        laws=("one probe at a time, and none before its time",),
    ),
    Mutant(
        "forgets no failure",
        BREAKER,
        "succeeded",
        "self._num_failures = 0",
        "pass",
        laws=("a breaker is as it was told",),
    ),
)

IN_ADMISSION = (
    Mutant(
        "nobody else counts",
        JUDGE,
        "weigh",
        "if check.own_late > 0 or check.hurt:",
        "if check.own_late > 0:",
        laws=("whoever is let in is in time, or gives way to somebody higher",),
    ),
    Mutant(
        "one's own deadline does not count",
        JUDGE,
        "weigh",
        "if check.own_late > 0 or check.hurt:",
        "if check.hurt:",
        laws=("whoever is let in is in time, or gives way to somebody higher",),
    ),
    Mutant(
        "a first token may come any time",
        TRIAL,
        "slack",
        "min(self._left(entry.first_deadline, times.first), self._left(entry.booking.deadline, times.end))",
        "self._left(entry.booking.deadline, times.end)",
        laws=("whoever is let in is in time, or gives way to somebody higher",),
    ),
    Mutant(
        "everybody is let in",
        JUDGE,
        "weigh",
        "if check.own_late > 0 or check.hurt:",
        "if False:",
        laws=("whoever is let in is in time, or gives way to somebody higher",),
    ),
    Mutant(
        "a line without an end",
        DESK,
        "_verdict",
        "self.books.num_live >= self.room.total",
        "False",
        laws=("no more wait than may",),
    ),
    Mutant(
        "come back at once",
        DESK,
        "_spread",
        "return jittered(seconds, self._jitter())",
        "return 0.0",
        laws=("a retry-after is worth something",),
    ),
    Mutant(
        "written into no book",
        DESK,
        "enter",
        "    self.books.add(entry)\n",
        "    pass\n",
        laws=("no more wait than may", "whoever is let in is in time, or gives way to somebody higher"),
    ),
)

IN_THE_ROUTER = (
    Mutant(
        "asked again after the first token",
        router.dispatch.dispatcher.Dispatcher,
        "_follow",
        "if attempt.started:",
        "if False:",
        laws=("once a token has come nobody else is asked",),
    ),
    Mutant(
        "a first token is waited for to the end",
        router.dispatch.sweep.Sweep,
        "look",
        "_waits_in_vain(each, now)",
        "False",
        laws=("nobody waits beyond the deadline of its first token",),
    ),
    Mutant(
        "the wrong lane",
        router.decide.compose,
        "replica_request",
        "adapters=adapters,",
        "adapters=adapters[:1],",
        laws=("the right answer",),
    ),
    Mutant(
        "poison goes round",
        COURSE,
        "_may_ask_again",
        "self._num_unsafe > _MOST_UNSAFE or self._num_paid >= self._most_attempts",
        "False",
        laws=("what may be poison is tried twice at most",),
    ),
    Mutant(
        "bytes are not given back",
        router.dispatch.live.LiveRequests,
        "_leave",
        "self._num_bytes -= live.num_bytes",
        "pass",
        laws=("no byte of a request is left at the router",),
    ),
    Mutant(
        "a place is not given back",
        router.replicas.replica.Replica,
        "leave",
        "self.inflight -= 1",
        "pass",
        laws=("nobody is left behind",),
    ),
    Mutant(
        "a chunk is written twice",
        router.dispatch.relay,
        "relay",
        "await write(raw)",
        "await write(raw); await write(raw)",
        laws=("the right answer",),
    ),
    Mutant(
        "a cancel goes nowhere",
        router.dispatch.live.Live,
        "end",
        "self._task.cancel()",
        "pass",
        laws=("a cancel ends a request",),
    ),
)

IN_THE_STORE = (
    Mutant(
        "a store that makes a mistake",
        octet.store.worker.Worker,
        "_attempt",
        "return job.do(self._database())",
        "raise TypeError(job)",
        laws=("nothing goes wrong unasked",),
    ),
)
