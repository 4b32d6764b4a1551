"""Findings of a choice as sentences for people: the plan, what was changed, proxy and learners.

Shapes: K chosen examples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lipt.common.requests import FeatureKind
from lipt.common.text import listed
from lipt.core.auto.findings import PlanFindings, StrataFindings
from lipt.core.auto.plan import Reason, without_copies
from lipt.core.proxies.proxy import MAX_SAMPLE
from lipt.core.signals.views import INITIAL_NEEDS, THETA_NEEDS, Need
from lipt.core.stages.needed_learners import Unneeded
from lipt.core.stages.resolve import (
    TRAINED_FEATURES,
    ResolvedRequest,
    Sources,
    needs_of_head,
)
from lipt.data.dataset import Dataset

Facts = Mapping[str, Any]
_MOST_SOURCES = 10
# Smaller shares are named with a decimal.
_NAMED_SHARE = 0.01
# A class whose share is moved by at least this factor is named.
_MOVED = 1.5


def class_shift(dataset: Dataset, labels_K: Tensor) -> tuple[dict[str, Any], list[str]]:
    """Shares of the classes in data and subset, weights that undo the difference, and a sentence.

    The sentence names the class that is moved most, if any is.
    """
    num_classes = len(dataset.class_names)
    counts_C = dataset.labels_N.bincount(minlength=num_classes).double()
    data_C = counts_C / counts_C.sum()
    subset_C = labels_K.bincount(minlength=num_classes).double() / len(labels_K)
    # Absent classes weigh nothing.
    weights_C = (data_C / subset_C.clamp(min=1e-30)).where(subset_C > 0, 0.0)
    shares = {
        "data": data_C.tolist(),
        "subset": subset_C.tolist(),
        "weights_that_undo": weights_C.tolist(),
    }
    moved_C = (subset_C.clamp(min=1e-30) / data_C.clamp(min=1e-30)).log().abs()
    moved_C = moved_C.where((counts_C > 0) & (subset_C > 0), 0.0)
    most = int(moved_C.argmax())
    if float(moved_C[most]) < math.log(_MOVED):
        return shares, []
    name, before, after = dataset.class_names[most], data_C[most], subset_C[most]
    sentence = f"balanced: class {name} is {before:.1%} of the data and {after:.1%} of the subset"
    kept = "balanced=False or --no-balanced keeps its share"
    return shares, [f"{sentence}; {kept}, and `class_shares` in the manifest has weights"]


def plan_sentences(of_auto: PlanFindings | StrataFindings) -> list[str]:
    """The plan of `auto` first, then its evidence."""
    copies = f"{_copies(of_auto):.1%} of the examples are near-duplicates of others"
    if isinstance(of_auto, StrataFindings):
        shares = "in equal shares of the strata" if of_auto.balanced else "in the strata's shares"
        return [
            f"the targets are {of_auto.kind.words}: no gain over random is known of any choice",
            copies,
            f"random {shares}",
            *(["one of each group"] if of_auto.num_excluded else []),
        ]
    noise = of_auto.noise
    interval = f"{noise.low:.1%} to {noise.high:.1%}"
    wrong = f"how many labels are wrong is unknown: {interval}, as far as the head can tell"
    if noise.known_rate is not None:
        wrong = f"{noise.rate:.1%} of the labels look wrong (95% interval {interval})"
    reason = _plan_reason(of_auto)
    if of_auto.plan.excludes_duplicates:
        reason += f"; one of each group, as {_copies(of_auto):.1%} are near-duplicates of others"
    return [reason, wrong, copies]


def source_sentence(counts: Mapping[str, int]) -> str:
    shown = listed([f"{count} of {name}" for name, count in counts.items() if count], _MOST_SOURCES)
    return f"by the mixture's shares: {shown}"


def _copies(of_auto: PlanFindings | StrataFindings) -> float:
    return of_auto.copies if isinstance(of_auto, StrataFindings) else of_auto.evidence.copies


def _plan_reason(of_auto: PlanFindings) -> str:
    plan, evidence = of_auto.plan, of_auto.evidence
    if plan.excludes_duplicates:
        evidence = without_copies(evidence)
    percent = min(100.0, float(f"{100 * evidence.fraction:.2g}"))
    kept = f"{percent:g}% of the examples"
    left, least = evidence.mean(plan.excluded_C), ""
    if left:
        share = f"{left:.0%}" if left >= _NAMED_SHARE else f"{left:.1%}"
        least = f", without the {share} with the lowest label quality"
    right = f"right on {evidence.accuracy:.1%}"
    match plan.reason:
        case Reason.WEAK_HEAD if math.isinf(evidence.num_features):
            return f"class-balanced random: pred_probs are {right} of the labels, too few to go by"
        case Reason.WEAK_HEAD:
            return (
                f"class-balanced random: a head on the proxy's features is {right} of the labels "
                "that it has not seen, too few to go by. Features of your own may help"
            )
        case Reason.BETTER_MODEL:
            return (
                f"class-balanced random: a model trained on {evidence.per_class:.0f} examples of a "
                f"class probably knows better than a head on {evidence.num_features} features, "
                f"which is {right}"
            )
        case Reason.FEW:
            return f"to keep {kept}: of each class those that represent it{least}"
        case Reason.EXCLUSION:
            return f"to keep {kept}: class-balanced random{least}"
        case Reason.NO_GAIN:
            return (
                f"class-balanced random: no gain is known of choosing {kept} where labels are "
                f"right and main training is {evidence.training}. A smaller fraction or soft "
                "labels may gain"
            )


@dataclass(frozen=True)
class ChoiceInputs:
    """Inputs of a choice: needs met by a model with its own head, and features of ridge heads.

    target: facts of a target, if there is one.
    """

    proxy: Facts | None
    of_model: frozenset[Need]
    used: frozenset[FeatureKind]
    tried: frozenset[FeatureKind]
    target: Facts | None = None


def inputs_of(
    request: ResolvedRequest,
    proxy: Facts | None,
    heads: Sequence[Facts],
    target: Facts | None = None,
) -> ChoiceInputs:
    needs = request.needs
    of_model = needs & {Need.DYNAMICS, Need.GRADIENT_NORMS}
    if proxy is None and not request.unlabelled:
        of_model |= needs_of_head(request.features, needs)
    tried = [score for head in heads for score in head.get("tried", ())]
    return ChoiceInputs(proxy, of_model, _kinds_of(heads), _kinds_of(tried), target)


def _kinds_of(heads: Sequence[Facts]) -> frozenset[FeatureKind]:
    return frozenset(kind for head in heads for kind in head["features"])


def input_sentences(
    request: ResolvedRequest,
    sources: Sources,
    inputs: ChoiceInputs,
    heads: Sequence[Facts],
    *,
    is_random: bool | None,
    num_examples: int,
) -> list[str]:
    """Sentences on the head, on the learners, and on whether seed and model can matter."""
    needs, of_model = request.needs, inputs.of_model
    if needs & INITIAL_NEEDS:
        return _target_sentences(needs, inputs.target)
    unneeded = next((head["unneeded"] for head in heads if "unneeded" in head), None)
    learners = _learners_sentence(request, sources, inputs, unneeded)
    # Heads of more examples choose their penalty on a drawn sample.
    drawn = any(head["drawn"] or num_examples > MAX_SAMPLE for head in heads)
    if of_model or (inputs.used | inputs.tried).intersection(TRAINED_FEATURES):
        mattered = "another seed or model may give another subset"
    elif is_random or drawn or Need.VALIDATION in needs:
        mattered = "another seed may give another subset; no model was used"
    else:
        mattered = "any seed and model give this subset"
    if not needs and request.teacher is None:
        return [mattered]
    own = request.features is not None or Need.PAIRED_FEATURES in needs
    by = "the request's own features" if own else "no features"
    if of_model:
        by = "a model with its own head"
    if Need.DYNAMICS in needs:
        by = "outputs of the learners in training"
    return [_proxy_sentence(inputs.proxy, by), learners, mattered]


def _target_sentences(needs: frozenset[Need], target: Facts | None) -> list[str]:
    """Sentences on theta* and a target, and on whether seed and model can matter."""
    by = [
        words
        for need, words in {
            Need.LOSSES: "losses under theta*",
            Need.PROMPTS: "losses without the prompts",
            Need.TARGET_LOSSES: "losses after a short learner on the target",
            Need.TARGET_FEATURES: "features under theta*",
            Need.TARGET_WORDS: "words",
        }.items()
        if need in needs
    ]
    sentences = [f"judged by {listed(by, 5)}"]
    if target is not None:
        shown = listed(list(map(str, target["num_examples"])), 16)
        plural = "" if target["num_examples"] == [1] else "s"
        sentences[0] += f", for a target of {shown} example{plural}"
        if copies := target["equal_in_data"]:
            which = "1 example duplicates" if copies == 1 else f"{copies} examples duplicate"
            sentences.append(f"{which} one of the target's")
    mattered = "another seed or model may give another subset"
    return [*sentences, mattered if needs & THETA_NEEDS else "any seed and model give this subset"]


def _proxy_sentence(head: Facts | None, by: str) -> str:
    if head is None:
        return f"judged by {by}"
    features = "+".join(head["features"])
    if "accuracy" not in head:
        return f"judged by features ({features}) without any label"
    seen = "" if "probabilities" in head else " that it has not seen"
    score = f"right on {head['accuracy']:.1%} of the labels{seen}"
    if "chance" in head:
        score += f", as a mean over classes; chance is {head['chance']:.1%}"
    if "score" in head:
        score = f"with {head['score']} {head['accuracy']:.3g} on examples that it has not seen"
    if "probabilities" in head:
        return f"judged by pred_probs, {score}; compared by {features}"
    return f"judged by a ridge head on {features}, {score}"


def alpha_sentence(soft: Facts) -> str:
    features = "+".join(soft["features"])
    of_all = "pred_probs are" if soft["probabilities"] else f"the head of all ({features}) is"
    text = (
        f"recommended alpha {soft['recommended_alpha']:.2g}: of the labels not chosen, {of_all} "
        f"right on {soft['accuracy_on_others']:.1%}, a head of the chosen alone on "
        f"{soft['accuracy_of_chosen_alone']:.1%}"
    )
    if soft["suspected"]:
        text += f"; {soft['suspected']:.1%} of the chosen labels look wrong"
    if soft["trust"] < 1:
        text += "; lowered, as a model trained on so many examples probably knows better"
    return text


def _learners_sentence(
    request: ResolvedRequest, sources: Sources, inputs: ChoiceInputs, unneeded: Unneeded | None
) -> str:
    reasons = {
        Unneeded.PRICE: "no learner is needed: their features cannot gain what training costs here",
        Unneeded.PLAN: "no learner is needed: the choice is random whatever they find",
        Unneeded.PROBABILITIES: "no learner is needed: pred_probs were given",
    }
    if unneeded is not None:
        return reasons[unneeded]
    count, merged = sources.num_learners, sources.num_merged
    needs_each = FeatureKind.LEARNERS in inputs.used or Need.DYNAMICS in request.needs
    if count and needs_each:
        return f"{count} learner{'' if count == 1 else 's'} took part"
    if merged and (inputs.of_model or FeatureKind.SOUP in inputs.used):
        return f"{merged} learner{'' if merged == 1 else 's'} took part, merged into theta_p"
    if FeatureKind.LEARNERS in inputs.tried:
        return f"no learner was used; {count} were tried"
    return "no learner was used" + (
        "; theta_p was tried" if FeatureKind.SOUP in inputs.tried else ""
    )
