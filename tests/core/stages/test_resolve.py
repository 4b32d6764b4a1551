from collections.abc import Mapping
from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import InitializationConfig, RunConfig
from lipt.common.errors import (
    InvalidRequestError,
    LiptError,
    OverLimitError,
    ProxyError,
    StrategyOptionError,
)
from lipt.common.requests import SOUP, Budget, LabelUse, Proxy, SubsetRequest, WarmUp, split_warm_up
from lipt.coordinator.compute.jobs.selection import SelectSubset
from lipt.core.pretraining.results import CommittedLearner, PretrainingState
from lipt.core.selection.select import STRATEGIES, find_strategy
from lipt.core.stages.resolve import (
    NeededTraining,
    ResolvedRequest,
    Sources,
    require_kind,
    resolve,
    sources_of,
    without_labels,
    works_without_labels,
)
from lipt.data.inputs.specs import ImageFormat, ImageSpec
from lipt.data.targets.kinds import TargetKind

FILE = BlobName.of(b"the user's")
ABLE = {
    *("uniform", "facility_location", "subzerocore", "graph_cut", "log_det", "kcenter"),
    *("herding", "moderate", "stratified", "zcore", "milo", "sas"),
}
WITH_A_SPACE = ["facility_location", "graph_cut", "kcenter", "log_det"]


def request(strategy: str, pretraining: str = "", **asked: Any) -> SubsetRequest:
    options = {"pretraining": pretraining} if pretraining else {}
    options, warm_up = split_warm_up({**options, **asked.pop("options", {})})
    if proxy := asked.pop("proxy", ""):
        asked["proxy"] = Proxy.parse(proxy)
    asked["labels"] = LabelUse.parse(asked.get("labels", ""))
    size = Budget(number=10)
    return SubsetRequest(strategy=strategy, budget=size, options=options, warm_up=warm_up, **asked)


def ask(
    strategy: str, options: Mapping[str, str] | None = None, *, images: bool = True, **asked: Any
) -> tuple[Mapping[str, str], Proxy]:
    asking = request(strategy, **asked)
    return without_labels(find_strategy(strategy), options or {}, asking, images=images)


def test_labels_are_used_by_default() -> None:
    meant = [asked_for("uniform", labels=text).unlabelled for text in ("", "given", "none")]
    assert meant == [False, False, True]


def test_strategies_of_features_or_nothing_work_without_labels() -> None:
    able = {name for name, strategy in STRATEGIES.items() if works_without_labels(strategy)}
    assert able == ABLE


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - ABLE))
def test_strategies_that_need_labels_are_refused_with_alternatives(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"'{name}' cannot choose.*labels") as refusal:
        ask(name)
    listed = refusal.value.message.partition("Choose one of: ")[2].removesuffix(".").split(", ")
    assert set(listed) == ABLE
    assert listed == [name for name in STRATEGIES if name in ABLE]


@pytest.mark.parametrize("name", WITH_A_SPACE)
def test_without_labels_examples_are_compared_by_features(name: str) -> None:
    assert ask(name)[0] == {"space": "features"}
    assert ask(name, {"space": "features"}) == ask(name)
    with pytest.raises(StrategyOptionError, match=rf"space of strategy '{name}' cannot be 'grad"):
        ask(name, {"space": "gradients"})


def test_without_labels_only_proxies_without_labels_are_taken() -> None:
    assert ask("herding", balanced=False) == ask("herding")
    with pytest.raises(StrategyOptionError, match=r"unknown\. Leave `balanced` unset"):
        ask("herding", balanced=True)
    with pytest.raises(InvalidRequestError, match=r"trained on labels.*--features"):
        ask("herding", weights=FILE)
    for proxy in ("ridge:patches", "ridge:user+patches", "ridge:backbone", "ridge:user"):
        assert str(ask("herding", proxy=proxy)[1]) == proxy
        assert str(ask("herding", proxy=proxy, features=FILE)[1]) == proxy


@pytest.mark.parametrize(
    ("proxy", "why"),
    [
        ("soup", "labels have gone into soup"),
        ("ridge:soup", "labels have gone into soup"),
        ("ridge:learners+patches", "labels have gone into learners"),
        ("ridge:learners+soup", "labels have gone into soup and learners"),
        ("auto", "it is whichever is right about the most labels"),
    ],
)
def test_a_proxy_trained_on_labels_is_refused_without_labels(proxy: str, why: str) -> None:
    remedy = r"one or more of user, patches, columns, backbone.*such as ridge:patches; or"
    with pytest.raises(ProxyError, match=rf"with labels=none: {why}\..*{remedy}"):
        ask("herding", proxy=proxy, features=FILE)
    with pytest.raises(ProxyError, match="there is no proxy 'best'"):
        ask("uniform", proxy="best")


