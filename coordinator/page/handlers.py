"""Handlers: signing in, calls of the contract, and subsets with their examples.

Shapes: N examples of the data, K of the subset, M of a map, C classes.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray
from pydantic import Field
from starlette.responses import RedirectResponse, Response

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
from lipt.coordinator.compute.messages import Asked, OnData, OnProgress
from lipt.coordinator.page.requests import (
    Body,
    PageRequest,
    address_of,
    answer,
    in_lines,
    parse_body,
    refuse,
)
from lipt.coordinator.page.sessions import SESSION_SECONDS
from lipt.coordinator.rpc.subsets import Answering
from lipt.coordinator.runs.holding import find_ready
from lipt.coordinator.runs.repair import restore
from lipt.coordinator.state.records import SubsetRecord
from lipt.core.diagnosis.diagnosis import Diagnosis
from lipt.v1 import run_pb2

# The call whose roles may see the page at all.
OPEN_PAGE = "AccessService/OpenPage"
NUM_SHOWN = 32
MAX_PICTURES = 64

Handler = Callable[[PageRequest], Awaitable[Response]]
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


class MapWanted(Body):
    """One subset of a run, or two side by side, by their digests."""

    digests: Annotated[list[str], Field(min_length=1, max_length=2)]


async def sign_in_by_code(request: PageRequest) -> Response:
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
    return _signed_in(request, caller, RedirectResponse("/", 303))


async def sign_in_by_token(request: PageRequest) -> Response:
    """POST /api/sign-in."""
    page, address = request.page, address_of(request.http)
    shown = parse_body(request.body, TokenShown)
    page.attempts.require_room(address)
    try:
        caller = page.app.tokens.caller(shown.token)
    except UnauthenticatedError:
        page.attempts.note_failure(address)
        raise
    require_role(caller, f"/lipt.v1.{OPEN_PAGE}")
    return _signed_in(request, caller, answer({}))


def _signed_in(request: PageRequest, caller: Caller, response: Response) -> Response:
    page = request.page
    # A proxy in front that has TLS says so; anybody else who says it makes the cookie stricter.
    proxied = request.http.headers.get("x-forwarded-proto") == "https"
    response.set_cookie(
        page.cookie,
        page.sessions.begin(caller),
        max_age=int(SESSION_SECONDS),
        path="/",
        httponly=True,
        samesite="strict",
        secure=page.encrypted or proxied,
    )
    return response


async def sign_out(request: PageRequest) -> Response:
    """POST /api/sign-out: ends the caller's sessions and takes the cookie away."""
    await request.page.sessions.end(request.session)
    response = answer({})
    response.delete_cookie(request.page.cookie, path="/", httponly=True, samesite="strict")
    return response


def calling(call: str) -> tuple[Handler, bool]:
    """The handler that makes a call of the contract, as JSON; and whether its answer streams."""
    method = Default().FindMethodByName(f"lipt.v1.{call.replace('/', '.')}")
    service, _, name = call.partition("/")

    async def handle(request: PageRequest) -> Response:
        message = GetMessageClass(method.input_type)()
        try:
            Parse(request.body, message)
        except (ParseError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"the body cannot be: {str(error)[:200]}.") from None
        require_lengths(message)
        answered = getattr(request.page.services[service], name)(message, request)
        if method.server_streaming:
            return await in_lines(answered, request)
        return answer(await answered)

    return handle, method.server_streaming


async def start_run(request: PageRequest) -> Response:
    """POST /api/runs."""
    wanted = parse_body(request.body, RunWanted)
    try:
        overrides = tomllib.loads(wanted.settings)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"the settings are no TOML: {str(error)[:100]}. Example: soup.num_alphas = 5"
        ) from None
    message = run_pb2.CreateRunRequest(name=wanted.name, config=overrides_to_proto(overrides))
    require_lengths(message)
    return answer(await request.page.services["RunService"].CreateRun(message, request))


async def pictures(request: PageRequest) -> Response:
    """POST /api/pictures."""
    app, ids = request.page.app, parse_body(request.body, PicturesWanted).ids
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


async def show_diagnosis(request: PageRequest) -> Response:
    """GET /api/diagnoses/{sha256}: the findings of a stored diagnosis."""
    blobs = request.page.app.blobs

    def load() -> Diagnosis:
        return Diagnosis.load(blobs.verified_path(blobs.find(request.path("sha256"))))

    return answer((await asyncio.to_thread(load)).summary)


