"""Examples of the page: pictures by id, and a map of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from starlette.responses import Response

from lipt.common.errors import InvalidRequestError
from lipt.common.maps.sample import rows_to_draw
from lipt.coordinator.app import App
from lipt.coordinator.compute.jobs.mapping import MapExamples
from lipt.coordinator.compute.jobs.showing import ShowExamples
from lipt.coordinator.compute.messages import Asked as AskedFor
from lipt.coordinator.compute.messages import OnData
from lipt.coordinator.compute.progress import OnProgress
from lipt.coordinator.page.answers import answer
from lipt.coordinator.page.bodies import Body
from lipt.coordinator.page.kept_maps import Places
from lipt.coordinator.page.lines import in_lines
from lipt.coordinator.page.page import Asked
from lipt.coordinator.page.subsets import Digest, labels_of
from lipt.coordinator.runs.repair import restore_pretrained_weights
from lipt.coordinator.state.records import RunRecord
from lipt.coordinator.subsets.ready_runs import find_ready

MAX_PICTURES = 64


class PicturesWanted(Body):
    """Examples by their ids."""

    ids: Annotated[list[int], Field(max_length=MAX_PICTURES)]


class MapWanted(Body):
    """Subsets of a run that the map tells apart from the rest."""

    digests: Annotated[list[Digest], Field(max_length=2)] = Field(default_factory=list)


async def pictures(asked: Asked, wanted: PicturesWanted) -> Response:
    """POST /api/pictures."""
    app, ids = asked.page.app, wanted.ids
    for row in ids:
        if not 0 <= row < app.data.num_rows:
            raise InvalidRequestError(
                f"there is no example {str(row)[:30]}: the data has {app.data.num_rows}, "
                "counted from 0."
            )
        if row in app.data.quarantined:
            raise InvalidRequestError(f"example {row} cannot be used, and is left out.")
    job = OnData(app.data.fingerprint, ShowExamples(tuple(ids)))
    shown = await app.compute.run(job, asked=_asked_for(asked))
    labels_N, names = labels_of(app, app.data.fingerprint), app.data.class_names
    return answer(
        {
            "pictures": [
                {
                    "id": row,
                    "label": int(labels_N[row]),
                    "class_name": names[labels_N[row]],
                    "png": one.picture,
                    "text": one.text,
                }
                for row, one in zip(ids, shown, strict=True)
            ]
        }
    )


async def draw_map(asked: Asked, wanted: MapWanted) -> Response:
    """POST /api/runs/{run}/map."""
    app = asked.page.app
    run = find_ready(app.store, asked.path("run"), app.data)
    found = [await app.subsets.find(run.run_id, digest) for digest in wanted.digests]
    chosen = [(await app.subsets.examples(one)).indices_K for one in found]
    drawn = await asyncio.to_thread(rows_to_draw, app.data.num_rows, chosen, (), run.config.seed)
    ids_M = np.setdiff1d(drawn.numpy(), np.array(app.data.quarantined, np.int64))
    key = (run.run_id, *wanted.digests)
    labels_M = labels_of(app, app.data.fingerprint)[ids_M]

    async def place(report: OnProgress) -> Places:
        kept = asked.page.maps.get(key)
        if kept is None:
            kept = await _places(asked, run, ids_M.tolist(), report)
            asked.page.maps.keep(key, kept)
        return kept

    async def show(places: Places) -> dict[str, Any]:
        return {
            "map": {
                "ids": ids_M.tolist(),
                "x": [x for x, _ in places],
                "y": [y for _, y in places],
                "labels": labels_M.tolist(),
                "chosen": [_among(ids_M, rows) for rows in chosen],
                "seen_by": f"the merged model of {run.name}",
            }
        }

    return await in_lines(place, show)


async def _places(asked: Asked, run: RunRecord, ids: Sequence[int], report: OnProgress) -> Places:
    app: App = asked.page.app
    asked_for = _asked_for(asked, run.run_id)
    await restore_pretrained_weights(run, app.blobs, app.compute, report, asked_for)
    if run.inputs is None or run.pretrained_weights is None:
        raise ValueError(f"run {run.run_id} is ready without weights")
    job = MapExamples(run.config, run.inputs, run.pretrained_weights, tuple(ids))
    return await app.compute.run(OnData(run.fingerprint, job), report, asked_for)


def _asked_for(asked: Asked, run: str = "") -> AskedFor:
    peer = asked.own.peer
    return AskedFor(run, lambda: frozenset({peer}))


def _among(ids_M: NDArray[np.int64], rows: NDArray[np.int64]) -> list[bool]:
    found: list[bool] = np.isin(ids_M, rows).tolist()
    return found
