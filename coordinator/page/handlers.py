"""Handlers: signing in, the live service, runs, a diagnosis, and examples as pictures and a map."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from starlette.responses import RedirectResponse, Response

from lipt.common.access.roles import Role
from lipt.common.config.values import overrides_to_proto
from lipt.common.errors import InvalidRequestError, LiptError, UnauthenticatedError
from lipt.common.maps import rows_to_draw
from lipt.common.rpc.messages import require_lengths
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.table import require_role
from lipt.coordinator.compute.jobs.page import MapExamples, ShowExamples
from lipt.coordinator.compute.messages import Asked, OnData
from lipt.coordinator.compute.progress import OnProgress
from lipt.coordinator.page.http import (
    Body,
    Nothing,
    PageRequest,
    Places,
    Streaming,
    answer,
    as_dict,
    as_json,
    in_lines,
    refused,
)
from lipt.coordinator.page.sessions import SESSION_SECONDS
from lipt.coordinator.page.subsets import Digest, labels_of
from lipt.coordinator.rpc.messages import run_view
from lipt.coordinator.rpc.watching import DEFAULT_INTERVAL_SECONDS
from lipt.coordinator.runs.repair import restore_pretrained_weights
from lipt.coordinator.state.records import DiagnosisRecord, RunRecord
from lipt.coordinator.subsets.diagnoses import DiagnosisQuery
from lipt.coordinator.subsets.ready_runs import find_ready
from lipt.core.diagnosis.diagnosis import Diagnosis
from lipt.v1 import info_pb2, run_pb2

# The call whose roles may see the page at all.
OPEN_PAGE = "/lipt.v1.AccessService/OpenPage"
MAX_PICTURES = 64
_NUM_RUNS = 50
_MOST_MAPS = 16
_MOST_FINDINGS = 200
_MOST_GROUPS, _MOST_OF_GROUP = 50, 16


class TokenShown(Body):
    """A token, as it was pasted."""

    token: Annotated[str, Field(max_length=200)]


class RunWanted(Body):
    """A run to start.

    name: one is made up where it is empty.
    overrides: of the defaults, nested as in a file's table [run].
    request_id: the same when a request is repeated, so that it starts one run.
    """

    name: Annotated[str, Field(max_length=200)] = ""
    overrides: dict[str, Any] = Field(default_factory=dict)
    request_id: Annotated[str, Field(max_length=100)] = ""


class DiagnosisWanted(Body):
    """The proxy that examines the data, and a run whose learners help; both may be empty."""

    run_id: Annotated[str, Field(max_length=200)] = ""
    proxy: Annotated[str, Field(max_length=200)] = ""


class PicturesWanted(Body):
    """Examples by their ids."""

    ids: Annotated[list[int], Field(max_length=MAX_PICTURES)]


class MapWanted(Body):
    """Subsets of a run that the map tells apart from the rest."""

    digests: Annotated[list[Digest], Field(max_length=2)] = Field(default_factory=list)


async def sign_in_by_code(request: PageRequest, _: None) -> Response:
    """GET /sign-in?code=: the browser becomes the caller that requested the link."""
    page = request.page
    try:
        page.attempts.require_room(request.address)
        caller = page.sessions.take_code(request.http.query_params.get("code", ""))
        require_role(caller, OPEN_PAGE)
    except LiptError as error:
        if isinstance(error, UnauthenticatedError):
            page.attempts.note_failure(request.address)
        refused(page, error, request.http)
        return RedirectResponse("/?refused=1", 303)
    return await _signed_in(request, caller, RedirectResponse("/", 303))


async def sign_in_by_token(request: PageRequest, body: TokenShown) -> Response:
    """POST /api/sign-in."""
    page = request.page
    page.attempts.require_room(request.address)
    try:
        caller = page.app.tokens.caller(body.token)
    except UnauthenticatedError:
        page.attempts.note_failure(request.address)
        raise
    require_role(caller, OPEN_PAGE)
    return await _signed_in(request, caller, answer(_who(caller)))


async def sign_out(request: PageRequest, _: Nothing) -> Response:
    """POST /api/sign-out: ends the session and takes its cookie away."""
    await request.page.sessions.end(request.own)
    response = answer({})
    response.delete_cookie(request.page.cookie, path="/", httponly=True, samesite="strict")
    return response


async def who_am_i(request: PageRequest, _: None) -> Response:
    """GET /api/me."""
    return answer(_who(request.own.caller))


async def info(request: PageRequest, _: None) -> Response:
    """GET /api/info: this coordinator and its data."""
    return answer(as_dict(request.page.info.describe()))


async def live(request: PageRequest, _: None) -> Response:
    """GET /api/live: the service's state as server-sent events, until the session ends."""
    return Streaming(_events(request), media_type="text/event-stream")


async def start_run(request: PageRequest, wanted: RunWanted) -> Response:
    """POST /api/runs."""
    message = run_pb2.CreateRunRequest(
        request_id=wanted.request_id, name=wanted.name, config=overrides_to_proto(wanted.overrides)
    )
    require_lengths(message)
    runs = request.page.app.requests
    run = await runs.create(message.request_id, message.name, message.config)
    return _run_answer(request, run)


async def cancel_run(request: PageRequest, _: Nothing) -> Response:
    """POST /api/runs/{run}/cancel."""
    return _run_answer(request, await request.page.app.requests.cancel(request.path("run")))


async def diagnose(request: PageRequest, wanted: DiagnosisWanted) -> Response:
    """POST /api/diagnosis: computed once, and stored."""
    app = request.page.app
    query = DiagnosisQuery(run=wanted.run_id, proxy=wanted.proxy)

    async def show(record: DiagnosisRecord) -> dict[str, Any]:
        path = app.blobs.verified_path(record.blob)
        found = await asyncio.to_thread(lambda: dict(Diagnosis.load(path).summary))
        return {"diagnosis": _worst_findings(found)}

    return await in_lines(lambda report: app.diagnoses.get(query, report, request.own.peer), show)


