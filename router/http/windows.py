"""What operators look through and act by, as the HTTP door hands it to its routes."""

from collections import Counter
from dataclasses import dataclass

from router.http.metrics import Scraped
from router.operator.desk import Desk
from router.slo.slos import Slos
from router.view.view import View


@dataclass(frozen=True, slots=True)
class Windows:
    desk: Desk
    view: View
    slos: Slos
    responses: Counter[tuple[str, int]]
    """What was answered, by route and status: counted here."""
    metrics: Scraped
    replica_metrics: Scraped
