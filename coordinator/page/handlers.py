"""Handlers: signing in, the live service, runs, and subsets with their examples.

Shapes: N examples of the data, K of the subset, C classes.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from starlette.responses import RedirectResponse, Response

from lipt.common.access.roles import Role
from lipt.common.config.values import overrides_to_proto
from lipt.common.determinism import derive_seed
from lipt.common.errors import (
    InvalidRequestError,
    LiptError,
    OtherDataError,
    UnauthenticatedError,
)
from lipt.common.maps import rows_to_draw
from lipt.common.rpc.messages import require_lengths
from lipt.common.subsets import Examples, overlap
from lipt.coordinator.access.caller import Caller, require_role
from lipt.coordinator.app import App
from lipt.coordinator.compute.jobs.selecting import MapExamples, ShowExamples
from lipt.coordinator.compute.messages import Asked, OnData
from lipt.coordinator.compute.progress import OnProgress
from lipt.coordinator.page.requests import (
    Body,
    Nothing,
    PageRequest,
    Streaming,
    address_of,
    answer,
    as_dict,
    as_json,
    in_lines,
    refuse,
)
from lipt.coordinator.page.sessions import SESSION_SECONDS
from lipt.coordinator.rpc.info import DEFAULT_INTERVAL_SECONDS
from lipt.coordinator.rpc.messages import run_view
from lipt.coordinator.rpc.strategies import describe_strategies
from lipt.coordinator.rpc.subsets import query_of
from lipt.coordinator.runs.repair import restore_pretrained_weights
from lipt.coordinator.state.records import DiagnosisRecord, RunRecord, SubsetRecord
from lipt.coordinator.subsets.diagnoses import DiagnosisQuery
from lipt.coordinator.subsets.ready_runs import find_ready
from lipt.coordinator.subsets.service import Answer
from lipt.core.diagnosis.diagnosis import Diagnosis
from lipt.v1 import info_pb2, run_pb2, subset_pb2

# The call whose roles may see the page at all.
OPEN_PAGE = "AccessService/OpenPage"
NUM_SHOWN = 32
MAX_PICTURES = 64
_NUM_RUNS = 50
# What an int64 of the contract takes.
_MAX_BUDGET = 2**63 - 1

Handler = Callable[[PageRequest, Any], Awaitable[Response]]
Labels = NDArray[np.int64]


class TokenShown(Body):
    """A token, as it was pasted."""

    token: Annotated[str, Field(max_length=200)]


class RunWanted(Body):
    """A run to start; `settings` are TOML, as in a file's table [run]."""

    name: Annotated[str, Field(max_length=200)] = ""
    settings: str = ""


class PicturesWanted(Body):
    """Examples by their ids."""

    ids: Annotated[list[int], Field(max_length=MAX_PICTURES)]


class DiagnosisWanted(Body):
    """The run whose learners look at the data; empty for the data alone."""

    run_id: Annotated[str, Field(max_length=200)] = ""


class MapWanted(Body):
    """One subset of a run, or two side by side, by their digests."""

    digests: Annotated[list[str], Field(min_length=1, max_length=2)]


class SubsetWanted(Body):
    """A subset; see `GetSubsetRequest` of the contract."""

    strategy: str
    fraction: float | None = None
    budget: Annotated[int | None, Field(ge=0, le=_MAX_BUDGET)] = None
    options: Annotated[dict[str, str], Field(max_length=100)] = Field(default_factory=dict)


async def sign_in_by_code(request: PageRequest, _: None) -> Response:
    """GET /sign-in?code=: the browser becomes the caller that requested the link."""
    page, address = request.page, address_of(request.http)
    try:
        page.attempts.require_room(address)
        caller = page.sessions.take_code(request.http.query_params.get("code", ""))
        require_role(caller, f"/lipt.v1.{OPEN_PAGE}")
    except LiptError as error:
        if isinstance(error, UnauthenticatedError):
            page.attempts.note_failure(address)
        refuse(page, error, request.http)
        return RedirectResponse("/?refused=1", 303)
    return await _signed_in(request, caller, RedirectResponse("/", 303))