async def pictures(request: PageRequest, wanted: PicturesWanted) -> Response:
    """POST /api/pictures."""
    app, ids = request.page.app, wanted.ids
    for row in ids:
        if not 0 <= row < app.data.num_rows:
            raise InvalidRequestError(
                f"there is no example {str(row)[:30]}: the data has {app.data.num_rows}, "
                "counted from 0."
            )
        if row in app.data.quarantined:
            raise InvalidRequestError(f"example {row} cannot be used, and is left out.")
    job = OnData(app.data.fingerprint, ShowExamples(tuple(ids)))
    examples = await app.compute.run(job, asked=_asked_by(request))
    labels_N, names = labels_of(app, app.data.fingerprint), app.data.class_names
    shown = [
        {
            "id": row,
            "label": int(labels_N[row]),
            "class_name": names[labels_N[row]],
            "png": example.picture,
            "text": example.text,
        }
        for row, example in zip(ids, examples, strict=True)
    ]
    return answer({"pictures": shown})


async def draw_map(request: PageRequest, wanted: MapWanted) -> Response:
    """POST /api/runs/{run}/map."""
    app, maps = request.page.app, request.page.maps
    run = find_ready(app.store, request.path("run"), app.data)
    found = [await app.subsets.find(run.run_id, digest) for digest in wanted.digests]
    chosen = [(await app.subsets.examples(one)).indices_K for one in found]
    drawn = await asyncio.to_thread(rows_to_draw, app.data.num_rows, chosen, (), run.config.seed)
    ids_M = np.setdiff1d(drawn.numpy(), np.array(app.data.quarantined, np.int64))
    key = (run.run_id, *wanted.digests)

    async def place(report: OnProgress) -> Places:
        if key not in maps:
            maps[key] = await _places(request, run, tuple(ids_M.tolist()), report)
        maps.move_to_end(key)
        while len(maps) > _MOST_MAPS:
            maps.popitem(last=False)
        return maps[key]

    async def show(places: Places) -> dict[str, Any]:
        return {
            "map": {
                "ids": ids_M.tolist(),
                "x": [x for x, _ in places],
                "y": [y for _, y in places],
                "labels": labels_of(app, app.data.fingerprint)[ids_M].tolist(),
                "chosen": [np.isin(ids_M, rows).tolist() for rows in chosen],
                "seen_by": f"the merged model of {run.name}",
            }
        }

    return await in_lines(place, show)


async def _signed_in(request: PageRequest, caller: Caller, response: Response) -> Response:
    page = request.page
    # A proxy in front that has TLS says so; anybody else who says it makes the cookie stricter.
    proxied = request.http.headers.get("x-forwarded-proto") == "https"
    response.set_cookie(
        page.cookie,
        await page.sessions.begin(caller),
        max_age=int(SESSION_SECONDS),
        path="/",
        httponly=True,
        samesite="strict",
        secure=page.encrypted or proxied,
    )
    return response


def _who(caller: Caller) -> dict[str, object]:
    return {"name": caller.name, "roles": [role for role in Role if role in caller.roles]}


async def _events(request: PageRequest) -> AsyncIterator[bytes]:
    page, session = request.page, request.own
    states: Any = page.watching.answers(
        interval_seconds=DEFAULT_INTERVAL_SECONDS, num_runs=_NUM_RUNS
    )
    async with aclosing(states):
        async for state in states:
            if not page.sessions.holds(session):
                return
            yield await asyncio.to_thread(_event, state)


def _event(state: info_pb2.WatchServiceResponse) -> bytes:
    # JSON has no line breaks, and an event's data ends with one.
    return b"event: service\ndata: " + as_json(as_dict(state)) + b"\n\n"


def _run_answer(request: PageRequest, run: RunRecord) -> Response:
    app = request.page.app
    waiting = app.dispatcher.why_waiting(run)
    return answer({"run": as_dict(run_view(app.store, run, waiting=waiting))})


def _worst_findings(found: dict[str, Any]) -> dict[str, Any]:
    """A diagnosis' summary with the worst of each finding."""
    errors, outliers = found["label_errors"], found["outliers"]
    return {
        **found,
        "suspects": errors["ranked"][:_MOST_FINDINGS],
        "label_errors": {name: errors[name] for name in errors if name != "ranked"},
        "groups": [one[:_MOST_OF_GROUP] for one in found["duplicates"]["groups"][:_MOST_GROUPS]],
        "duplicates": {name: n for name, n in found["duplicates"].items() if name != "groups"},
        "outliers": {**outliers, "ranked": outliers["ranked"][:_MOST_FINDINGS]},
        "worst_fitting": found["worst_fitting"][:_MOST_FINDINGS],
    }


async def _places(
    request: PageRequest, run: RunRecord, ids: tuple[int, ...], report: OnProgress
) -> Places:
    app, asked = request.page.app, _asked_by(request, run.run_id)
    await restore_pretrained_weights(run, app.blobs, app.compute, report, asked)
    if run.inputs is None or run.pretrained_weights is None:
        raise ValueError(f"run {run.run_id} is ready without weights")
    job = MapExamples(run.config, run.inputs, run.pretrained_weights, ids)
    return await app.compute.run(OnData(run.fingerprint, job), report, asked)


def _asked_by(request: PageRequest, run: str = "") -> Asked:
    peer = request.own.peer
    return Asked(run, lambda: frozenset({peer}))
