"""How many answers passed, for people."""

from admission.window import Counts


def pass_rate(counts: Counts) -> str:
    return f"{counts.good} of {counts.total} passed" + (f" ({counts.rate:.1%})" if counts.rate is not None else "")
