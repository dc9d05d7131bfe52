"""What the router says, from a thread of its own: the latest overview, when it came, and why nothing newer comes."""

from collections.abc import Callable
from threading import Event, Lock, Thread

from octet.clock import Clock
from octet.sdk.errors import Cancelled, OctetError
from octet.sdk.operator import Operator
from octet.sdk.overview import Overview
from octet.top.state import Known

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 5.0
_SILENT_S = 15.0
"""A stream that says nothing for so long is begun anew: it may be one that nobody ends."""


class Feed:
    """`with Feed(connect, clock, wake) as feed: ...`. `wake` is called for all news, from the feed's thread."""

    def __init__(self, connect: Callable[[], Operator], clock: Clock, wake: Callable[[], None]) -> None:
        self._connect = connect
        self._clock = clock
        self._wake = wake
        self._lock = Lock()
        self._overview: Overview | None = None
        self._came = 0.0
        self._heard = clock.now()
        """When the stream was last known to be alive."""
        self._error: Exception | None = None
        """Of the last try; None while the stream stands."""
        self._trouble = ""
        self._operator: Operator | None = None
        self._begun = Event()
        self._ending = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Feed":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._close()
        self._thread.join()

    def first(self, seconds: float) -> Known | None:
        """None where nothing came in the time given. Raises OctetError, OSError or ValueError where the first try
        failed."""
        if not self._begun.wait(seconds):
            return None
        known = self.known()
        if known is None and self._error is not None:
            raise self._error
        return known

    def known(self) -> Known | None:
        with self._lock:
            if self._overview is None:
                return None
            return Known(self._overview, self._clock.now() - self._came, self._trouble)

    def renew(self) -> None:
        """Begins the stream anew where it has been silent for too long."""
        with self._lock:
            silent = not self._trouble and self._clock.now() - self._heard > _SILENT_S
            if silent:
                self._trouble = f"trying again: nothing was heard for {_SILENT_S:g} s"
        if silent:
            self._close()

    def _run(self) -> None:
        wait = _FIRST_WAIT_S
        while not self._ending.is_set():
            try:
                if self._watched():
                    wait = _FIRST_WAIT_S
            except (OctetError, OSError, ValueError) as error:
                self._failed(error)
            self._ending.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _watched(self) -> bool:
        """To the end of one stream; whether anything came. Raises OctetError, OSError, ValueError."""
        with self._connect() as operator:
            with self._lock:
                self._operator = operator
                self._heard = self._clock.now()
            if self._ending.is_set():
                return False
            came = False
            try:
                for overview in operator.watch_overview():
                    came = True
                    self._took(overview)
            except OctetError as error:
                self._failed(error)
            else:
                self._failed(None)
            return came

    def _took(self, overview: Overview) -> None:
        with self._lock:
            self._overview, self._error, self._trouble = overview, None, ""
            self._came = self._heard = self._clock.now()
        self._begun.set()
        self._wake()

    def _failed(self, error: Exception | None) -> None:
        """None: the stream ended by itself."""
        if self._ending.is_set():
            return
        with self._lock:
            self._error = error
            if not isinstance(error, Cancelled) or not self._trouble:  # cancelled: it was silent, which is told already
                self._trouble = f"trying again: {_first_words(error)}"
        self._begun.set()
        self._wake()

    def _close(self) -> None:
        with self._lock:
            operator = self._operator
        if operator is not None:
            operator.close()


def _first_words(error: Exception | None) -> str:
    """Without the advice behind them: it is being followed."""
    return "the router ended the stream" if error is None else str(error).partition(";")[0]
