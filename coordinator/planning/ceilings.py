"""Ceilings: the most that a run may take here, and what of a plan is beyond them; pure functions.

What is not configured follows from the machine: threads from its cores, memory and disk from what
it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from lipt.common.errors import OverLimitError
from lipt.common.planning.costs import Limit, Violation, violation
from lipt.common.process.machine import Machine
from lipt.coordinator.planning.plan import RunPlan
from lipt.coordinator.settings import LimitSettings, compute_memory_bytes, compute_threads


@dataclass(frozen=True)
class Ceilings:
    """A limit for each place of a `RunPlan`, under the same name."""

    worker_threads: Limit
    worker_memory: Limit
    worker_images: Limit
    compute_threads: Limit
    compute_memory: Limit
    compute_images: Limit
    run_disk: Limit
    max_blob_bytes: Limit


def ceilings(limits: LimitSettings, machine: Machine, *, free_disk_bytes: int) -> Ceilings:
    """The limits that hold now.

    Args:
        limits: what the operator has configured.
        machine: what there is.
        free_disk_bytes: room in the state directory; no run may take more.
    """
    at_most = {
        "worker_threads": limits.worker_threads,
        "worker_memory": limits.worker_memory,
        "worker_images": limits.worker_images,
        "compute_threads": compute_threads(limits, machine),
        "compute_memory": compute_memory_bytes(limits, machine),
        "compute_images": limits.compute_images,
        "max_blob_bytes": limits.max_blob_bytes,
    }
    named = {name: Limit(f"limits.{name}", int(most)) for name, most in at_most.items()}
    return Ceilings(**named, run_disk=_disk(limits, free_disk_bytes))


def _disk(limits: LimitSettings, free_bytes: int) -> Limit:
    if limits.run_disk is not None and limits.run_disk <= free_bytes:
        return Limit("limits.run_disk", limits.run_disk)
    return Limit("what is free in the state directory", free_bytes, remedy="free space there")


def violations(plan: RunPlan, ceilings: Ceilings) -> tuple[Violation, ...]:
    """All that is over its limit, in the order of a plan's places."""
    return tuple(
        found
        for place in fields(RunPlan)
        for cost in getattr(plan, place.name)
        if (found := violation(cost, getattr(ceilings, place.name))) is not None
    )


def require_none(found: Sequence[Violation]) -> None:
    """Refuse what has violations.

    Raises:
        OverLimitError: with the worst of each setting.
    """
    worst: dict[str, Violation] = {}
    for item in found:
        if item.knob not in worst or item.times > worst[item.knob].times:
            worst[item.knob] = item
    if worst:
        raise OverLimitError(" ".join(map(str, worst.values())))
