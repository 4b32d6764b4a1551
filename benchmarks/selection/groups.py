"""Which implementations are compared at what, and by which objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from benchmarks.selection import checkout_peers, objectives, registry_peers
from benchmarks.selection.implementation import (
    LEARNING_RATE,
    ROUNDS,
    Chosen,
    Implementation,
    Task,
    ours,
)

Score = Callable[[Task, Chosen], float]


@dataclass(frozen=True)
class Group:
    """One table.

    score: of a choice, by a function independent of the implementation.
    balanced: whether what is drawn at random for comparison is per class.
    exact: implementations that are exact greedy. Where there are any, the value is shown as
        Q = (F - F_random) / (F_exact - F_random) with the first of them that was measured.
    """

    title: str
    objective: str
    implementations: tuple[Implementation, ...]
    score: Score
    balanced: bool = True
    exact: tuple[str, ...] = ()
    validated: bool = False


def _glister(name: str, rounds: int) -> Implementation:
    options = {"step": "mean", "learning_rate": str(LEARNING_RATE), "rounds": str(rounds)}
    return ours(name, "glister", options)


OURS = "ours"
APRICOT = "apricot (given our kernel)"
SUBMODLIB = "submodlib (given our kernel)"
OURS_EXACT = "ours, exact"
OURS_ROUNDS = f"ours, r={ROUNDS}"


def _indices(score: Callable[..., float]) -> Score:
    return lambda task, chosen: score(task.signals, chosen.indices_K)


def _one_step_loss(task: Task, chosen: Chosen) -> float:
    return objectives.glister(task.signals, chosen.indices_K, LEARNING_RATE)


def _residual(task: Task, chosen: Chosen) -> float:
    return objectives.gradmatch(task.signals, chosen.indices_K, chosen.weights_K)


def random_choice(task: Task, seed: int, *, balanced: bool) -> Tensor:
    return objectives.random_chosen(task.signals, task.budget, seed, balanced=balanced)


GROUPS = {
    "craig": Group(
        title="CRAIG per class",
        objective="sum of distances to the nearest chosen, lower is better",
        score=_indices(objectives.craig),
        implementations=(
            ours(OURS, "craig", {}),
            Implementation("DeepCore", checkout_peers.deepcore_craig, against=OURS),
            Implementation(
                APRICOT,
                registry_peers.per_class(registry_peers.apricot),
                against=OURS,
            ),
            Implementation(
                SUBMODLIB,
                registry_peers.per_class(registry_peers.submodlib),
                against=OURS,
            ),
        ),
    ),
    "facility_location": Group(
        title="Facility location over all",
        objective="Q = (F - F random) / (F exact greedy - F random), higher is better",
        score=_indices(objectives.facility_location),
        balanced=False,
        exact=(SUBMODLIB, APRICOT, OURS),
        implementations=(
            ours(OURS, "facility_location", {}, balanced=False),
            Implementation(
                "DeepCore, lazy",
                partial(checkout_peers.deepcore_facility_location, optimizer="LazyGreedy"),
                against=OURS,
            ),
            Implementation(
                "DeepCore, approximately lazy",
                partial(
                    checkout_peers.deepcore_facility_location, optimizer="ApproximateLazyGreedy"
                ),
                against=OURS,
            ),
            Implementation(
                APRICOT,
                registry_peers.over_all(registry_peers.apricot),
                against=OURS,
            ),
            Implementation(
                SUBMODLIB,
                registry_peers.over_all(registry_peers.submodlib),
                against=OURS,
            ),
        ),
    ),
    "gradmatch": Group(
        title="GradMatch per class",
        objective="relative residual, mean over classes, lower is better",
        score=_residual,
        implementations=(
            ours(OURS, "gradmatch", {}),
            Implementation("DeepCore", checkout_peers.deepcore_gradmatch, against=OURS),
            Implementation(
                "CORDS, CPU path",
                partial(checkout_peers.cords_gradmatch, path="cpu"),
                against=OURS,
            ),
            Implementation(
                "CORDS, torch solver",
                partial(checkout_peers.cords_gradmatch, path="torch"),
                against=OURS,
            ),
        ),
    ),
    "glister": Group(
        title="GLISTER per class",
        objective="validation loss after one step on the chosen, lower is better",
        score=_one_step_loss,
        validated=True,
        implementations=(
            _glister(OURS_EXACT, 0),
            _glister(OURS_ROUNDS, ROUNDS),
            Implementation(
                "DeepCore, repaired",
                checkout_peers.deepcore_glister,
                against=OURS_EXACT,
            ),
            Implementation(
                f"CORDS RGreedy, r={ROUNDS}",
                partial(checkout_peers.cords_glister, greedy="RGreedy"),
                against=OURS_ROUNDS,
            ),
            Implementation(
                "CORDS stochastic",
                partial(checkout_peers.cords_glister, greedy="Stochastic"),
                against=OURS_EXACT,
            ),
        ),
    ),
}

# What one class of ImageNet costs, alone.
CLASS_SIDES = (
    ours("CRAIG", "craig", {}),
    ours("GradMatch", "gradmatch", {}),
    _glister("GLISTER, exact", 0),
    _glister(f"GLISTER, r={ROUNDS}", ROUNDS),
)

# What can select from all of ImageNet at once.
IMAGENET_SIDES = (
    ours("grand", "grand", {}),
    ours("ccs", "ccs", {}),
    ours("craig", "craig", {}),
    _glister("glister", ROUNDS),
)
