"""The last few of many numbers, and where most of them lie."""

from collections import deque


class Recent:
    def __init__(self, most: int) -> None:
        self._values: deque[float] = deque(maxlen=most)
        self._sorted: list[float] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        self._values.append(value)
        self._sorted = None

    def quantile(self, share: float) -> float | None:
        """The smallest value that at least `share` of them do not exceed; None without values."""
        if not self._values:
            return None
        if self._sorted is None:
            self._sorted = sorted(self._values)
        return self._sorted[max(0, -int(-share * len(self._sorted) // 1) - 1)]
