"""Summaries: what is kept in memory of every run; the record of one that has ended stays on disk.

A coordinator may have tens of thousands of ended runs, of which hardly any is asked for.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from functools import cache
from typing import Self

from pydantic import TypeAdapter

from lipt.common.inputs.specs import InputFormat
from lipt.common.states import RunState
from lipt.coordinator.state.records import RunRecord


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What runs are found, listed, counted, held and removed by; fields as in `RunRecord`."""

    run_id: str
    name: str
    request_id: str
    created_at: float
    state: RunState
    ended_at: float | None
    fingerprint: str
    inputs: InputFormat | None

    @classmethod
    def of(cls, run: RunRecord) -> Self:
        """A run's summary as its record is now."""
        return cls(
            run_id=run.run_id,
            name=run.name,
            request_id=run.request_id,
            created_at=run.created_at,
            state=run.state,
            ended_at=run.ended_at,
            fingerprint=run.fingerprint,
            inputs=run.inputs,
        )


def read_summaries(connection: sqlite3.Connection, problems: list[str]) -> tuple[RunSummary, ...]:
    """The summaries of all runs, oldest first; SQLite takes them out of the records.

    Args:
        connection: a database.
        problems: takes a clause for every one that cannot be read, and is left out.
    """
    summaries = []
    # Nearly all runs are of the same few kinds of data: each is read, and kept, once.
    same = cache(str)
    inputs_of = cache(_INPUTS.validate_json)
    for run_id, name, request_id, created_at, *fields in connection.execute(_SUMMARIES):
        try:
            state, ended_at, fingerprint, inputs = fields
            summaries.append(
                RunSummary(
                    run_id=run_id,
                    name=name,
                    request_id=request_id,
                    created_at=created_at,
                    state=RunState(state),
                    ended_at=ended_at,
                    fingerprint=same(fingerprint),
                    inputs=None if inputs is None else inputs_of(inputs),
                )
            )
        except ValueError as error:
            why = str(error)[:500]
            problems.append(f"the record of run {run_id} cannot be read: {why}")
    return tuple(summaries)


_INPUTS: TypeAdapter[InputFormat] = TypeAdapter(InputFormat)
# Of a body that is no JSON nothing is known, not even its state.
_SUMMARIES = """
    SELECT run_id, name, request_id, created_at,
        json_extract(body, '$.state'), json_extract(body, '$.ended_at'),
        json_extract(body, '$.fingerprint'), json_extract(body, '$.inputs')
    FROM (
        SELECT run_id, name, request_id, created_at,
            CASE WHEN json_valid(body) THEN body ELSE '{}' END AS body
        FROM runs
    )
    ORDER BY created_at, run_id
"""
