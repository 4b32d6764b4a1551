"""A real Prometheus scrapes real runs over mutual TLS, and knows what became of them."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from lipt.common.errors import UnknownRunError
from lipt.common.network.tls import TlsFiles
from lipt.trainer import Client
from lipt.trainer.views import RunView
from tests.certificates import Certificates
from tests.cluster import SMALL_RUN, Cluster
from tests.prometheus import OBSERVABILITY, Prometheus, prometheus, promtool, tool

# Where a value comes from what a CPU does not have.
EMPTY_ON_CPUS = {"Memory of CUDA devices"}
DASHBOARD = OBSERVABILITY / "grafana" / "dashboards" / "lipt.json"
PANELS: dict[str, list[str]] = {
    panel["title"]: [target["expr"] for target in panel["targets"]]
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    if panel["type"] != "row"
}


class Scraped(NamedTuple):
    """What was run, who has scraped it, and what it says by itself."""

    prometheus: Prometheus
    runs: list[RunView]
    texts: list[str]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Two runs of four learners on two workers, one subset, and two questions that are refused."""
    tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    certificates = Certificates.made(folder / "certificates")
    certificates.make("worker", "box", "--host", "127.0.0.1")
    metrics = ("--metrics-listen", "127.0.0.1:0")
    with Cluster(folder) as cluster:
        coordinator = cluster.start_coordinator(*metrics, *certificates.flags("coordinator"))
        workers = [
            cluster.start_worker(name, *metrics, *certificates.flags("box")) for name in "ab"
        ]
        addresses = [
            process.wait_for(r"metrics on (\S+)/metrics")[1] for process in (coordinator, *workers)
        ]
        scraping = _job("lipt-coordinator", addresses[:1], certificates)
        scraping += _job("lipt-worker", addresses[1:], certificates)
        trainer = certificates.files("trainer")
        with prometheus(folder, scraping) as server, Client(cluster.address, tls=trainer) as client:
            runs = []
            for number in range(2):
                # Each begins with everything seen that the one before it has begun.
                server.wait_for("count(up == 1)", lambda values: values == [3.0])
                server.wait_for("sum(lipt_runs{state='ready'})", [float(number)].__eq__)
                started = client.start_run(dict(SMALL_RUN))
                runs.append(client.wait(started.run_id))
            client.subset(strategy="el2n", fraction=0.1)
            for refused in (client.run, lambda run: client.subset(run=run, fraction=0.1)):
                with pytest.raises(UnknownRunError):
                    refused("nobody")
            server.wait_for("sum(lipt_runs{state='ready'})", [2.0].__eq__)
            yield Scraped(server, runs, [_scrape(address, trainer) for address in addresses])


def _job(name: str, targets: list[str], certificates: Certificates) -> str:
    files = certificates.files("trainer")
    return f"""
- job_name: {name}
  scheme: https
  tls_config: {{ca_file: {files.ca}, cert_file: {files.cert}, key_file: {files.key}}}
  static_configs: [{{targets: {targets}}}]
"""


def _scrape(address: str, files: TlsFiles) -> str:
    assert files.cert is not None
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    handlers: list[Any] = [
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=context),
    ]
    with urllib.request.build_opener(*handlers).open(f"https://{address}/metrics") as answer:
        return str(answer.read().decode())


def test_what_is_scraped_has_nothing_that_promtool_objects_to(scraped: Scraped) -> None:
    for text in scraped.texts:
        assert promtool("check", "metrics", given=text) == ""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sum by (job) (up)", [1.0, 2.0]),
        ('lipt_events_total{job="lipt-coordinator",event="run_ended",detail="ready"}', [2.0]),
        # Two runs of four learners, of two steps each, on 32 examples.
        ("lipt_learner_train_seconds_count", [8.0]),
        ('sum(lipt_worker_learners_total{outcome="in"})', [8.0]),
        ("sum(lipt_worker_steps_total)", [16.0]),
        ("sum(lipt_worker_examples_total)", [512.0]),
        ('lipt_run_stage_seconds_count{stage="merging"}', [2.0]),
        ('sum(lipt_job_seconds_count{kind=~"InitializeWeights|CutShards|MakeSoup"})', [6.0]),
        ('lipt_selection_seconds_count{strategy="el2n"}', [1.0]),
        ('lipt_peer_refusals_total{peer="the certificate of trainer",code="NOT_FOUND"}', [2.0]),
        ('lipt_rpc_duration_seconds_count{method="WorkerService/CommitResult",code="OK"}', [8.0]),
        ("lipt_leases", [0.0]),
        ("lipt_workers", [2.0]),
        # What workers have sent is what the coordinator has received, and they alone send.
        (
            (
                'sum(lipt_worker_blob_bytes_total{direction="sent"})'
                ' - on () lipt_blob_bytes_total{direction="received"}'
            ),
            [0.0],
        ),
    ],
)
def test_prometheus_knows_what_has_happened(
    scraped: Scraped, expression: str, expected: list[float]
) -> None:
    scraped.prometheus.wait_for(expression, lambda values: sorted(values) == expected)


def test_prometheus_knows_what_the_runs_cost_and_came_to(scraped: Scraped) -> None:
    costs = [run.costs for run in scraped.runs if run.costs is not None]
    sent = sum(cost.bytes_from_workers for cost in costs)
    fetched = sum(cost.bytes_to_workers for cost in costs)
    soup = scraped.runs[-1].soup
    assert soup is not None
    for expression, expected in (
        ('lipt_learner_bytes_total{direction="from_workers",encoding="bitmask"}', sent),
        ('lipt_learner_bytes_total{direction="to_workers",encoding="bitmask"}', fetched),
        ('lipt_soup_accuracy_ratio{of="soup"}', soup.soup_accuracy),
        ("lipt_soup_kept_learners", soup.num_kept),
    ):
        scraped.prometheus.wait_for(expression, [float(expected)].__eq__)


def test_alert_rules_can_be_evaluated_on_what_is_scraped(scraped: Scraped) -> None:
    server = scraped.prometheus
    server.wait_for("count(ALERTS) or vector(0)", len)
    rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 15
    assert [rule["name"] for rule in rules if rule.get("lastError")] == []


@pytest.mark.parametrize("panel", PANELS)
def test_no_line_of_a_panel_is_empty_after_a_run(scraped: Scraped, panel: str) -> None:
    if panel in EMPTY_ON_CPUS:
        pytest.skip("it shows what a CPU does not have")
    for expression in PANELS[panel]:
        for variable, value in (
            ("$coordinator", ".*"),
            ("$worker", ".*"),
            ("$__rate_interval", "5m"),
        ):
            expression = expression.replace(variable, value)  # noqa: PLW2901 - of the same one
        assert scraped.prometheus.wait_for(expression, len)
