"""Subset views: what the page shows of a stored subset.

Shapes: N examples of the data, K of the subset, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lipt.common.determinism.seeding import derive_seed
from lipt.common.subsets import Examples
from lipt.coordinator.state.records import SubsetRecord

NUM_SHOWN = 32

Labels = NDArray[np.int64]


def listed(subset: SubsetRecord, num_examples: int, address: str) -> dict[str, Any]:
    """A subset without its examples.

    Args:
        subset: is stored.
        num_examples: N.
        address: of the gRPC server.
    """
    return {
        "digest": subset.digest,
        "strategy": subset.strategy,
        "num_examples": subset.num_examples,
        "fraction": subset.num_examples / max(num_examples, 1),
        "run_id": subset.run_id,
        "created_at": subset.created_at,
        "manifest": subset.manifest,
        "code": code_for(subset, address),
    }


def examined(
    subset: SubsetRecord,
    examples: Examples,
    labels_N: Labels,
    class_names: Sequence[str],
    address: str,
    quarantined: Sequence[int] = (),
) -> dict[str, Any]:
    """A subset with what its examples are.

    Args:
        subset: is stored.
        examples: its own.
        labels_N: of the data; empty where other data is served than it was chosen of.
        class_names: of the data, C.
        address: of the gRPC server.
        quarantined: ids that are left out of everything.
    """
    weights_K = examples.weights_K
    weighted = bool(len(weights_K)) and bool(weights_K.min() != weights_K.max())
    return {
        **listed(subset, len(labels_N) or _num_examples(subset), address),
        "classes": _classes(examples, labels_N, class_names),
        "weights": {
            "min": float(weights_K.min()),
            "max": float(weights_K.max()),
            "weighted": weighted,
        },
        "most_wanted": _most_wanted(subset, examples, weighted=weighted),
        "least_wanted": _left_out(subset, examples, len(labels_N), quarantined),
        # No order of choice is stored, nor a score of what was left out.
        "wanted_by": {"most": "weight" if weighted else "draw", "least": "draw"},
    }


def code_for(subset: SubsetRecord, address: str) -> str:
    """Three lines of Python that use a subset."""
    asked = [repr(subset.run_id), repr(subset.strategy), f"budget={_budget(subset)}"]
    manifest = subset.manifest
    if isinstance(options := manifest.get("options"), dict) and options:
        asked.append(f"options={options!r}")
    asked.append(f"balanced={subset.balanced}")
    if isinstance(preset := manifest.get("preset"), str):
        asked.append(f"preset={preset!r}")
    if manifest.get("labels") == "none":
        asked.append('labels="none"')
    proxy = manifest.get("proxy")
    named = proxy.get("proxy") if isinstance(proxy, dict) else None
    if isinstance(named, str):
        asked.append(f"proxy={named!r}")
    return (
        "import lipt\n"
        f"subset = lipt.Client({address!r}).subset({', '.join(asked)})\n"
        "train_set = subset.dataset(data)  # data: the examples that the coordinator has\n"
    )


def shared_by_class(
    first: Examples, second: Examples, labels_N: Labels, class_names: Sequence[str]
) -> list[dict[str, Any]]:
    """How many examples of each class two subsets have, and have in common."""
    both_B = np.intersect1d(first.indices_K, second.indices_K, assume_unique=True)
    all_C, first_C, second_C, both_C = (
        np.bincount(labels, minlength=len(class_names)).tolist()
        for labels in (
            labels_N,
            labels_N[first.indices_K],
            labels_N[second.indices_K],
            labels_N[both_B],
        )
    )
    return [
        {
            "name": name,
            "in_data": all_C[c],
            "first": first_C[c],
            "second": second_C[c],
            "both": both_C[c],
        }
        for c, name in enumerate(class_names)
    ]


def _classes(
    examples: Examples, labels_N: Labels, class_names: Sequence[str]
) -> list[dict[str, Any]]:
    if not len(labels_N):
        return []
    in_data_C = np.bincount(labels_N, minlength=len(class_names)).tolist()
    chosen_C = np.bincount(labels_N[examples.indices_K], minlength=len(class_names)).tolist()
    return [
        {"name": name, "in_data": in_data_C[label], "in_subset": chosen_C[label]}
        for label, name in enumerate(class_names)
    ]


def _most_wanted(subset: SubsetRecord, examples: Examples, *, weighted: bool) -> list[int]:
    if weighted:
        heaviest_K = np.argsort(-examples.weights_K, kind="stable")
        found: list[int] = examples.indices_K[heaviest_K[:NUM_SHOWN]].tolist()
        return found
    return _drawn(subset, examples.indices_K, "page: chosen")


def _left_out(
    subset: SubsetRecord, examples: Examples, num_rows: int, quarantined: Sequence[int]
) -> list[int]:
    rows_N = np.setdiff1d(np.arange(num_rows), np.array(quarantined, np.int64))
    return _drawn(subset, np.setdiff1d(rows_N, examples.indices_K), "page: left out")


def _drawn(subset: SubsetRecord, rows: NDArray[np.int64], purpose: str) -> list[int]:
    """Some rows, ascending; the same at every look at the subset."""
    config = subset.manifest.get("run_config")
    seed = config.get("seed", 0) if isinstance(config, dict) else 0
    generator = np.random.default_rng(derive_seed(int(seed), f"{purpose} {subset.digest}"))
    drawn = generator.permutation(rows)[:NUM_SHOWN]
    found: list[int] = np.sort(drawn).tolist()
    return found


def _num_examples(subset: SubsetRecord) -> int:
    data = subset.manifest.get("data")
    return int(data.get("num_examples", 0)) if isinstance(data, dict) else 0


def _budget(subset: SubsetRecord) -> int:
    budget = subset.manifest.get("budget")
    return budget if isinstance(budget, int) else subset.num_examples
