"""Access to the Grafana dashboard, the alert rules and their queries."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

MONITORING = Path(__file__).parents[2] / "helm" / "monitoring"
BOARD: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text())
RULES: dict[str, Any] = yaml.safe_load((MONITORING / "rules.yml").read_text())
VARIABLES = {"$__rate_interval": "30s", "$specialist": ".*"}
"""The values that Grafana substitutes when all specialists are selected."""


class Query(NamedTuple):
    panel: str
    expr: str

    @property
    def asked(self) -> str:
        asked = self.expr
        for name, value in VARIABLES.items():
            asked = asked.replace(name, value)
        assert "$" not in asked, f"{self.panel}: unknown variable"
        return asked


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def board_queries() -> list[Query]:
    return [Query(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def families_in(expr: str) -> set[str]:
    """Return the metric families in an expression, without the suffixes of histogram series."""
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"|\b(by|on)\s*\([^)]*\)", " ", expr)
    names = re.findall(r"(?<![\w:])(?:octet|gen_ai|process)_\w+", plain)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
