"""Handlers: signing in, calls of the contract, subsets with their examples, and mixtures.

Shapes: N examples of the data, K of the subset, M of a map, C classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray
from pydantic import Field
from starlette.responses import RedirectResponse, Response

from lipt.common.config.values import overrides_to_proto
from lipt.common.determinism import derive_seed
from lipt.common.errors import InvalidRequestError, LiptError, UnauthenticatedError
from lipt.common.nested import parse_toml
from lipt.common.rpc.messages import require_lengths
from lipt.common.subsets import Examples, overlap
from lipt.coordinator.access.caller import Caller, require_role
from lipt.coordinator.compute.jobs.selection import MapExamples, ShowExamples
from lipt.coordinator.compute.messages import JobOptions, OnProgress
from lipt.coordinator.mixtures import Mixtures
from lipt.coordinator.page.requests import Handler, Page, PageRequest, address_of, answer, refuse
from lipt.coordinator.page.sessions import SESSION_SECONDS
from lipt.coordinator.rpc.trainers import Answering
from lipt.coordinator.runs.availability import find_ready, restore
from lipt.coordinator.state.records import SubsetRecord
from lipt.core.diagnosis.diagnosis import DiagnosisFile
from lipt.core.mixture.result import MixtureSummary
from lipt.v1 import run_pb2

# The call whose roles may open the page.
OPEN_PAGE = "AccessService/OpenPage"
NUM_SHOWN = 32
MAX_PICTURES = 64
_MAP_AT_RANDOM = 1000
# Limit for all subsets together, beyond the random ones.
_MAP_OF_SUBSETS = 500


async def sign_in_by_code(request: PageRequest) -> object:
    code = request.http.query_params.get("code", "")
    try:
        return _signed_in(
            request, lambda: request.page.sessions.take_code(code), RedirectResponse("/", 303)
        )
    except LiptError as error:
        refuse(request.page, error, request.http)
        return RedirectResponse("/?refused=1", 303)


async def sign_in_by_token(
    request: PageRequest, token: Annotated[str, Field(max_length=200)]
) -> object:
    return _signed_in(request, lambda: request.page.app.tokens.caller(token), answer({}))


def _signed_in(
    request: PageRequest, identify: Callable[[], Caller], response: Response
) -> Response:
    page = request.page
    address = address_of(request.http)
    try:
        caller = identify()
    except UnauthenticatedError:
        # Failures alone are limited: others may share the address.
        page.attempts.note_failure(address)
        raise
    require_role(caller, f"/lipt.v1.{OPEN_PAGE}")
    # A TLS proxy sets this header; a forged one only makes the cookie stricter.
    proxied = request.http.headers.get("x-forwarded-proto") == "https"
    response.set_cookie(
        page.cookie,
        page.sessions.begin(caller),
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=page.encrypted or proxied,
    )
    return response


async def sign_out(request: PageRequest) -> object:
    await request.page.sessions.end(request.session)
    response = answer({})
    response.delete_cookie(request.page.cookie, httponly=True, samesite="strict")
    return response


def calling(call: str) -> tuple[Handler, bool]:
    """A handler of a call of the contract, with a JSON body, and whether it streams."""
    method = Default().FindMethodByName(f"lipt.v1.{call.replace('/', '.')}")
    service, _, name = call.partition("/")

    async def handle(request: PageRequest, /, **fields: object) -> object:
        message = GetMessageClass(method.input_type)()
        try:
            ParseDict(fields, message)
        except (ParseError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"the request body is invalid: {str(error)[:200]}.") from None
        require_lengths(message)
        answered = getattr(request.page.services[service], name)(message, request)
        return answered if method.server_streaming else await answered

    return handle, method.server_streaming


async def start_run(
    request: PageRequest, name: Annotated[str, Field(max_length=200)] = "", settings: str = ""
) -> object:
    try:
        overrides = parse_toml(settings)
    except ValueError as error:
        raise InvalidRequestError(
            f"the settings are no TOML: {str(error)[:100]}. Example: soup.num_alphas = 5"
        ) from None
    message = run_pb2.CreateRunRequest(name=name, config=overrides_to_proto(overrides))
    require_lengths(message)
    return await request.page.services["RunService"].CreateRun(message, request)


async def pictures(
    request: PageRequest, ids: Annotated[list[int], Field(max_length=MAX_PICTURES)]
) -> object:
    app = request.page.app
    for row in ids:
        if not 0 <= row < app.data.num_rows or row in app.data.quarantined:
            raise InvalidRequestError(
                f"there is no example {str(row)[:30]}, or it is quarantined. The data has "
                f"{app.data.num_rows}, counted from 0."
            )
    options = _options_of(request, app.data.fingerprint)
    examples = await app.compute.run(ShowExamples(tuple(ids)), options=options)
    labels_N, names = app.data.labels_N, app.data.class_names
    shown = [
        {"id": row, "class_name": names[labels_N[row]]} | asdict(example)
        for row, example in zip(ids, examples, strict=True)
    ]
    return {"pictures": shown}


async def show_diagnosis(request: PageRequest, sha256: str) -> object:
    app = request.page.app
    blob = (await app.answers.find_diagnosis(sha256)).blob
    diagnosis = await asyncio.to_thread(lambda: DiagnosisFile.load(app.blobs.verified_path(blob)))
    return diagnosis.findings.model_dump(mode="json")


async def list_subsets(request: PageRequest, run: str) -> object:
    subsets = await request.page.app.answers.subsets_of(run)
    return {"subsets": [_listed(subset, request.page) for subset in subsets]}


async def list_mixtures(request: PageRequest, run: str) -> object:
    mixtures = await Mixtures(request.page.app.answers).newest(run)
    return {
        "mixtures": [
            record.model_dump(include={"target_sha256", "created_at"})
            | {"result": summary and mixture_values(summary)}
            for record, summary in mixtures
        ]
    }


async def show_subsets(request: PageRequest, run: str, digest: str, other: str = "") -> object:
    """One or two subsets with classes, weights and sample examples, and the overlap of two."""
    app = request.page.app
    subsets = [await app.answers.find_subset(run, prefix) for prefix in (digest, other) if prefix]
    examples = [await app.answers.examples(subset) for subset in subsets]
    # No labels where other data is served.
    is_served = subsets[0].fingerprint == app.data.fingerprint
    labels_N = app.data.labels_N if is_served else np.empty(0, np.int64)

    def compared() -> dict[str, Any]:
        shown = [
            _listed(subset, request.page)
            | examined(subset, chosen, labels_N, app.data.class_names, app.data.quarantined)
            for subset, chosen in zip(subsets, examples, strict=True)
        ]
        rows = [chosen.indices_K for chosen in examples]
        # Without the labels of their data, chance is unknown.
        comparable = len(rows) == 2 and len(labels_N)
        return {
            "subsets": shown,
            "overlap": asdict(overlap(rows[0], rows[1], labels_N)) if comparable else None,
        }

    # A million examples would block the event loop.
    return await asyncio.to_thread(compared)


def rows_to_draw(
    num_examples: int, subsets: Sequence[NDArray[np.int64]], seed: int
) -> NDArray[np.int64]:
    """Rows of a map, ascending: a random sample, and more rows of each subset."""
    order = np.random.default_rng(derive_seed(seed, "map")).permutation(num_examples)
    share = _MAP_OF_SUBSETS // max(len(subsets), 1)
    parts = [order[np.isin(order, subset)][:share] for subset in subsets]
    return np.unique(np.concatenate([order[:_MAP_AT_RANDOM], *parts]))


async def draw_map(
    request: PageRequest, run: str, digests: Annotated[list[str], Field(min_length=1, max_length=2)]
) -> object:
    app = request.page.app
    record = find_ready(app.store, run, app.data)
    records = [await app.answers.find_subset(record.run_id, digest) for digest in digests]
    chosen = [(await app.answers.examples(subset)).indices_K for subset in records]
    drawn = await asyncio.to_thread(rows_to_draw, app.data.num_rows, chosen, record.config.seed)
    ids_M = np.setdiff1d(drawn, np.array(app.data.quarantined, np.int64))
    if record.inputs is None or record.pretrained_weights is None:
        raise ValueError(f"run {record.run_id} is ready without weights")
    job = MapExamples(
        record.config, record.inputs, record.pretrained_weights, tuple(ids_M.tolist())
    )
    options = _options_of(request, record.fingerprint, record.run_id)

    async def place(report: OnProgress) -> tuple[tuple[float, float], ...]:
        await restore(record, [job.weights], app.blobs, app.compute, report, options)
        return await app.compute.run(job, report, options)

    async def values() -> AsyncGenerator[object, None]:
        with Answering(place) as answering:
            async for latest in answering:
                yield {"progress": asdict(latest)}
            places_M2 = answering.result()
        yield {
            "ids": ids_M.tolist(),
            "places": places_M2,
            "labels": app.data.labels_N[ids_M].tolist(),
            "chosen": [np.isin(ids_M, rows_K).tolist() for rows_K in chosen],
        }

    return values()


def _options_of(request: PageRequest, fingerprint: str, run: str = "") -> JobOptions:
    return JobOptions(run, lambda: frozenset({request.peer()}), fingerprint=fingerprint)


def mixture_values(summary: MixtureSummary) -> dict[str, Any]:
    """A mixture's shares with intervals, and its losses by mixture."""
    return {
        "shares": [
            {"source": name, "share": share, "interval": summary.intervals[name]}
            for name, share in summary.weights.items()
        ],
        "losses": {name: outcome.loss for name, outcome in summary.outcomes.items()},
        "target_examples": summary.manifest["target_examples"],
        "verdict": summary.verdict,
        "findings": summary.findings,
    }


