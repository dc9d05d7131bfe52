"""The board, the rules, and what they ask Prometheus."""

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
"""As Grafana puts them in where all specialists are chosen."""


class Query(NamedTuple):
    panel: str
    expr: str

    @property
    def asked(self) -> str:
        asked = self.expr
        for name, value in VARIABLES.items():
            asked = asked.replace(name, value)
        assert "$" not in asked, f"{self.panel}: a variable that nobody knows"
        return asked


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def board_queries() -> list[Query]:
    return [Query(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def families_in(expr: str) -> set[str]:
    """The names of series in an expression, without what histograms are made of."""
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"|\b(by|on)\s*\([^)]*\)", " ", expr)
    names = re.findall(r"(?<![\w:])(?:octet|gen_ai|process)_\w+", plain)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
