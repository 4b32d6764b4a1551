"""Diagnosis of the page: what is the matter with the data, as numbers, tables and examples."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from lipt.coordinator.page.bodies import Body
from lipt.coordinator.page.lines import in_lines
from lipt.coordinator.page.page import Asked
from lipt.coordinator.state.records import DiagnosisRecord
from lipt.coordinator.subsets.diagnoses import DiagnosisQuery
from lipt.core.diagnosis.diagnosis import Diagnosis

_MOST_SUSPECTS, _MOST_OUTLIERS = 200, 200
_MOST_GROUPS, _MOST_OF_GROUP = 50, 16


class DiagnosisWanted(Body):
    """What looks at the data; a run's learners look as well where one is named."""

    run_id: Annotated[str, Field(max_length=200)] = ""
    proxy: Annotated[str, Field(max_length=200)] = ""


async def diagnose(asked: Asked, wanted: DiagnosisWanted) -> Response:
    """POST /api/diagnosis: computed once, and stored."""
    app = asked.page.app
    query = DiagnosisQuery(run=wanted.run_id, proxy=wanted.proxy)

    async def show(record: DiagnosisRecord) -> dict[str, Any]:
        def read() -> Mapping[str, Any]:
            return Diagnosis.load(app.blobs.verified_path(record.blob)).summary

        return {"diagnosis": shown(record, await asyncio.to_thread(read))}

    return await in_lines(lambda report: app.diagnoses.get(query, report, asked.own.peer), show)


def shown(record: DiagnosisRecord, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A diagnosis with the worst of each finding.

    Args:
        record: how it came about.
        summary: what was found, as its file has it.
    """
    errors, duplicates = dict(summary["label_errors"]), dict(summary["duplicates"])
    outliers = dict(summary["outliers"])
    suspects = errors.pop("ranked")[:_MOST_SUSPECTS]
    groups = duplicates.pop("groups")[:_MOST_GROUPS]
    ranked = outliers.pop("ranked")[:_MOST_OUTLIERS]
    return {
        **summary,
        "label_errors": errors,
        "suspects": [
            {
                "id": one["id"],
                "label": one["given"],
                "suggested": one["suggested"],
                "score": one["quality"],
            }
            for one in suspects
        ],
        "duplicates": [group[:_MOST_OF_GROUP] for group in groups],
        "duplicates_found": duplicates,
        "outliers": ranked,
        "outliers_found": outliers["count"],
        "worst_fitting": summary["worst_fitting"][:_MOST_SUSPECTS],
        "run_id": record.run_id,
        "manifest": record.manifest,
        "created_at": record.created_at,
    }
