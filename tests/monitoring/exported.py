"""The metric families of an exposition."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class ExportedFamily:
    name: str
    """The name in the exposition."""
    kind: str
    about: str
    labels: frozenset[str]
    """Labels of the samples, empty until there are samples."""


def families(page: str) -> list[Metric]:
    return list(text_string_to_metric_families(page))


def exported(page: str) -> Iterator[ExportedFamily]:
    """Yield all metric families except the process metrics."""
    for family in families(page):
        if family.name.startswith("process_"):
            continue
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield ExportedFamily(name, family.type, family.documentation, frozenset(labels))
