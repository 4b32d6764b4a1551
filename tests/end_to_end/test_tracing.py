"""Real processes as Prometheus and a collector of traces see them."""

import json
import os
import signal
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from lipt import Client
from lipt.common.access.tls import TlsFiles
from lipt.common.errors import UnknownRunError
from lipt.trainer.views import RunView
from tests.cluster import SMALL_RUN, Cluster, LoggedProcess
from tests.collector import Collector, Spanned, collecting, tree
from tests.prometheus import OBSERVABILITY, Prometheus, prometheus, promtool, tool
from tests.tls_files import Certificates

DASHBOARD = OBSERVABILITY / "grafana" / "dashboards" / "lipt.json"
PANELS: dict[str, list[str]] = {
    panel["title"]: [target["expr"] for target in panel["targets"]]
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    if panel["type"] != "row"
}


class Scraped(NamedTuple):
    prometheus: Prometheus
    runs: list[RunView]
    texts: list[str]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
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
            process.wait_for(r"metrics on https://(\S+)/metrics")[1]
            for process in (coordinator, *workers)
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


def test_promtool_accepts_the_scraped_metrics(scraped: Scraped) -> None:
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
def test_prometheus_has_the_run_s_events(
    scraped: Scraped, expression: str, expected: list[float]
) -> None:
    scraped.prometheus.wait_for(expression, lambda values: sorted(values) == expected)


def test_prometheus_has_the_run_s_costs_and_accuracies(scraped: Scraped) -> None:
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
def test_every_panel_has_values_after_a_run(scraped: Scraped, panel: str) -> None:
    for expression in PANELS[panel]:
        for name, value in (("$coordinator", ".*"), ("$worker", ".*"), ("$__rate_interval", "5m")):
            expression = expression.replace(name, value)  # noqa: PLW2901 - of the same one
        assert scraped.prometheus.wait_for(expression, len)


JSON = ("--log-format", "json")
# What another tool has begun, as a step of a pipeline does.
TRACE, STEP = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

# Of one learner; theta* is fetched once.
LEARNER = """\
    learner (lipt-worker)
      fetch weights (lipt-worker){fetched}
      fetch shard (lipt-worker)
        lipt.v1.BlobService/ReadBlob (lipt-worker)
      train (lipt-worker)
      prune (lipt-worker)
      encode (lipt-worker)
      upload (lipt-worker)
        lipt.v1.BlobService/GetUploadStatus (lipt-worker)
          lipt.v1.BlobService/GetUploadStatus (lipt-coordinator)
        lipt.v1.BlobService/WriteBlob (lipt-worker)
          lipt.v1.BlobService/WriteBlob (lipt-coordinator)
      commit (lipt-worker)
        lipt.v1.WorkerService/CommitResult (lipt-worker)
          lipt.v1.WorkerService/CommitResult (lipt-coordinator)
            check learner (lipt-coordinator)
"""
FETCHED = """
        lipt.v1.BlobService/ReadBlob (lipt-worker)"""
RUN = f"""\
lipt run start (lipt)
  lipt.v1.RunService/CreateRun (lipt)
    lipt.v1.RunService/CreateRun (lipt-coordinator)
    initialize weights (lipt-coordinator)
      InitializeWeights (lipt-compute)
    cut shards (lipt-coordinator)
      CutShards (lipt-compute)
    train learners (lipt-coordinator)
{LEARNER.format(fetched=FETCHED)}{LEARNER.format(fetched="")}\
    merge learners (lipt-coordinator)
      MakeSoup (lipt-compute)
        soup (lipt-compute)"""
SUBSET = """\
lipt subset get (lipt)
  lipt.v1.SubsetService/GetSubset (lipt)
    selection (lipt-coordinator)
      SelectSubset (lipt-compute)
        signals (lipt-compute)
        select (lipt-compute)
  lipt.v1.BlobService/ReadBlob (lipt)"""


