import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lipt.common.observability.metrics import EVERYWHERE, Histogram
from lipt.coordinator.instruments import COORDINATOR
from lipt.worker.instruments import WORKER
from tests.prometheus import OBSERVABILITY, ROOT, promtool

DASHBOARD = OBSERVABILITY / "grafana" / "dashboards" / "lipt.json"
INSTRUMENTS = (*EVERYWHERE, *COORDINATOR, *WORKER)
ALERTS = (OBSERVABILITY / "alerts.yml").read_text("utf-8")
PAGE = (ROOT / "docs" / "observing.md").read_text("utf-8")
NAMES_OF_ALERTS = re.findall(r"^ +- alert: (\w+)$", ALERTS, re.MULTILINE)


def metrics_in(text: str) -> set[str]:
    histograms = {it.name for it in INSTRUMENTS if isinstance(it, Histogram)}
    named = set(re.findall(r"\blipt_\w+", text))
    return {
        bare if (bare := re.sub(r"_(bucket|sum|count)$", "", name)) in histograms else name
        for name in named
    }


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def test_dashboard_shows_every_metric_and_no_other() -> None:
    assert metrics_in("\n".join(expressions())) == {it.name for it in INSTRUMENTS}


@pytest.mark.lint
def test_prometheus_can_read_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(expressions())
    ]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(file))


@pytest.mark.lint
def test_prometheus_can_read_its_configuration_and_the_alerts() -> None:
    said = promtool("check", "config", "prometheus.yml")
    assert f"{len(NAMES_OF_ALERTS)} rules found" in said


@pytest.mark.lint
def test_prometheus_can_read_its_configuration_on_kubernetes(tmp_path: Path) -> None:
    # Debian builds it without what finds pods: this part alone is taken on trust.
    text = (OBSERVABILITY / "prometheus-kubernetes.yml").read_text("utf-8")
    finding = r"    kubernetes_sd_configs:\n(      .*\n)+"
    assert len(re.findall(finding, text)) == 2
    shutil.copy(OBSERVABILITY / "alerts.yml", tmp_path)
    (tmp_path / "p.yml").write_text(
        re.sub(finding, "    static_configs: [{targets: ['pod:9464']}]\n", text)
    )
    assert "is valid prometheus config file" in promtool("check", "config", str(tmp_path / "p.yml"))


@pytest.mark.lint
def test_alerts_pass_their_own_tests() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


@pytest.mark.parametrize("name", NAMES_OF_ALERTS)
def test_every_alert_is_tested_and_the_page_says_what_to_do(name: str) -> None:
    tests = (OBSERVABILITY / "alerts_test.yml").read_text("utf-8")
    # Once where it fires.
    assert re.search(rf"alertname: {name}\n +eval_time: .*\n +exp_alerts:", tests)
    assert f"runbook: docs/observing.md#{name.lower()}\n" in ALERTS
    assert f'| <a id="{name.lower()}"></a>`{name}` | ' in PAGE


def test_alerts_use_existing_metrics() -> None:
    named = metrics_in(ALERTS)
    assert len(named) > 10
    assert named <= {it.name for it in INSTRUMENTS}
    assert re.findall(r'<a id="(\w+)"', PAGE) == [name.lower() for name in NAMES_OF_ALERTS]
