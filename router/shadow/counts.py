"""What an operator is told of shadows."""

from octet.v1 import operator_pb2 as wire
from router.after.aftermath import Aftermath
from router.shadow.shadows import Shadows


def shadow_counts(shadows: Shadows, aftermath: Aftermath) -> wire.ShadowCounts:
    """Answers that waited too long to be compared were answered, and are shed as well."""
    sent, after = shadows.tally, aftermath.tally
    return wire.ShadowCounts(
        ordered=sent.ordered,
        sent=sent.sent,
        answered=sent.answered,
        shed=sent.shed + after.shed_shadows,
        failed=sent.failed,
        compared=after.compared,
    )
