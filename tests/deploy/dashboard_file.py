"""Reads the queries and variables of the committed dashboard from Grafana's JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from tools import DEPLOY

FILE = DEPLOY / "grafana" / "dashboards" / "strandline.json"
_LABEL_VALUES = re.compile(r"label_values\((.+),\s*(\w+)\)")


def document() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text()))


def panels() -> list[dict[str, Any]]:
    """Return the panels with content; rows are headings."""
    return [panel for panel in document()["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Return (title of the panel and letter of the target, expression) of each query."""
    return [(f"{panel['title']} {target['refId']}", target["expr"]) for panel in panels() for target in panel["targets"]]


def variables() -> dict[str, tuple[str, str]]:
    """Return name -> (series, label) of the variables that Grafana fills with the values of a label."""
    found = {}
    for variable in document()["templating"]["list"]:
        if variable["type"] == "query":
            match = _LABEL_VALUES.fullmatch(variable["query"])
            assert match is not None, variable["query"]
            found[variable["name"]] = (match[1], match[2])
    return found


def substituted(expr: str, values: dict[str, str], window: str) -> str:
    """Replace the variables in an expression as Grafana does."""
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    expr = expr.replace("$__rate_interval", window).replace("$__range", window)
    assert "$" not in expr, expr
    return expr
