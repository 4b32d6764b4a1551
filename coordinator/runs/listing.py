"""Listing: runs by pages, newest first, whatever starts or is removed between two pages.

A page's token names the last run that it showed, by its time and id: what comes next is older, also
where that run is gone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from lipt.common.errors import InvalidRequestError
from lipt.coordinator.state.records import RunSummary

# A float64 as Python writes its bits, and an id of any run.
_TOKEN = re.compile(r"(0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,3})/([0-9a-zA-Z_-]{1,64})")

_Place = tuple[float, str]


def page_of(runs: Iterable[RunSummary], token: str, size: int) -> tuple[Sequence[RunSummary], str]:
    """A page of runs, and the token of the next one; empty where there is none.

    Args:
        runs: all of them, in any order.
        token: of the page; empty for the first.
        size: how many runs a page shows at most, one or more.

    Raises:
        InvalidRequestError: the token is none that a page had.
    """
    after = _place_of_token(token) if token else (math.inf, "")
    older = sorted((run for run in runs if _place(run) < after), key=_place, reverse=True)
    page = older[:size]
    if len(older) <= size:
        return page, ""
    created_at, run_id = _place(page[-1])
    return page, f"{created_at.hex()}/{run_id}"


def _place(run: RunSummary) -> _Place:
    return run.created_at, run.run_id


def _place_of_token(token: str) -> _Place:
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise InvalidRequestError(
            f"page_token {token[:64]!r} is none that this service gave. Begin without one."
        )
    return float.fromhex(match[1]), match[2]
