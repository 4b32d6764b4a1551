"""Subsets of the page: chosen, listed, shown with their examples, and laid side by side.

Shapes: N examples of the data, K of the subset, C classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from starlette.responses import Response

from lipt.common.determinism import derive_seed
from lipt.common.errors import InvalidRequestError, OtherDataError
from lipt.common.rpc.messages import require_lengths
from lipt.common.subsets import Examples, overlap
from lipt.coordinator.app import App
from lipt.coordinator.page.http import Body, PageRequest, answer, as_dict, in_lines
from lipt.coordinator.rpc.strategies import describe_strategies
from lipt.coordinator.rpc.subsets import query_of
from lipt.coordinator.state.records import SubsetRecord
from lipt.coordinator.subsets.service import Answer
from lipt.v1 import subset_pb2 as pb

NUM_SHOWN = 32
# What an int64 of the contract takes.
_MAX_BUDGET = 2**63 - 1

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Labels = NDArray[np.int64]


class SubsetWanted(Body):
    """A subset; see `GetSubsetRequest` of the contract."""

    strategy: str
    fraction: float | None = None
    budget: Annotated[int | None, Field(ge=0, le=_MAX_BUDGET)] = None
    options: Annotated[dict[str, str], Field(max_length=100)] = Field(default_factory=dict)
    preset: str = ""
    proxy: str = ""
    balanced: bool | None = None
    labels: Literal["", "given", "none"] = ""


class TwoSubsets(Body):
    """Two subsets of a run."""

    digests: Annotated[list[Digest], Field(min_length=2, max_length=2)]


async def strategies(_: PageRequest, __: None) -> Response:
    """GET /api/strategies."""
    return answer(as_dict(describe_strategies()))


async def list_subsets(request: PageRequest, _: None) -> Response:
    """GET /api/runs/{run}/subsets: newest first."""
    page = request.page
    found = await page.app.subsets.of_run(request.path("run"))
    num_examples = page.app.data.num_examples
    return answer({"subsets": [listed(one, num_examples, page.address) for one in found]})


async def show_subset(request: PageRequest, _: None) -> Response:
    """GET /api/runs/{run}/subsets/{digest}."""
    found = await request.page.app.subsets.find(request.path("run"), request.path("digest"))
    return answer(await _shown(request, found))


async def choose_subset(request: PageRequest, wanted: SubsetWanted) -> Response:
    """POST /api/runs/{run}/subsets: computed once, and stored."""
    if wanted.fraction is not None and wanted.budget is not None:
        raise InvalidRequestError(
            f"fraction {wanted.fraction:g} and budget {wanted.budget}: give one of them."
        )
    fields: dict[str, Any] = {"run_id": request.path("run"), **wanted.model_dump(exclude_none=True)}
    message = pb.GetSubsetRequest(**fields)
    require_lengths(message)
    query, app = query_of(message), request.page.app

    async def show(found: Answer) -> dict[str, Any]:
        return await _shown(request, found.subset)

    return await in_lines(lambda report: app.subsets.get(query, report, request.own.peer), show)


async def side_by_side(request: PageRequest, wanted: TwoSubsets) -> Response:
    """POST /api/runs/{run}/side-by-side: how many examples two subsets share."""
    app = request.page.app
    records = [await app.subsets.find(request.path("run"), one) for one in wanted.digests]
    first_K, second_K = [(await app.subsets.examples(one)).indices_K for one in records]
    labels_N = labels_of(app, records[0].fingerprint)
    if not len(labels_N):
        raise OtherDataError(
            "the subsets are of other data than what is served, so their classes are not known. "
            "Serve their own data again."
        )
    shared = await asyncio.to_thread(overlap, first_K, second_K, labels_N)
    return answer(
        {
            "both": shared.shared,
            "only": [len(first_K) - shared.shared, len(second_K) - shared.shared],
            "jaccard": shared.jaccard,
            "by_chance": shared.by_chance,
        }
    )


def labels_of(app: App, fingerprint: str) -> Labels:
    """The labels of the data of this fingerprint; empty where other data is served."""
    if fingerprint not in app.data.fingerprints:
        return np.empty(0, np.int64)
    return np.frombuffer(app.data.labels, "<i4").astype(np.int64)


def listed(subset: SubsetRecord, num_examples: int, address: str) -> dict[str, Any]:
    """A stored subset without its examples; `address` is the gRPC server's."""
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
    """A stored subset with its classes, its weights, and examples of both ends.

    `labels_N` is empty where the subset was chosen of other data; `quarantined` are ids that are
    left out of everything.
    """
    indices_K, weights_K = examples.indices_K, examples.weights_K
    weighted = bool(len(weights_K)) and bool(weights_K.min() != weights_K.max())
    heaviest_K = indices_K[np.argsort(-weights_K, kind="stable")]
    rest = np.setdiff1d(np.arange(len(labels_N)), [*quarantined, *indices_K])
    classes = []
    if len(labels_N):
        in_data_C = np.bincount(labels_N, minlength=len(class_names)).tolist()
        chosen_C = np.bincount(labels_N[indices_K], minlength=len(class_names)).tolist()
        classes = [
            {"name": name, "in_data": in_data, "in_subset": in_subset}
            for name, in_data, in_subset in zip(class_names, in_data_C, chosen_C, strict=True)
        ]
    most = heaviest_K[:NUM_SHOWN].tolist() if weighted else _drawn(subset, indices_K, "chosen")
    data = subset.manifest.get("data")
    of_other_data = int(data.get("num_examples", 0)) if isinstance(data, dict) else 0
    return {
        **listed(subset, len(labels_N) or of_other_data, address),
        "classes": classes,
        "weights": {
            "min": float(weights_K.min()),
            "max": float(weights_K.max()),
            "weighted": weighted,
        },
        "most_wanted": most,
        "least_wanted": _drawn(subset, rest, "left out"),
        # No order of choice is stored, nor a score of what was left out.
        "wanted_by": {"most": "weight" if weighted else "draw", "least": "draw"},
    }


