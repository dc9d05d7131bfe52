class PoolExhausted(RuntimeError):
    """Blocks were asked for that the plan or the caller had not made sure of."""


class StalePlan(RuntimeError):
    """The pool changed between `admit()` and `apply()`; plan again."""


class InvariantViolation(AssertionError):
    """The pool contradicts itself: a bug, never a consequence of load."""
