"""Retries in proportion to what is answered: a failing specialist is never asked much more often than it was."""


class RetryBucket:
    def __init__(self, burst: float, ratio: float) -> None:
        """`burst` retries at most at once; every answered request earns `ratio` of another."""
        if burst < 0 or ratio < 0:
            raise ValueError(f"burst and ratio must not be negative, got {burst:g} and {ratio:g}")
        self._burst = burst
        self._ratio = ratio
        self._tokens = burst

    @property
    def tokens(self) -> float:
        return self._tokens

    def take(self) -> bool:
        """Whether a retry may go out; it is paid for if so."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def answered(self) -> None:
        self._tokens = min(self._tokens + self._ratio, self._burst)
