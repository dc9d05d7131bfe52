"""Metrics and health as the router reports them over HTTP."""

import re
import urllib.request

from tests.faults.site import Site
from tests.patience import PATIENCE


def gauge(site: Site, name: str) -> float:
    """Return the sum of a metric's samples on the Prometheus page."""
    pattern = rf"^{name}(?:\{{[^}}]*\}})? (\S+)$"
    return sum(float(value) for value in re.findall(pattern, get(site, "/metrics"), re.MULTILINE))


def is_up(site: Site) -> bool:
    """Return whether the store is available."""
    return gauge(site, "octet_store_up") == 1


def get(site: Site, path: str) -> str:
    """Return a page's text. Raises HTTPError unless its status is 2xx."""
    with urllib.request.urlopen(f"{site.http}{path}", timeout=PATIENCE) as page:  # noqa: S310
        text: str = page.read().decode()
    return text