def test_columns_are_selected_by_their_values() -> None:
    assert ask("kcenter", images=False)[1] == Proxy.parse("ridge:columns")
    with pytest.raises(ProxyError, match=r"such as ridge:columns; or"):
        ask("kcenter", proxy="auto", images=False)


OTHERS = [TargetKind.CLASSES, TargetKind.NUMBER]
NEED_TOKENS = {"perplexity", "ifd"}
# They read probabilities of classes off errors, or ask the learners for them.
NEED_CLASSES = {
    *("entropy", "margin", "least_confidence", "cal", "glister", "crest"),
    *("forgetting", "aum", "dual", "disagreement"),
}


def test_strategies_without_probabilities_work_with_any_targets() -> None:
    for kind in OTHERS:
        able = {name for name, known in STRATEGIES.items() if kind in known.kinds_of({})}
        assert set(STRATEGIES) - able == NEED_CLASSES | NEED_TOKENS
    of_classes = {name for name, one in STRATEGIES.items() if TargetKind.CLASS in one.kinds_of({})}
    assert set(STRATEGIES) - of_classes == NEED_TOKENS
    of_tokens = {name for name, one in STRATEGIES.items() if TargetKind.TOKENS in one.kinds_of({})}
    assert of_tokens == {"uniform", "loss_drop", "rds_plus", "bm25"} | NEED_TOKENS


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("margin", {}, TargetKind.NUMBER, "'margin' works with single-label data, and the"),
        ("el2n", {"models": "learners"}, TargetKind.CLASSES, "'el2n' with models=learners works"),
        ("gradmatch", {"gradient": "own_class"}, TargetKind.NUMBER, "with gradient=own_class"),
    ],
)
def test_strategies_that_need_classes_are_refused_with_alternatives(
    name: str, options: dict[str, str], kind: TargetKind, words: str
) -> None:
    with pytest.raises(
        InvalidRequestError, match=rf"{words}.* is {kind.words}\. Choose one of: auto, .*craig"
    ):
        require_kind(find_strategy(name), options, kind)
    require_kind(find_strategy(name), options, TargetKind.CLASS)


IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


def asked_for(
    strategy: str,
    pretraining: str = "",
    *,
    given_weights: str | None = None,
    kind: TargetKind = TargetKind.CLASS,
    **asked: Any,
) -> ResolvedRequest:
    begins = InitializationConfig(weights_sha256=given_weights)
    return resolve(
        request(strategy, pretraining, **asked),
        RunConfig(model="resnet8", initialization=begins),
        num_examples=1000,
        inputs=ImageSpec(1, 8, 8),
        kind=kind,
        max_warm_up_epochs=200,
    )


def found_for(asked: ResolvedRequest) -> Sources:
    """Sources of a run without theta_p where a warm-up is asked for."""
    theta_p = None if asked.warm_up else BlobName.of(b"theta_p")
    learners = (CommittedLearner(0, (), BlobName.of(b"learner")),)
    config = RunConfig(model="resnet8")
    run = PretrainingState("r", config, IMAGE, BlobName.of(b"theta*"), theta_p, learners)
    return sources_of(run, asked)


def test_a_warm_up_needs_no_theta_p() -> None:
    asked = asked_for("craig", "epochs:15.0")
    assert (asked.warm_up, asked.given, asked.proxy) == (WarmUp(15.0), {}, SOUP)
    assert asked.training is NeededTraining.INITIAL_WEIGHTS
    sources = found_for(asked)
    assert sources.weights == sources.initial == BlobName.of(b"theta*")
    assert not SelectSubset(asked, sources).is_light
    # So that the subsets of before keep their keys.
    assert asked_for("craig", "lipt") == asked_for("craig")
    assert asked_for("uniform", "lipt") == asked_for("uniform")
    assert asked_for("craig", "lipt").training is NeededTraining.LEARNERS


def test_learners_took_part_only_in_their_own_soup() -> None:
    assert found_for(asked_for("craig")).num_merged == 1
    own = found_for(asked_for("craig", weights=FILE))
    assert (own.num_merged, own.has_own_weights) == (0, True)


