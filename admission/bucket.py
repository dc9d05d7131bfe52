"""Retries in proportion to what is asked and answered: a failing specialist is never asked much more often than it
was."""


class RetryBucket:
    """Two purses. One is filled by answers, up to a fixed burst. The other is filled by requests that come and is worth
    no more than a share of those under way: when a replica takes many with it, many are tried again. Whatever happens,
    retries <= burst + ratio * answered + share * entered."""

    def __init__(self, burst: float, ratio: float, share: float) -> None:
        """`burst` retries at most at once; every answered request earns `ratio` of another. Beside them `share` of the
        requests under way may be tried again."""
        if min(burst, ratio, share) < 0:
            raise ValueError(f"burst, ratio and share must not be negative, got {burst:g}, {ratio:g} and {share:g}")
        self._burst = burst
        self._ratio = ratio
        self._share = share
        self._tokens = burst
        self._credit = 0.0
        self._num_inflight = 0

    @property
    def tokens(self) -> float:
        return self._tokens

    @property
    def credit(self) -> float:
        return self._credit

    def enter(self) -> None:
        """A request comes. It is under way until it leaves."""
        self._num_inflight += 1
        self._credit += self._share

    def leave(self) -> None:
        self._num_inflight -= 1
        self._credit = min(self._credit, self._share * self._num_inflight)

    def take(self) -> bool:
        """Whether a retry may go out; it is paid for if so."""
        if self._tokens >= 1:
            self._tokens -= 1
        elif self._credit >= 1:
            self._credit -= 1
        else:
            return False
        return True

    def answered(self) -> None:
        self._tokens = min(self._tokens + self._ratio, self._burst)
