"""Runs of the page: started and cancelled by admins."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from lipt.common.config.messages import overrides_to_proto
from lipt.common.rpc.lengths import require_lengths
from lipt.coordinator.page.answers import answer, as_dict
from lipt.coordinator.page.bodies import Body, Nothing
from lipt.coordinator.page.page import Asked
from lipt.coordinator.rpc.messages import run_view
from lipt.coordinator.state.records import RunRecord
from lipt.v1 import run_pb2 as pb


class RunWanted(Body):
    """A run to start.

    name: one is made up where it is empty.
    overrides: of the defaults, nested as in a file's table [run].
    request_id: the same where a request is made again, so that it starts one run.
    """

    name: Annotated[str, Field(max_length=200)] = ""
    overrides: dict[str, Any] = Field(default_factory=dict)
    request_id: Annotated[str, Field(max_length=100)] = ""


async def start_run(asked: Asked, wanted: RunWanted) -> Response:
    """POST /api/runs."""
    request = pb.CreateRunRequest(
        request_id=wanted.request_id, name=wanted.name, config=overrides_to_proto(wanted.overrides)
    )
    require_lengths(request)
    run = await asked.page.app.requests.create(request.request_id, request.name, request.config)
    return _run_answer(asked, run)


async def cancel_run(asked: Asked, _: Nothing) -> Response:
    """POST /api/runs/{run}/cancel."""
    return _run_answer(asked, await asked.page.app.requests.cancel(asked.path("run")))


def _run_answer(asked: Asked, run: RunRecord) -> Response:
    app = asked.page.app
    return answer(
        {"run": as_dict(run_view(app.store, run, waiting=app.dispatcher.why_waiting(run)))}
    )
