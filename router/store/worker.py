"""The store's thread, which has the only connection. Calls to it from the event loop have a time limit."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial, wraps
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar, cast

from octet.clock import Clock
from octet.fault_points import fault_injected, fault_message
from router.store.connection import (
    DatabaseConnection,
    DatabaseOpener,
    StoreCommitUnknown,
    StoreConnectionLost,
    StoreRejected,
)
from router.store.database import Database, StoreSnapshot, reconcile_database
from router.store.rows import StoreConflict, StoreUnavailable

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")
_log = logging.getLogger("router.store")
_RETRY_PAUSE_SECONDS = 0.1  # between two checks of whether a lost commit was made
_TURN_SECONDS = 5.0  # the longest wait of a call for its turn
_SETTLE_SECONDS = 10.0  # the longest investigation of whether a lost commit was made
_ANSWER_SECONDS = 20.0  # the longest duration of a call
_MAX_CALLS = 256


class StoreTask(Future[T]):
    """A call on the store's thread. `do` must be idempotent, because it is called again after a lost connection."""

    def __init__(self, do: Callable[[Database], T], settle_until: float) -> None:
        super().__init__()
        self.do = do
        self.settle_until = settle_until  # when the investigation of a lost commit ends


class ResponseTimer:
    """Measures how long the current database call has lasted. Set on the store's thread, read on the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None

    def timed(self, call: Callable[P, T]) -> Callable[P, T]:
        @wraps(call)
        def timed_call(*args: P.args, **kwargs: P.kwargs) -> T:
            self._since = self._clock.now()
            try:
                return call(*args, **kwargs)
            finally:
                self._since = None

        return timed_call

    @property
    def seconds(self) -> float:
        since = self._since
        return 0.0 if since is None else self._clock.now() - since


class WatchedConnection:
    def __init__(self, connection: DatabaseConnection, timer: ResponseTimer) -> None:
        self.blob = connection.blob
        self.abort = connection.abort
        self.begin = timer.timed(connection.begin)
        self.begin_reading = timer.timed(connection.begin_reading)
        self.commit = timer.timed(connection.commit)
        self.rollback = timer.timed(connection.rollback)
        self.execute = timer.timed(connection.execute)
        self.execute_each = timer.timed(connection.execute_each)
        self.has_tables = timer.timed(connection.has_tables)
        self.close = timer.timed(connection.close)


@dataclass(eq=False)
class StoreWorker:
    """Runs all blocking calls on its own thread. A call from the event loop returns in bounded time."""

    _opener: DatabaseOpener
    _migrate: Callable[[DatabaseConnection], None]
    clock: Clock
    _snapshot: StoreSnapshot

    def __post_init__(self) -> None:
        self._timer = ResponseTimer(self.clock)
        self._tasks: SimpleQueue[StoreTask[Any] | None] = SimpleQueue()
        self._connection: DatabaseConnection | None = None
        self._stopped: Callable[[], None] = lambda: None
        self.lost_commit = ""  # why the connection broke during a commit, while its outcome is investigated
        self._thread = Thread(target=self._run, name="octet-store", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self, stopped: Callable[[], None]) -> None:
        self._stopped = stopped
        self._tasks.put(None)

    def submit(self, task: StoreTask[T]) -> None:
        self._tasks.put(task)

    @property
    def num_waiting(self) -> int:
        return self._tasks.qsize()

    @property
    def silent_seconds(self) -> float:
        return self._timer.seconds

    def abort(self) -> None:
        """Abort the running statement. Any thread may call it. The next attempt opens a new connection."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    async def run(self, do: Callable[[Database], T]) -> T:
        return await self.run_and_shape(do, lambda result: result)

    async def run_and_shape(self, do: Callable[[Database], T], shape: Callable[[T], S]) -> S:
        """Run `do` on the store's thread. Then run `shape` on its result, on the event loop and before the results of
        later calls arrive. Return the result of `shape`."""
        if self.num_waiting >= _MAX_CALLS:
            raise StoreUnavailable(f"{_MAX_CALLS} calls already wait for the store")
        answer: asyncio.Future[tuple[S | None, Exception | None]] = self._loop.create_future()

        def resolve(result: S | None, error: Exception | None = None) -> None:
            if not answer.done():
                answer.set_result((result, error))

        task = self.call(do, lambda result: resolve(shape(result)), partial(resolve, None), _SETTLE_SECONDS)
        try:
            if not await wait_at_most(answer, _TURN_SECONDS) and not task.cancel():
                await wait_at_most(answer, _ANSWER_SECONDS - _TURN_SECONDS)
        finally:
            is_abandoned = task.cancel()
        if answer.done():
            result, error = answer.result()
            if error is None:
                return cast(S, result)
            if isinstance(error, StoreConflict):
                raise error
            is_certain = not isinstance(error, StoreCommitUnknown)
            raise StoreUnavailable(describe_error(error), certain=is_certain) from error
        seconds = _TURN_SECONDS if is_abandoned else _ANSWER_SECONDS
        raise StoreUnavailable(f"the store did not answer within {seconds:g} s", certain=is_abandoned)

    def call(
        self,
        do: Callable[[Database], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        settle: float = 0.0,
    ) -> StoreTask[T]:
        """Run `do` on the store's thread, then `done` or `failed` on the event loop, in the order of the calls."""

        def report(task: Future[T]) -> None:
            if not task.cancelled():
                error: Any = task.exception()  # never another BaseException, because those end the thread
                self.call_on_loop(partial(done, task.result()) if error is None else partial(failed, error))

        task = StoreTask(do, self.clock.now() + settle)
        task.add_done_callback(report)
        self.submit(task)
        return task

    def call_on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            _log.debug("the event loop was closed before the store")

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if task.set_running_or_notify_cancel():
                self._perform(task)
        self._disconnect()
        self._stopped()

    def _perform(self, task: StoreTask[T]) -> None:
        try:
            result = self._attempt(task)
        except Exception as error:
            if not isinstance(error, (StoreConnectionLost, StoreRejected, StoreConflict)):
                _log.exception("a store task failed unexpectedly")
            task.set_exception(error)
        else:
            task.set_result(result)
        finally:
            self.lost_commit = ""

    def _attempt(self, task: StoreTask[T]) -> T:
        """Run the task. After a lost connection, try once more, because the connection may have broken unnoticed. If it
        was lost during a commit, try again until `settle_until`."""
        num_failed = 0
        lost: StoreCommitUnknown | None = None
        while True:
            try:
                return task.do(self._open_database())
            except StoreConnectionLost as error:
                self._disconnect()
                num_failed += 1
                lost = error if isinstance(error, StoreCommitUnknown) else lost
                self.lost_commit = "" if lost is None else describe_error(error)
                if lost is None and num_failed >= 2:
                    raise
                if lost is not None and self.clock.now() >= task.settle_until:
                    raise lost from error
            if num_failed >= 2:
                self.clock.sleep(_RETRY_PAUSE_SECONDS)

    def _open_database(self) -> Database:
        if fault_injected("store.away"):
            raise StoreConnectionLost(fault_message("store.away"))
        if self._connection is None:
            connection = self._timer.timed(self._opener.open)()
            self._connection = WatchedConnection(connection, self._timer)
            try:
                self._migrate(self._connection)
            except Exception:
                self._disconnect()
                raise
        database = Database(self._connection, self._snapshot)
        reconcile_database(database)
        return database

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


async def wait_at_most(future: "asyncio.Future[T]", seconds: float) -> bool:
    """Wait at most `seconds` for the future, without cancelling it. Return whether it is done."""
    await asyncio.wait({future}, timeout=max(0.0, seconds))
    return future.done()


def describe_error(error: BaseException) -> str:
    return str(error) or type(error).__name__
