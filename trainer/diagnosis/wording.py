"""Wording: what a diagnosis found, in a few words each; for terminals, notebooks and the page."""

from __future__ import annotations

from dataclasses import dataclass

from lipt.common.targets.kinds import TargetKind
from lipt.trainer.diagnosis.findings import Findings
from lipt.trainer.writing.formatting import format_percent

_MOST_PAIRS = 3
_MOST_ROWS = 5
_WORST = "the targets furthest from what is expected are those of rows"


@dataclass(frozen=True)
class Fact:
    """One kind of finding.

    text: what was found, with its numbers.
    clear: whether nothing has to be done about it.
    """

    name: str
    text: str
    clear: bool


def facts(findings: Findings) -> tuple[Fact, ...]:
    """Every kind of finding, the one that matters most first."""
    return (
        _labels(findings),
        _confusion(findings),
        _duplicates(findings),
        _imbalance(findings),
        _outliers(findings),
        _redundancy(findings),
        _learnability(findings),
    )


def proxy_text(findings: Findings) -> str:
    """What looked at the data, and how well it sees; empty where the file does not say."""
    features, accuracy = findings.proxy.get("features"), findings.proxy.get("accuracy")
    if not isinstance(features, str):
        return ""
    head = f"a ridge head on {features}"
    if not isinstance(accuracy, float):
        return head
    if findings.target_kind is not TargetKind.CLASS:
        score = findings.target_kind.score_name
        return f"{head}, with {score} {format_percent(accuracy)} on examples as if not seen"
    return f"{head}, right on {format_percent(accuracy)} of the examples that it did not learn from"


def fit_text(quality: float) -> str:
    """How well a label fits, in 0..1; among the worst labels digits further back say nothing."""
    return "<0.01" if quality < 0.01 else f"{quality:.2f}"


def _labels(findings: Findings) -> Fact:
    found = findings.label_errors
    if findings.target_kind is not TargetKind.CLASS:
        worst = ", ".join(map(str, findings.worst_fitting[:_MOST_ROWS]))
        text = f"told of classes alone, and this is {findings.target_kind.words}; {_WORST} {worst}"
        return Fact("label errors", text, clear=True)
    share = (
        f"of all labels an estimated {format_percent(found.noise_rate)} are wrong "
        f"({format_percent(found.noise_low)} to {format_percent(found.noise_high)})"
    )
    if not found.num_suspects:
        return Fact("label errors", f"none looks wrong; {share}", clear=True)
    sure = f", the worst {findings.num_sure:,} surely so" if findings.num_sure else ""
    return Fact(
        "label errors",
        f"{found.num_suspects:,} look wrong{sure}; {share}",
        clear=False,
    )


def _confusion(findings: Findings) -> Fact:
    pairs = findings.confusion
    if not pairs:
        return Fact("confused classes", "none", clear=True)
    name = findings.name
    told = [
        f"{name(pair.given)} that look like {name(pair.suggested)} ({format_percent(pair.share)})"
        for pair in pairs[:_MOST_PAIRS]
    ]
    return Fact("confused classes", ", ".join(told), clear=False)


def _duplicates(findings: Findings) -> Fact:
    found = findings.duplicates
    if not found.surplus:
        return Fact("duplicates", "none", clear=True)
    text = (
        f"{found.surplus:,} surplus: {_counted(found.exact_groups, 'picture')} more than once, "
        f"{_counted(found.near_groups, 'group')} nearly alike"
    )
    if found.conflicting:
        text += f"; the labels of {_counted(found.conflicting, 'group')} disagree"
    return Fact("duplicates", text, clear=False)


def _imbalance(findings: Findings) -> Fact:
    found, counts = findings.imbalance, findings.class_counts
    if found.ratio == 1.0:
        return Fact("imbalance", f"none: {counts[found.largest]:,} of every class", clear=True)
    text = (
        f"{found.ratio:.3g} to 1: {findings.name(found.largest)} has {counts[found.largest]:,}, "
        f"{findings.name(found.smallest)} {counts[found.smallest]:,}"
    )
    return Fact("imbalance", text, clear=found.ratio < 2.0)


def _outliers(findings: Findings) -> Fact:
    count = findings.outliers.count
    text = f"{_counted(count, 'example')} far from everything" if count else "none"
    return Fact("outliers", text, clear=not count)


def _redundancy(findings: Findings) -> Fact:
    found = findings.redundancy
    text = (
        f"{found.examples_for_90:,} examples ({format_percent(found.share_for_90)}) carry 90% of "
        "what all do"
    )
    return Fact("redundancy", text, clear=True)


def _learnability(findings: Findings) -> Fact:
    found = findings.learnability
    text = f"worth asking for: a fraction of {found.suggested_fraction:.3g}"
    why = f": {found.why.rstrip('.')}" if found.why else ""
    return Fact("learnability", text + why, clear=True)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