def code_for(subset: SubsetRecord, address: str) -> str:
    """Three lines of Python that use a subset."""
    manifest = subset.manifest
    budget, options = manifest.get("budget"), manifest.get("options")
    preset, proxy = manifest.get("preset"), manifest.get("proxy")
    asked = [repr(subset.run_id), repr(subset.strategy)]
    asked.append(f"budget={budget if isinstance(budget, int) else subset.num_examples}")
    if isinstance(options, dict) and options:
        asked.append(f"options={options!r}")
    asked.append(f"balanced={subset.balanced}")
    if isinstance(preset, str):
        asked.append(f"preset={preset!r}")
    if manifest.get("labels") == "none":
        asked.append('labels="none"')
    if isinstance(proxy, dict) and isinstance(proxy.get("proxy"), str):
        asked.append(f"proxy={proxy['proxy']!r}")
    return (
        "import lipt\n"
        f"subset = lipt.Client({address!r}).subset({', '.join(asked)})\n"
        "train_set = subset.dataset(data)  # data: the examples that the coordinator has\n"
    )


async def _shown(request: PageRequest, subset: SubsetRecord) -> dict[str, Any]:
    page = request.page
    data, examples = page.app.data, await page.app.subsets.examples(subset)
    labels_N = labels_of(page.app, subset.fingerprint)
    quarantined = data.quarantined if len(labels_N) else ()
    # Of a million examples it takes longer than the event loop may be held.
    shown = await asyncio.to_thread(
        examined, subset, examples, labels_N, data.class_names, page.address, quarantined
    )
    return {"subset": shown}


def _drawn(subset: SubsetRecord, rows: NDArray[np.int64], purpose: str) -> list[int]:
    """Some rows, ascending; the same at every look at the subset."""
    config = subset.manifest.get("run_config")
    seed = config.get("seed", 0) if isinstance(config, dict) else 0
    generator = np.random.default_rng(derive_seed(int(seed), f"page: {purpose} {subset.digest}"))
    found: list[int] = np.sort(generator.permutation(rows)[:NUM_SHOWN]).tolist()
    return found
