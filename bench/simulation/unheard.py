"""What the product writes to its log and nobody reads: a mistake that is caught and told is a mistake all the same."""

import logging

from bench.simulation.court import Court

_NAMES = ("router", "specialist", "octet", "admission")
_ON_PURPOSE = ("a mishap", "injected", "the step loop died", "the engine did not complete the step", "store")


class Unheard(logging.Handler):
    """While it is entered, nothing is logged anywhere else."""

    def __init__(self, court: Court) -> None:
        super().__init__(logging.WARNING)
        self._court = court
        self._before: list[tuple[logging.Logger, bool]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            return
        told = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        words = f"{told} {error}"
        is_on_purpose = any(each in words for each in _ON_PURPOSE)
        self._court.require(is_on_purpose, "nothing goes wrong unasked", record.name, told, repr(error))

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