async def sign_in_by_token(request: PageRequest, body: TokenShown) -> Response:
    """POST /api/sign-in."""
    page, address = request.page, address_of(request.http)
    page.attempts.require_room(address)
    try:
        caller = page.app.tokens.caller(body.token)
    except UnauthenticatedError:
        page.attempts.note_failure(address)
        raise
    require_role(caller, f"/lipt.v1.{OPEN_PAGE}")
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
    try:
        overrides = tomllib.loads(wanted.settings)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"the settings are no TOML: {str(error)[:100]}. Example: soup.num_alphas = 5"
        ) from None
    config = overrides_to_proto(overrides)
    require_lengths(run_pb2.CreateRunRequest(name=wanted.name, config=config))
    run = await request.page.app.requests.create("", wanted.name, config)
    return _run_answer(request, run)


async def cancel_run(request: PageRequest, _: Nothing) -> Response:
    """POST /api/runs/{run}/cancel."""
    return _run_answer(request, await request.page.app.requests.cancel(request.path("run")))


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
    labels_N, names = _labels_of(app, app.data.fingerprint), app.data.class_names
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


async def diagnose(request: PageRequest, wanted: DiagnosisWanted) -> Response:
    """POST /api/diagnosis: computed once, and stored."""
    app, query = request.page.app, DiagnosisQuery(run=wanted.run_id)

    async def show(record: DiagnosisRecord) -> dict[str, Any]:
        path = app.blobs.verified_path(record.blob)
        return {"diagnosis": (await asyncio.to_thread(Diagnosis.load, path)).summary}

    return await in_lines(lambda report: app.diagnoses.get(query, report, request.own.peer), show)


async def compare_subsets(request: PageRequest, _: None) -> Response:
    """GET /api/runs/{run}/subsets/{digest}/beside/{other}: how many examples the two share."""
    subsets, run = request.page.app.subsets, request.path("run")
    first, second = [await subsets.find(run, request.path(name)) for name in ("digest", "other")]
    labels_N = _labels_of(request.page.app, first.fingerprint)
    if not len(labels_N):
        raise OtherDataError("the subsets are of other data. Serve their own data again.")
    first_K, second_L = [(await subsets.examples(one)).indices_K for one in (first, second)]
    return answer(asdict(await asyncio.to_thread(overlap, first_K, second_L, labels_N)))


async def draw_map(request: PageRequest, wanted: MapWanted) -> Response:
    """POST /api/runs/{run}/map: a sample of the examples and of the subsets, on a plane."""
    app = request.page.app
    run = find_ready(app.store, request.path("run"), app.data)
    records = [await app.subsets.find(run.run_id, one) for one in wanted.digests]
    chosen = [(await app.subsets.examples(one)).indices_K for one in records]
    drawn = await asyncio.to_thread(rows_to_draw, app.data.num_rows, chosen, (), run.config.seed)
    ids_M = np.setdiff1d(drawn.numpy(), np.array(app.data.quarantined, np.int64))
    if run.inputs is None or run.pretrained_weights is None:
        raise ValueError(f"run {run.run_id} is ready without weights")
    job = MapExamples(run.config, run.inputs, run.pretrained_weights, tuple(ids_M.tolist()))
    asked = _asked_by(request, run.run_id)

    async def place(report: OnProgress) -> tuple[tuple[float, float], ...]:
        await restore_pretrained_weights(run, app.blobs, app.compute, report, asked)
        return await app.compute.run(OnData(run.fingerprint, job), report, asked)

    async def show(places: tuple[tuple[float, float], ...]) -> dict[str, Any]:
        return {
            "ids": ids_M.tolist(),
            "places": places,
            "labels": _labels_of(app, app.data.fingerprint)[ids_M].tolist(),
            "chosen": [np.isin(ids_M, rows).tolist() for rows in chosen],
        }

    return await in_lines(place, show)


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
    message = subset_pb2.GetSubsetRequest(**fields)
    require_lengths(message)
    query, app = query_of(message), request.page.app

    async def show(found: Answer) -> dict[str, Any]:
        return await _shown(request, found.subset)

    return await in_lines(lambda report: app.subsets.get(query, report, request.own.peer), show)


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
    states: Any = page.info.states(interval_seconds=DEFAULT_INTERVAL_SECONDS, num_runs=_NUM_RUNS)
    async with aclosing(states):
        async for state in states:
            if not page.sessions.holds(session):
                return
            yield await asyncio.to_thread(_event, state)


