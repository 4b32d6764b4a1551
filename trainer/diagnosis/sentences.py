"""Sentences: a diagnosis' findings as short texts for people."""

from __future__ import annotations

from typing import NamedTuple

from lipt.core.diagnosis.findings import Duplicates, Findings
from lipt.data.targets.kinds import TargetKind


class Fact(NamedTuple):
    """One kind of finding as text; `clear` means that no action is needed."""

    name: str
    text: str
    clear: bool


def facts(findings: Findings) -> list[Fact]:
    """Describe every kind of finding, the most important first."""
    if findings.target_kind is TargetKind.TOKENS:
        return [_completions(findings), _duplicates(findings.duplicates)]
    pairs, balance = findings.confusion, findings.imbalance
    needed, curve = findings.redundancy, findings.learnability
    name, counts, far = findings.class_names, findings.class_counts, findings.outliers.count
    confused = ", ".join(
        f"{name[pair.given]} that look like {name[pair.suggested]} ({pair.share:.1%})"
        for pair in pairs[:3]
    )
    unequal = (
        f"{balance.ratio:.3g} to 1: {name[balance.largest]} has {counts[balance.largest]:,}, "
        f"{name[balance.smallest]} {counts[balance.smallest]:,}"
    )
    if balance.ratio == 1.0:
        unequal = f"none: {counts[balance.largest]:,} of every class"
    outliers = f"{_counted(far, 'example')} far from everything" if far else "none"
    few = f"{needed.examples_for_90:,} examples ({needed.share_for_90:.1%})"
    worth = f"suggested fraction: {curve.suggested_fraction:.3g}"
    if curve.reason:
        worth += f": {curve.reason.rstrip('.')}"
    return [
        _label_errors(findings),
        Fact("confused classes", confused or "none", clear=not pairs),
        _duplicates(findings.duplicates),
        Fact("imbalance", unequal, clear=balance.ratio < 2.0),
        Fact("outliers", outliers, clear=not far),
        Fact("redundancy", f"{few} represent 90% of the data", clear=True),
        Fact("learnability", worth, clear=True),
    ]


def _duplicates(duplicates: Duplicates) -> Fact:
    if not duplicates.surplus:
        return Fact("duplicates", "none", clear=True)
    text = (
        f"{duplicates.surplus:,} surplus: {_counted(duplicates.exact_groups, 'identical group')}, "
        f"{_counted(duplicates.near_groups, 'similar group')}"
    )
    if duplicates.conflicting:
        text += f"; the labels of {_counted(duplicates.conflicting, 'group')} disagree"
    return Fact("duplicates", text, clear=False)


def _label_errors(findings: Findings) -> Fact:
    errors = findings.label_errors
    if findings.target_kind is not TargetKind.CLASS:
        worst = ", ".join(map(str, findings.worst_fitting[:5]))
        text = (
            f"found for classes only, and these are {findings.target_kind.words}; the targets "
            f"furthest from what is expected are those of rows {worst}"
        )
        return Fact("label errors", text, clear=True)
    share = noise_text(findings)
    if not errors.num_suspects:
        return Fact("label errors", f"none looks wrong; {share}", clear=errors.noise_high < 1)
    sure = f", {findings.num_sure:,} of them with confidence" if findings.num_sure else ""
    text = f"{errors.num_suspects:,} look wrong{sure}; {share}"
    if findings.head_guesses:
        text += "; this head is right on hardly more than guessing, so most of these may be right"
    elif findings.head_is_limited:
        text += "; this head is too simple for so many examples, so many of these may be right"
    return Fact("label errors", text, clear=False)


def _completions(findings: Findings) -> Fact:
    worst = ", ".join(map(str, findings.worst_fitting[:5]))
    right = "" if findings.head_accuracy is None else f", right on {findings.head_accuracy:.1%}"
    text = (
        f"those of rows {worst} look wrong first: beside similar prompts they have the largest "
        f"losses of learners that had not seen them{right} of such tokens. How many are wrong is "
        "not estimated"
    )
    return Fact("completions", text, clear=False)


def noise_text(findings: Findings) -> str:
    """The estimated share of wrong labels, with the accuracy of the head that it comes from."""
    errors, accuracy = findings.label_errors, findings.head_accuracy
    if errors.noise_low == 0.0 and errors.noise_high == 1.0:
        return (
            f"{findings.num_examples:,} examples and this head are too little to estimate how many "
            "labels are wrong"
        )
    source = "pred_probs that are" if findings.has_own_probabilities else "a head that is"
    ends = f"{errors.noise_low:.1%} to {errors.noise_high:.1%}"
    head = "this head" if accuracy is None else f"{source} right on {accuracy:.1%}"
    if errors.noise_rate is None:
        return f"of all labels {ends} are wrong, and {head} cannot say more closely"
    return f"of all labels an estimated {errors.noise_rate:.1%} are wrong ({ends}, by {head})"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def proxy_text(findings: Findings) -> str:
    """Describe the proxy model and its score; empty if unknown."""
    features, accuracy = findings.proxy.get("features"), findings.head_accuracy
    if findings.target_kind is TargetKind.TOKENS:
        return f"learners of {findings.proxy.get('model')}"
    if not isinstance(features, str):
        return ""
    head = f"a ridge head on {features}"
    if findings.has_own_probabilities:
        return f"pred_probs, accuracy {accuracy or 0:.1%}, beside the features {features}"
    if accuracy is None:
        return head
    if findings.target_kind is not TargetKind.CLASS:
        score = findings.target_kind.score_name
        return f"{head}, with {score} {accuracy:.1%} on examples as if not seen"
    return f"{head}, leave-one-out accuracy {accuracy:.1%}"


def fit_text(quality: float) -> str:
    """Format a label's quality, in 0..1, with its significant digits."""
    return "<0.01" if quality < 0.01 else f"{quality:.2f}"
