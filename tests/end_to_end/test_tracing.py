"""One run of real processes that export their spans, and log as JSON; its coordinator is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster import Cluster, LoggedProcess
from tests.collector import Collector, Spanned, collecting, tree

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
    """What came of it, with the logs of the two coordinators and the worker."""

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
    words = ("-m", "lipt.trainer.cli", *arguments, "--coordinator", cluster.address)
    process = cluster.start("lipt", words, environment)
    assert process.wait() == 0, process.text()


def test_a_run_is_one_trace_from_its_trainer_to_its_workers_and_back(traced: Traced) -> None:
    (command,) = traced.named("lipt run start")
    of_the_run = [span for span in traced.spans if span.attributes.get("lipt.run_id")]
    assert {span.trace_id for span in of_the_run if span.name != "selection"} == {command.trace_id}
    # Though it was another process that began it.
    assert tree(traced.of(command.trace_id)) == RUN
    assert not any(span.error for span in traced.spans)


def test_a_subset_is_of_the_trace_of_who_asks_and_names_the_runs(traced: Traced) -> None:
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
