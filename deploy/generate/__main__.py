"""Write what is generated: `python -m deploy.generate`, which is `make generate`."""

from __future__ import annotations

from pathlib import Path

from deploy.generate import example_files
from deploy.generate.dashboard import dashboard

_DEPLOY = Path(__file__).parents[1]

for name, content in example_files().items():
    (_DEPLOY / name).write_text(content, encoding="utf-8")
_DASHBOARD = _DEPLOY / "observability" / "grafana" / "dashboards" / "lipt.json"
_DASHBOARD.write_text(dashboard(), encoding="utf-8")