def test_soft_labels_need_a_proxy_with_classes() -> None:
    assert asked_for("craig").teacher is None
    soft = asked_for("craig", soft_labels=True)
    assert (soft.proxy, soft.teacher) == (SOUP, Proxy(None))
    # The head looks at what its proxy names, whatever the strategy looks at.
    assert found_for(soft).trajectories is None
    by_learners = asked_for("craig", soft_labels=True, proxy="ridge:learners")
    assert found_for(by_learners).trajectories is not None
    assert found_for(asked_for("auto")).trajectories is None
    own = asked_for("uniform", soft_labels=True, proxy="ridge:patches")
    assert (own.proxy, str(own.teacher)) == (SOUP, "ridge:patches")
    assert str(asked_for("auto", soft_labels=True).teacher) == "auto"
    with pytest.raises(InvalidRequestError, match="made of labels"):
        asked_for("kcenter", soft_labels=True, labels="none")
    with pytest.raises(InvalidRequestError, match=r"probabilities of classes, .* regression data"):
        asked_for("kcenter", soft_labels=True, kind=TargetKind.NUMBER)


# Of the model itself, whatever the proxy.
ALL = {"options": {"parameters": "all"}}


@pytest.mark.parametrize(
    ("strategy", "asked", "expected"),
    [
        ("uniform_per_class", {}, NeededTraining.NOTHING),
        ("uniform", {"proxy": "auto"}, NeededTraining.NOTHING),
        # Soft labels need the training of their own proxy.
        ("uniform", {"soft_labels": True}, NeededTraining.LEARNERS),
        ("uniform", {"soft_labels": True, "proxy": "ridge:patches"}, NeededTraining.NOTHING),
        (
            "uniform",
            {"soft_labels": True, "proxy": "ridge:initial"},
            NeededTraining.INITIAL_WEIGHTS,
        ),
        ("auto", {}, NeededTraining.LEARNERS),
        ("auto", {"proxy": "ridge:patches"}, NeededTraining.NOTHING),
        ("auto", {"proxy": "ridge:columns+user+backbone"}, NeededTraining.NOTHING),
        ("auto", {"proxy": "ridge:initial+patches"}, NeededTraining.INITIAL_WEIGHTS),
        ("auto", {"proxy": "ridge:initial+learners"}, NeededTraining.LEARNERS),
        ("kcenter", {"labels": "none"}, NeededTraining.NOTHING),
        ("kcenter", {}, NeededTraining.LEARNERS),
        ("kcenter", {"weights": FILE}, NeededTraining.INITIAL_WEIGHTS),
        ("grand", {"weights": FILE}, NeededTraining.INITIAL_WEIGHTS),
        ("grand", {"proxy": "ridge:patches"}, NeededTraining.NOTHING),
        ("grand", ALL | {"proxy": "ridge:patches"}, NeededTraining.LEARNERS),
        ("grand", ALL | {"proxy": "ridge:initial"}, NeededTraining.INITIAL_WEIGHTS),
        ("forgetting", {"proxy": "ridge:patches"}, NeededTraining.LEARNERS),
        ("forgetting", {"weights": FILE}, NeededTraining.LEARNERS),
    ],
)
def test_a_request_needs_learners_only_if_it_uses_them(
    strategy: str, asked: dict[str, Any], expected: NeededTraining
) -> None:
    assert asked_for(strategy, **asked).training is expected


@pytest.mark.parametrize(
    ("strategy", "pretraining", "asked", "error", "message"),
    [
        *(
            (name, "epochs:1", {}, StrategyOptionError, "looks at no model.*leave.*grand")
            for name in ("uniform", "forgetting", "auto")
        ),
        ("grand", "15", {}, StrategyOptionError, "cannot be '15'.*epochs:N, epochs:NxR"),
        ("grand", "epochs:1", {"labels": "none"}, InvalidRequestError, "all labels.*Leave one"),
        ("grand", "epochs:1", {"weights": FILE}, InvalidRequestError, "on yours.*Leave one"),
        ("grand", "epochs:1", {"proxy": "auto"}, InvalidRequestError, "own head, soup.*Leave one"),
        ("kcenter", "epochs:1", {"features": FILE}, InvalidRequestError, "or the features"),
        (
            *("el2n", "epochs:1", {"options": {"models": "learners"}}),
            *(StrategyOptionError, "needs the run's learners.*those options out"),
        ),
        ("craig", "epochs:1x2", {}, StrategyOptionError, "pretraining=epochs:1.*el2n, grand"),
        ("grand", "epochs:21x10", {}, OverLimitError, "takes 210 .*warm_up_epochs allows 200.*few"),
        ("grand", "epochs:0x201", {}, OverLimitError, "takes 201 epochs"),
        (
            *("grand", "epochs:1x2", {"given_weights": "0" * 64}),
            *(InvalidRequestError, "2 random initial weights.*pretraining=epochs:1"),
        ),
    ],
)
def test_contradictory_requests_are_refused_with_a_remedy(
    strategy: str, pretraining: str, asked: dict[str, Any], error: type[LiptError], message: str
) -> None:
    with pytest.raises(error, match=message):
        asked_for(strategy, pretraining, **asked)
