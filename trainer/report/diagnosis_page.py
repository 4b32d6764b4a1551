"""Page of a diagnosis: one HTML file, no network, everything escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lipt.trainer.diagnosis.findings import Learnability
from lipt.trainer.diagnosis.wording import facts, fit_text, proxy_text
from lipt.trainer.report.examining import Examination
from lipt.trainer.report.plot import LEFT, RIGHT, TOP, Plot, Scale, nice_ticks
from lipt.trainer.report.templates import open_templates


@dataclass(frozen=True)
class Tick:
    """A number of examples, and where it lies."""

    x: float
    size: int
    accuracy: float


def render_diagnosis(examination: Examination) -> str:
    """The page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    environment = open_templates("the page of lipt diagnose")
    findings = examination.diagnosis.findings
    noise = [item.noise for item in examination.classes if item.noise]
    curve = findings.learnability
    page: str = environment.get_template("diagnosis.html").render(
        examination=examination,
        diagnosis=examination.diagnosis,
        findings=findings,
        facts=facts(findings),
        fit=fit_text,
        proxy=proxy_text(findings),
        plot=learning_curve(curve) if len(curve.sizes) > 1 else None,
        ticks=curve_ticks(curve),
        noise=Scale(0.0, max([0.01, *(item.high for item in noise)]), 0, 100),
        has_needed=any(item.examples_for_90 is not None for item in examination.classes),
        heaviest=max([1, *(count for row in examination.matrix for count in row)]),
        seconds=sum(findings.seconds.values()),
    )
    return page


def learning_curve(curve: Learnability) -> Plot:
    """The plot of accuracy by number of examples, at least two; x is a logarithm."""
    y_ticks = nice_ticks(min(curve.accuracies), max(curve.accuracies))
    x = _size_scale(curve.sizes)
    return Plot(280, x, Scale(y_ticks[0], y_ticks[-1], 236, TOP), (), y_ticks)


def curve_ticks(curve: Learnability) -> list[Tick]:
    """Where each number of examples lies."""
    if len(curve.sizes) < 2:
        return []
    x = _size_scale(curve.sizes)
    return [
        Tick(x(math.log(max(size, 1))), size, accuracy)
        for size, accuracy in zip(curve.sizes, curve.accuracies, strict=True)
    ]


def _size_scale(sizes: Sequence[int]) -> Scale:
    # Room at both ends, where labels are centred on their points.
    low, high = (math.log(max(size, 1)) for size in (min(sizes), max(sizes)))
    return Scale(low, high, LEFT + 16, RIGHT - 16)