def _event(state: info_pb2.WatchServiceResponse) -> bytes:
    # JSON has no line breaks, and an event's data ends with one.
    return b"event: service\ndata: " + as_json(as_dict(state)) + b"\n\n"


def _asked_by(request: PageRequest, run: str = "") -> Asked:
    peer = request.own.peer
    return Asked(run, lambda: frozenset({peer}))


def _run_answer(request: PageRequest, run: RunRecord) -> Response:
    app = request.page.app
    waiting = app.dispatcher.why_waiting(run)
    return answer({"run": as_dict(run_view(app.store, run, waiting=waiting))})


def _labels_of(app: App, fingerprint: str) -> Labels:
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

    `labels_N` is empty where the subset was chosen of other data; `quarantined` are excluded ids.
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
    data: Any = subset.manifest.get("data") or {}
    return {
        **listed(subset, len(labels_N) or int(data.get("num_examples", 0)), address),
        "classes": classes,
        "weights": {
            "min": float(weights_K.min()),
            "max": float(weights_K.max()),
            "weighted": weighted,
        },
        "most_wanted": most,
        "least_wanted": _drawn(subset, rest, "left out"),
        # Neither an order of choice nor a score of the others is stored.
        "wanted_by": {"most": "weight" if weighted else "draw", "least": "draw"},
    }


def code_for(subset: SubsetRecord, address: str) -> str:
    """Three lines of Python that use a subset."""
    manifest: dict[str, Any] = subset.manifest
    asked = {
        "budget": manifest.get("budget", subset.num_examples),
        "options": manifest.get("options") or None,
        "balanced": subset.balanced,
        "preset": manifest.get("preset"),
        "labels": "none" if manifest.get("labels") == "none" else None,
        "proxy": (manifest.get("proxy") or {}).get("proxy"),
    }
    given = [repr(subset.run_id), repr(subset.strategy)]
    given += [f"{name}={value!r}" for name, value in asked.items() if value is not None]
    return (
        "import lipt\n"
        f"subset = lipt.Client({address!r}).subset({', '.join(given)})\n"
        "train_set = subset.dataset(data)  # data: the examples that the coordinator has\n"
    )


async def _shown(request: PageRequest, subset: SubsetRecord) -> dict[str, Any]:
    page = request.page
    data, examples = page.app.data, await page.app.subsets.examples(subset)
    labels_N = _labels_of(page.app, subset.fingerprint)
    quarantined = data.quarantined if len(labels_N) else ()
    # Of a million examples it takes longer than the event loop may be held.
    shown = await asyncio.to_thread(
        examined, subset, examples, labels_N, data.class_names, page.address, quarantined
    )
    return {"subset": shown}


def _drawn(subset: SubsetRecord, rows: NDArray[np.int64], purpose: str) -> list[int]:
    """Some rows, ascending; the same at every look at the subset."""
    config: Any = subset.manifest.get("run_config") or {}
    seed = derive_seed(int(config.get("seed", 0)), f"page: {purpose} {subset.digest}")
    generator = np.random.default_rng(seed)
    found: list[int] = np.sort(generator.permutation(rows)[:NUM_SHOWN]).tolist()
    return found
