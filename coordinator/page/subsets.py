"""Subsets of the page: asked for, listed, and laid side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.responses import Response

from lipt.common.errors import InvalidRequestError, OtherDataError
from lipt.common.rpc.lengths import require_lengths
from lipt.common.subsets import Examples, overlap
from lipt.coordinator.app import App
from lipt.coordinator.page.answers import answer, as_dict
from lipt.coordinator.page.bodies import Body
from lipt.coordinator.page.lines import in_lines
from lipt.coordinator.page.page import Asked
from lipt.coordinator.page.subset_views import Labels, examined, listed, shared_by_class
from lipt.coordinator.rpc.strategies import describe_strategies
from lipt.coordinator.rpc.subsets import query_of
from lipt.coordinator.state.records import SubsetRecord
from lipt.coordinator.subsets.service import Answer
from lipt.v1 import subset_pb2 as pb

# What an int64 of the contract takes.
_MAX_BUDGET = 2**63 - 1

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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


async def strategies(_: Asked, __: None) -> Response:
    """GET /api/strategies."""
    return answer(as_dict(describe_strategies()))


async def list_subsets(asked: Asked, _: None) -> Response:
    """GET /api/runs/{run}/subsets: newest first."""
    page = asked.page
    found = await page.app.subsets.of_run(asked.path("run"))
    num_examples = page.app.data.num_examples
    return answer({"subsets": [listed(one, num_examples, page.address) for one in found]})


async def show_subset(asked: Asked, _: None) -> Response:
    """GET /api/runs/{run}/subsets/{digest}."""
    found = await asked.page.app.subsets.find(asked.path("run"), asked.path("digest"))
    return answer(await _shown(asked, found))


async def ask_for_subset(asked: Asked, wanted: SubsetWanted) -> Response:
    """POST /api/runs/{run}/subsets: computed once, and stored."""
    if wanted.fraction is not None and wanted.budget is not None:
        raise InvalidRequestError(
            f"fraction {wanted.fraction:g} and budget {wanted.budget}: give one of them."
        )
    given: dict[str, Any] = {"run_id": asked.path("run"), **wanted.model_dump(exclude_none=True)}
    request = pb.GetSubsetRequest(**given)
    require_lengths(request)
    query, app = query_of(request), asked.page.app

    async def show(found: Answer) -> dict[str, Any]:
        return await _shown(asked, found.subset)

    return await in_lines(lambda report: app.subsets.get(query, report, asked.own.peer), show)


async def side_by_side(asked: Asked, wanted: TwoSubsets) -> Response:
    """POST /api/runs/{run}/side-by-side."""
    app = asked.page.app
    records = [await app.subsets.find(asked.path("run"), one) for one in wanted.digests]
    first, second = [await app.subsets.examples(record) for record in records]
    labels_N = labels_of(app, records[0].fingerprint)
    if not len(labels_N):
        raise OtherDataError(
            "the subsets are of other data than what is served, so their classes are not known. "
            "Serve their own data again."
        )
    names = app.data.class_names
    return answer(await asyncio.to_thread(_side_by_side, first, second, labels_N, names))


def _side_by_side(
    first: Examples, second: Examples, labels_N: Labels, class_names: Sequence[str]
) -> dict[str, Any]:
    shared = overlap(first.indices_K, second.indices_K, labels_N)
    return {
        "both": shared.shared,
        "only": [len(first) - shared.shared, len(second) - shared.shared],
        "jaccard": shared.jaccard,
        "by_chance": shared.by_chance,
        "union_classes": shared_by_class(first, second, labels_N, class_names),
    }


def labels_of(app: App, fingerprint: str) -> Labels:
    """The labels of the data of this fingerprint; empty where other data is served."""
    if fingerprint not in app.data.fingerprints:
        return np.empty(0, np.int64)
    return np.frombuffer(app.data.labels, "<i4").astype(np.int64)


async def _shown(asked: Asked, subset: SubsetRecord) -> dict[str, Any]:
    page = asked.page
    examples = await page.app.subsets.examples(subset)
    labels_N = labels_of(page.app, subset.fingerprint)
    names = page.app.data.class_names
    # Of a million examples it takes longer than the event loop may be held.
    quarantined = page.app.data.quarantined if len(labels_N) else ()
    shown = await asyncio.to_thread(
        examined, subset, examples, labels_N, names, page.address, quarantined
    )
    return {"subset": shown}
