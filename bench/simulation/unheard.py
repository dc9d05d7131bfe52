"""What the product writes to its log and nobody reads: a mistake that is caught and told is a mistake all the same."""

import logging

from bench.simulation.court import Court
from bench.simulation.scheduler_laws import LawBroken

_NAMES = ("router", "specialist", "octet", "admission")


class Unheard(logging.Handler):
    """While it is entered, nothing is logged anywhere else. `excuses` are words of what was done on purpose."""

    def __init__(self, court: Court, excuses: tuple[str, ...]) -> None:
        super().__init__(logging.WARNING)
        self._court = court
        self._excuses = excuses
        self._before: list[tuple[logging.Logger, bool]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            return
        told = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        words = f"{told} {error}"
        if not any(each in words for each in self._excuses):
            _, _, law = told.partition(f"{LawBroken.__name__}: ")
            self._court.require(not law, law)
            self._court.blame(error, "nothing goes wrong unasked", record.name, told)

    def __enter__(self) -> "Unheard":
        for name in _NAMES:
            logger = logging.getLogger(name)
            self._before.append((logger, logger.propagate))
            logger.propagate = False
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for logger, propagate in self._before:
            logger.propagate = propagate
            logger.removeHandler(self)
        self._before.clear()
