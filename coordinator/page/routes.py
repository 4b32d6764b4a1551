"""Routes: every address of the page's interface, and who may ask for it. There are no others.

Each one takes the roles of a call of the contract that does the same, by the one access table. A
row that changes something of the whole service takes an admin besides.
"""

from __future__ import annotations

from dataclasses import dataclass

from lipt.coordinator.page.bodies import Body, Nothing
from lipt.coordinator.page.diagnosis import DiagnosisWanted, diagnose
from lipt.coordinator.page.examples import MapWanted, PicturesWanted, draw_map, pictures
from lipt.coordinator.page.live import info, live
from lipt.coordinator.page.page import Handler
from lipt.coordinator.page.runs import RunWanted, cancel_run, start_run
from lipt.coordinator.page.signing_in import (
    OPEN_PAGE,
    TokenShown,
    sign_in_by_code,
    sign_in_by_token,
    sign_out,
    who_am_i,
)
from lipt.coordinator.page.subsets import (
    SubsetWanted,
    TwoSubsets,
    ask_for_subset,
    list_subsets,
    show_subset,
    side_by_side,
    strategies,
)

_GET_SUBSET = "/lipt.v1.SubsetService/GetSubset"
_DIAGNOSE = "/lipt.v1.DiagnosisService/Diagnose"


@dataclass(frozen=True)
class Row:
    """A route.

    calls: the call of the contract that takes the same roles; empty where nobody has to have
        signed in.
    body: what it is told; None for a GET.
    admins_only: whether the page lets no others do it, whatever the call does.
    streams: whether its answer goes on for a while.
    """

    method: str
    path: str
    handler: Handler
    calls: str
    body: type[Body] | None = None
    admins_only: bool = False
    streams: bool = False


ROUTES = (
    Row("GET", "/sign-in", sign_in_by_code, ""),
    Row("POST", "/api/sign-in", sign_in_by_token, "", TokenShown),
    Row("POST", "/api/sign-out", sign_out, OPEN_PAGE, Nothing),
    Row("GET", "/api/me", who_am_i, OPEN_PAGE),
    Row("GET", "/api/info", info, "/lipt.v1.InfoService/GetInfo"),
    Row("GET", "/api/live", live, "/lipt.v1.InfoService/WatchService", streams=True),
    Row(
        "POST",
        "/api/runs",
        start_run,
        "/lipt.v1.RunService/CreateRun",
        RunWanted,
        admins_only=True,
    ),
    Row(
        "POST",
        "/api/runs/{run}/cancel",
        cancel_run,
        "/lipt.v1.RunService/CancelRun",
        Nothing,
        admins_only=True,
    ),
    Row("GET", "/api/strategies", strategies, "/lipt.v1.SubsetService/ListStrategies"),
    Row("GET", "/api/runs/{run}/subsets", list_subsets, _GET_SUBSET),
    Row("GET", "/api/runs/{run}/subsets/{digest}", show_subset, _GET_SUBSET),
    Row("POST", "/api/runs/{run}/subsets", ask_for_subset, _GET_SUBSET, SubsetWanted, streams=True),
    Row("POST", "/api/runs/{run}/side-by-side", side_by_side, _GET_SUBSET, TwoSubsets),
    Row("POST", "/api/runs/{run}/map", draw_map, _GET_SUBSET, MapWanted, streams=True),
    Row("POST", "/api/pictures", pictures, _DIAGNOSE, PicturesWanted),
    Row("POST", "/api/diagnosis", diagnose, _DIAGNOSE, DiagnosisWanted, streams=True),
)
