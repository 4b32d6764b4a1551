"""Checks of `lipt doctor`: what each fact means, and what to do about it; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lipt.common.text import empty_classes
from lipt.trainer.views import CallerView, DatasetView, InfoView, WorkerView

# Workers are heard every few seconds; this long without a word means trouble.
_STALE_WORKER_SECONDS = 60.0

# One seed gives one soup only where these agree.
_RESULT_LIBRARIES = ("lipt", "torch", "torchvision")


@dataclass(frozen=True)
class Check:
    """One fact: fine (True), broken (False), or worth knowing (None), and what to do."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def check_line(check: Check) -> str:
    """A check as a line of text."""
    mark = {True: "ok", False: "FAILED", None: "note"}[check.ok]
    remedy = f" {check.remedy}" if check.remedy else ""
    return f"{mark:<7}{check.name}: {check.detail}.{remedy}"


def coordinator_checks(
    info: InfoView, *, protocol: tuple[int, int], versions: Mapping[str, str]
) -> list[Check]:
    """What a coordinator's answer says.

    Args:
        info: the answer.
        protocol: (major, minor) that this side speaks.
        versions: this side's libraries.
    """
    return [
        protocol_check(info.protocol, protocol),
        Check("coordinator", True, f"computes on {info.device or 'an unnamed device'}"),
        *_version_checks(info, versions),
        dataset_check(info.dataset),
        *worker_checks(info.workers),
    ]


def caller_check(caller: CallerView | None) -> Check:
    """Who the coordinator takes this side for; None where it is too old to ask."""
    if caller is None:
        return Check("access", None, "the coordinator asks nobody who they are", "Update it.")
    return Check("access", True, f"called as {caller.name}: {', '.join(caller.roles)}")


def protocol_check(theirs: tuple[int, int], ours: tuple[int, int]) -> Check:
    """Whether both sides understand each other: their majors have to agree."""
    detail = f"the coordinator speaks {theirs[0]}.{theirs[1]}, this side {ours[0]}.{ours[1]}"
    if theirs[0] == ours[0]:
        return Check("protocol", True, detail)
    older = "the coordinator" if theirs < ours else "this side"
    return Check("protocol", False, detail, f"Update {older}: pip install --upgrade lipt")


def dataset_check(dataset: DatasetView | None) -> Check:
    """Whether the coordinator has data, and which."""
    if dataset is None or not dataset.num_examples:
        return Check(
            "data", False, "the coordinator has none", "Start lipt-coordinator with --data."
        )
    detail = (
        f"{dataset.source}, {dataset.num_examples} examples of {dataset.targets}, "
        f"{dataset.inputs}, fingerprint {dataset.fingerprint}"
    )
    empty = empty_classes(dataset.class_names, dataset.class_counts)
    if empty and dataset.other_target is None:
        return Check("data", None, f"{detail}; {empty}", "Models get an output for each of these.")
    return Check("data", True, detail)


def worker_checks(workers: Sequence[WorkerView]) -> list[Check]:
    """Whether there is somebody to train learners."""
    if not workers:
        return [
            Check(
                "workers",
                None,
                "none has joined, so learners wait",
                "Start one: lipt-worker --coordinator HOST:PORT",
            )
        ]
    return [_worker_check(worker) for worker in workers]


def _worker_check(worker: WorkerView) -> Check:
    busy = f"at work on {worker.assignment}" if worker.assignment else "idle"
    detail = f"{worker.device}, {busy}, heard {worker.seconds_since_heard:.0f} s ago"
    if worker.seconds_since_heard > _STALE_WORKER_SECONDS:
        return Check(f"worker {worker.name}", None, detail, "See its log; it may be gone.")
    if worker.idle_reason:
        return Check(
            f"worker {worker.name}",
            None,
            f"{detail}; it {worker.idle_reason}",
            "Start it with that flag where its machine may run that code, or start the other "
            "worker that is wanted.",
        )
    return Check(f"worker {worker.name}", True, detail)


def _version_checks(info: InfoView, versions: Mapping[str, str]) -> list[Check]:
    peers = {
        "this side": versions,
        "the coordinator": info.versions,
        **{f"worker {worker.name}": worker.versions for worker in info.workers},
    }
    checks = []
    for library in _RESULT_LIBRARIES:
        found = {who: known[library] for who, known in peers.items() if library in known}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{who} {version}" for who, version in found.items())
            checks.append(
                Check(
                    "versions",
                    None,
                    f"{library} differs: {listed}",
                    "One seed gives one subset only with equal versions.",
                )
            )
    return checks