@dataclass(frozen=True)
class Traced:
    run_id: str
    spans: list[Spanned]
    logs: list[LoggedProcess]

    def of(self, trace_id: str) -> list[Spanned]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def named(self, name: str) -> list[Spanned]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    directory = tmp_path_factory.mktemp("traced")
    with collecting() as collector, Cluster(directory) as cluster:
        environment = collector.environment
        killed = cluster.start_coordinator(*JSON, environment=environment)
        lipt(cluster, collector, "run", "start", "--num-learners", "2", "--num-steps", "2")
        collector.wait_for(lambda spans: "cut shards" in {span.name for span in spans})
        killed.stop(signal.SIGKILL)
        again = cluster.start_coordinator(*JSON, environment=environment)
        worker = cluster.start_worker("one", *JSON, environment=environment)
        with cluster.client() as client:
            run_id = client.wait().run_id
        step = f"00-{TRACE}-{STEP}-01"
        out = str(directory / "subset.npy")
        subset = ("subset", "get", "--strategy", "craig", "--fraction", "0.1", "--out", out)
        lipt(cluster, collector, *subset, traceparent=step)
        assert (worker.stop(), again.stop()) == (0, 0)
        yield Traced(run_id, collector.spans(), [killed, again, worker])


def lipt(cluster: Cluster, collector: Collector, *arguments: str, traceparent: str = "") -> None:
    environment = collector.environment | {"TRACEPARENT": traceparent}
    words = ("-m", "lipt.cli", *arguments, "--coordinator", cluster.address)
    process = cluster.start("lipt", words, environment)
    assert process.wait() == 0, process.text()


def test_a_run_is_one_trace_from_its_trainer_to_its_workers_and_back(traced: Traced) -> None:
    (command,) = traced.named("lipt run start")
    of_the_run = [span for span in traced.spans if span.attributes.get("lipt.run_id")]
    assert {span.trace_id for span in of_the_run if span.name != "selection"} == {command.trace_id}
    # Though it was another process that began it.
    assert tree(traced.of(command.trace_id)) == RUN
    assert not any(span.error for span in traced.spans)


def test_a_subset_s_span_is_in_its_caller_s_trace(traced: Traced) -> None:
    assert tree(traced.of(TRACE)) == SUBSET
    (command,) = traced.named("lipt subset get")
    assert command.parent_id == STEP
    (selection,) = traced.named("selection")
    (run,) = traced.named("lipt run start")
    assert selection.links == (run.trace_id,)
    assert selection.attributes["lipt.strategy"] == "craig"
    assert len(selection.attributes["lipt.digest"]) == 64


def test_no_span_has_a_secret_or_a_path(traced: Traced) -> None:
    said = [str(value) for span in traced.spans for value in span.attributes.values()]
    assert said
    assert not any(os.sep in value and "lipt.v1" not in value for value in said if len(value) > 20)
    assert not any("Bearer" in value or "lipt_" in value for value in said)


def lines(process: LoggedProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.text().splitlines()]


def test_every_line_is_json_and_those_of_a_run_name_it(traced: Traced) -> None:
    killed, again, worker = map(lines, traced.logs)
    for line in (*killed, *again, *worker):
        assert {"time", "level", "logger", "message"} <= set(line)
    run, first = traced.run_id, f"{traced.run_id}/0"
    of_the_run = [line for line in again if line["message"].startswith("run ")]
    assert [line["message"] for line in of_the_run][-1] == "run run-1: ready"
    assert {line["run"] for line in of_the_run} == {run}
    (ended,) = (line for line in again if "event" in line)
    assert ended["event"] == {"kind": "run_ended", "detail": "ready", "run": "run-1"}
    assert ended["run"] == run
    (taken,) = (line for line in again if line["message"].startswith(f"learner {first} "))
    (joined,) = (line for line in again if line["message"].startswith("worker one "))
    assert (taken["run"], taken["assignment"], taken["learner"]) == (run, first, "0")
    assert taken["worker"] in joined["message"]
    for line in worker:
        if line["message"].startswith("learner "):
            assert line["run"] == run
            assert line["assignment"].startswith(f"{run}/")
            assert line["worker"] == taken["worker"]
