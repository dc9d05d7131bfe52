"""Deliberate bugs in scheduler, block pool, breaker, admission and router, which the simulation must detect."""

import admission.breakers
import admission.forecast.bookings
import admission.forecast.controller
import admission.forecast.forecast
import kvpool.chain
import router.dispatch.attempts
import router.dispatch.dispatcher
import router.dispatch.live_requests
import router.dispatch.replicas.replica
import router.request
import router.routing.policy
import router.store.worker
import specialist.server.engine_thread
import specialist.server.preparation
from tests.laws.mutants import LEDGER, POOL, SCHEDULER, Mutant

BREAKER = admission.breakers.CircuitBreaker
CONTROLLER = admission.forecast.controller.AdmissionController
FORECAST = admission.forecast.forecast.Forecast
COURSE = router.dispatch.attempts.AttemptSequence
ENGINE = specialist.server.engine_thread.EngineThread

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
        laws=("no error is swallowed",),
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
        ", adapters)",
        ")",
        laws=("no block crosses lanes or tenants",),
    ),
    Mutant(
        "hash without tenant salt",
        kvpool.chain,
        "chain_root",
        "*names, tenant_salt",
        "*names, b''",
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
        "may_preempt(head.rank, seq.rank)",
        "head.rank[0] <= seq.rank[0]",
        laws=("only a strictly higher priority preempts a request",),
    ),
    Mutant(
        "a cancel is lost",
        SCHEDULER,
        "end",
        "and self.ledger.finish(seq, reason, detail)",
        "and bool(detail)",
        laws=("an ended request is not computed",),
    ),
    Mutant(
        "a late end of a step counts",
        SCHEDULER,
        "commit",
        "if step is not self.in_flight:",
        "if False:",
        laws=("no request stops the loop of steps", "the tokens are correct"),
    ),
    Mutant(
        "expired work runs", SCHEDULER, "assemble_step", "self.expire()", "pass", laws=("no work past the deadline",)
    ),
    Mutant(
        "a request without a token in time runs on",
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
        "_plan",
        "if len(self.running) else 0",
        "if False else 0",
        laws=("the watermark stays free",),
    ),
    Mutant(
        "a resumed request is not queued",
        LEDGER,
        "resume",
        "self.waiting.push(seq)",
        "pass",
        laws=("a live request is waiting, running or suspended",),
    ),
    Mutant(
        "an adapter is kept", ENGINE, "_finish", "    served.release()\n", "    pass\n", laws=("no adapter is held",)
    ),
)

IN_THE_BREAKER = (
    Mutant(
        "never closes",
        BREAKER,
        "succeeded",
        "self._opened = self._probed = None",
        "self._probed = None",
        laws=("a breaker follows its events",),
    ),
    Mutant(
        "opens on too few",
        BREAKER,
        "failed",
        "self._num_failures < self._most_failures",
        "self._num_failures < 1",
        laws=("a breaker follows its events",),
    ),
    Mutant(
        "never opens",
        BREAKER,
        "failed",
        "    self.trip()\n",
        "    pass\n",
        laws=("a breaker follows its events",),
    ),
    Mutant(
        "many probes at once",
        BREAKER,
        "allow",
        "if not self.would_allow:",
        'if self.state == "open":',
        laws=("one probe at a time, and none too early",),
    ),
    Mutant(
        "forgets no failure",
        BREAKER,
        "succeeded",
        "self._num_failures = 0",
        "pass",
        laws=("a breaker follows its events",),
    ),
)

IN_ADMISSION = (
    Mutant(
        "failures of others do not count",
        CONTROLLER,
        "_evaluate",
        "if check.is_fine:",
        "if check.own_late <= 0:",
        laws=("an admitted request is in time, or is preempted by a higher priority",),
    ),
    Mutant(
        "the request's own deadline does not count",
        CONTROLLER,
        "_evaluate",
        "if check.is_fine:",
        "if not check.delayed:",
        laws=("an admitted request is in time, or is preempted by a higher priority",),
    ),
    Mutant(
        "a first token may come any time",
        FORECAST,
        "slack",
        "min(self.left(request.first_deadline, times.first), self.left(request.booking.deadline, times.end))",
        "self.left(request.booking.deadline, times.end)",
        laws=("an admitted request is in time, or is preempted by a higher priority",),
    ),
    Mutant(
        "every request is admitted",
        CONTROLLER,
        "_evaluate",
        "if check.is_fine:",
        "if True:",
        laws=("an admitted request is in time, or is preempted by a higher priority",),
    ),
    Mutant(
        "an unbounded queue",
        CONTROLLER,
        "_decide",
        "self.bookings.num_live + self.places.num_beside(request.booking) >= self.capacity.max_booked",
        "False",
        laws=("no more requests are live than may run or wait",),
    ),
    Mutant(
        "retry-after is zero",
        CONTROLLER,
        "_spread",
        "return add_jitter(seconds, self._jitter())",
        "return 0.0",
        laws=("a retry-after is within its bounds",),
    ),
    Mutant(
        "written into no book",
        CONTROLLER,
        "book",
        "    self.bookings.add(request)\n",
        "    pass\n",
        laws=(
            "no more requests are live than may run or wait",
            "an admitted request is in time, or is preempted by a higher priority",
        ),
    ),
)

IN_THE_ROUTER = (
    Mutant(
        "asked again after the first token",
        router.dispatch.dispatcher.Dispatcher,
        "_run",
        "if attempt.has_started:",
        "if False:",
        laws=("no replica is tried after the first token",),
    ),
    Mutant(
        "a first token is waited for to the end",
        router.dispatch.replicas.fleet.Watchdog,
        "check",
        "now >= request.first_token_by + DEADLINE_SLACK and not request.has_first_token",
        "False",
        laws=("no request waits beyond its first-token deadline",),
    ),
    Mutant(
        "the wrong lane",
        router.routing.policy,
        "build_replica_request",
        "adapters=adapters,\n        sampling",
        "adapters=adapters[:1],\n        sampling",
        laws=("the tokens are correct",),
    ),
    Mutant(
        "a poisonous request is tried everywhere",
        COURSE,
        "_may_retry",
        "self._num_unsafe > _MAX_UNSAFE_RETRIES or self._num_paid >= self._max_attempts",
        "False",
        laws=("a request that may be poisonous is tried at most twice",),
    ),
    Mutant(
        "bytes are not given back",
        router.dispatch.live_requests.LiveRequests,
        "leave",
        "self.num_bytes -= request.num_bytes",
        "pass",
        laws=("no byte of a request is left at the router",),
    ),
    Mutant(
        "a slot is not freed",
        router.dispatch.replicas.replica.Replica,
        "leave",
        "self.inflight -= 1",
        "pass",
        laws=("no request is left behind",),
    ),
    Mutant(
        "a chunk is written twice",
        router.dispatch.dispatcher,
        "relay",
        "await write(raw)",
        "await write(raw); await write(raw)",
        laws=("the tokens are correct",),
    ),
    Mutant(
        "a cancel goes nowhere",
        router.request.Request,
        "end",
        "self._task.cancel()",
        "pass",
        laws=("a cancel ends a request",),
    ),
)

IN_THE_STORE = (
    Mutant(
        "a store that makes a mistake",
        router.store.worker.StoreWorker,
        "_attempt",
        "return task.do(self._open_database())",
        "raise TypeError(task)",
        laws=("no error without an injected fault",),
    ),
)
