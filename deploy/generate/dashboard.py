"""Grafana dashboard: the panels in Grafana's own format, which says each thing a dozen times.

`make generate` writes it as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from deploy.generate.panel import Panel
from deploy.generate.panels import ROWS

_COLUMNS = 24
_HEIGHT, _STAT_HEIGHT = 8, 4
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_STANDS_FOR = {
    "@C": 'instance=~"$coordinator"',
    "@W": 'instance=~"$worker"',
    "@R": "$__rate_interval",
}


def expressions(panel: Panel) -> dict[str, str]:
    """A panel's lines as Grafana has them: by their names."""
    return {name: _expanded(line) for name, line in panel.lines.items()}


def _expanded(expression: str) -> str:
    for short, long in _STANDS_FOR.items():
        expression = expression.replace(short, long)
    return expression


def dashboard() -> str:
    """The dashboard as Grafana reads it."""
    described = {
        "uid": "lipt",
        "title": "lipt",
        "description": "Coordinators and workers of lipt. Made by `make generate`.",
        "tags": ["lipt"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables())},
        "annotations": {"list": []},
        "links": [],
        "panels": list(_panels()),
    }
    return json.dumps(described, indent=2) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "refresh": 1,
    }
    for name, metric in (
        ("coordinator", "lipt_runs"),
        ("worker", "lipt_worker_phase_seconds_total"),
    ):
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": f"label_values({metric}, instance)", "refId": name},
            "definition": f"label_values({metric}, instance)",
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
            "sort": 1,
        }


def _panels() -> Iterator[dict[str, Any]]:
    """Rows below each other, and in each as many panels beside each other as there is room for."""
    numbers, top = count(1), 0
    for title, panels in ROWS:
        yield {
            "id": next(numbers),
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
            "panels": [],
        }
        top, left, height = top + 1, 0, _HEIGHT
        for panel in panels:
            if left + panel.width > _COLUMNS:
                top, left = top + height, 0
            height = _STAT_HEIGHT if panel.stat else _HEIGHT
            place = {"h": height, "w": panel.width, "x": left, "y": top}
            yield _panel(panel, next(numbers), place)
            left += panel.width
        top += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if panel.stat:
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "textMode": "name" if panel.title == "Version" else "value",
        }
    else:
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 8,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
    return {
        "id": number,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": name,
            }
            for index, (name, expression) in enumerate(expressions(panel).items())
        ],
    }