def _listed(subset: SubsetRecord, page: Page) -> dict[str, Any]:
    data: Any = subset.manifest.get("data") or {}
    num_examples = data.get("num_examples") or page.app.data.num_examples
    return {
        **subset.model_dump(include={"digest", "strategy", "num_examples", "run_id", "created_at"}),
        "fraction": subset.num_examples / max(num_examples, 1),
        "manifest": subset.manifest,
    }


def examined(
    subset: SubsetRecord,
    examples: Examples,
    labels_N: NDArray[np.int64],
    class_names: Sequence[str],
    quarantined: Sequence[int],
) -> dict[str, Any]:
    """A subset's weights, chosen and excluded examples, and classes if its data is served."""
    indices_K, weights_K = examples.indices_K, examples.weights_K
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
    low, high = float(weights_K.min()), float(weights_K.max())
    # Neither an order of choice nor a score of the others is stored.
    chosen = heaviest_K[:NUM_SHOWN].tolist() if low < high else _drawn(subset, indices_K)
    return {
        "classes": classes,
        "weights": {"min": low, "max": high, "weighted": low < high},
        "chosen": chosen,
        "not_chosen": _drawn(subset, rest),
    }


def _drawn(subset: SubsetRecord, rows: NDArray[np.int64]) -> list[int]:
    """A random sample of rows, ascending; always the same for a subset."""
    generator = np.random.default_rng(derive_seed(0, f"page: {subset.digest}"))
    drawn: list[int] = np.sort(generator.permutation(rows)[:NUM_SHOWN]).tolist()
    return drawn