async def list_subsets(request: PageRequest) -> Response:
    """GET /api/runs/{run}/subsets: newest first."""
    page = request.page
    found = await page.app.answers.subsets_of(request.path("run"))
    num_examples = page.app.data.num_examples
    return answer({"subsets": [listed(one, num_examples, page.address) for one in found]})


async def show_subset(request: PageRequest) -> Response:
    """GET /api/runs/{run}/subsets/{digest}."""
    page, data = request.page, request.page.app.data
    subset = await page.app.answers.find_subset(request.path("run"), request.path("digest"))
    examples = await page.app.answers.examples(subset)
    labels_N = _labels_of(page.app, subset.fingerprint)
    quarantined = data.quarantined if len(labels_N) else ()
    # Of a million examples it takes longer than the event loop may be held.
    shown = await asyncio.to_thread(
        examined, subset, examples, labels_N, data.class_names, page.address, quarantined
    )
    return answer({"subset": shown})


async def compare_subsets(request: PageRequest) -> Response:
    """GET /api/runs/{run}/subsets/{digest}/beside/{other}: how many examples the two share."""
    answers, run = request.page.app.answers, request.path("run")
    pair = [await answers.find_subset(run, request.path(key)) for key in ("digest", "other")]
    labels_N = _labels_of(request.page.app, pair[0].fingerprint)
    if not len(labels_N):
        raise OtherDataError("the subsets are of other data. Serve their own data again.")
    first_K, second_L = [(await answers.examples(one)).indices_K for one in pair]
    return answer(asdict(await asyncio.to_thread(overlap, first_K, second_L, labels_N)))


async def draw_map(request: PageRequest) -> Response:
    """POST /api/runs/{run}/map: a sample of the examples and of the subsets, on a plane."""
    app, wanted = request.page.app, parse_body(request.body, MapWanted)
    run = find_ready(app.store, request.path("run"), app.data)
    records = [await app.answers.find_subset(run.run_id, one) for one in wanted.digests]
    chosen = [(await app.answers.examples(one)).indices_K for one in records]
    drawn = await asyncio.to_thread(rows_to_draw, app.data.num_rows, chosen, (), run.config.seed)
    ids_M = np.setdiff1d(drawn.numpy(), np.array(app.data.quarantined, np.int64))
    if run.inputs is None or run.pretrained_weights is None:
        raise ValueError(f"run {run.run_id} is ready without weights")
    job = MapExamples(run.config, run.inputs, run.pretrained_weights, tuple(ids_M.tolist()))
    asked = _asked_by(request, run.run_id)

    async def place(report: OnProgress) -> tuple[tuple[float, float], ...]:
        await restore(run, [job.weights], app.blobs, app.compute, report, asked)
        return await app.compute.run(OnData(run.fingerprint, job), report, asked)

    async def values() -> AsyncGenerator[object, None]:
        with Answering(place) as answering:
            while (latest := await answering.next_report()) is not None:
                yield {"progress": asdict(latest)}
            places_M2 = answering.result()
        yield {
            "ids": ids_M.tolist(),
            "places": places_M2,
            "labels": _labels_of(app, app.data.fingerprint)[ids_M].tolist(),
            "chosen": [np.isin(ids_M, rows_K).tolist() for rows_K in chosen],
        }

    return await in_lines(values(), request)


def _asked_by(request: PageRequest, run: str = "") -> Asked:
    return Asked(run, lambda: frozenset({request.peer()}))


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
    chosen = heaviest_K[:NUM_SHOWN].tolist() if weighted else _drawn(subset, indices_K, "chosen")
    data: Any = subset.manifest.get("data") or {}
    return {
        **listed(subset, len(labels_N) or int(data.get("num_examples", 0)), address),
        "classes": classes,
        "weights": {
            "min": float(weights_K.min()),
            "max": float(weights_K.max()),
            "weighted": weighted,
        },
        # Neither an order of choice nor a score of the others is stored.
        "chosen": chosen,
        "left_out": _drawn(subset, rest, "left out"),
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


def _drawn(subset: SubsetRecord, rows: NDArray[np.int64], purpose: str) -> list[int]:
    """Some rows, ascending; the same at every look at the subset."""
    config: Any = subset.manifest.get("run_config") or {}
    seed = derive_seed(int(config.get("seed", 0)), f"page: {purpose} {subset.digest}")
    generator = np.random.default_rng(seed)
    found: list[int] = np.sort(generator.permutation(rows)[:NUM_SHOWN]).tolist()
    return found
