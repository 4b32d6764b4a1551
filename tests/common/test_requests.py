import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import (
    BudgetError,
    InvalidRequestError,
    LiptError,
    ProxyError,
    StrategyOptionError,
)
from lipt.common.requests import (
    Budget,
    FeatureKind,
    LabelUse,
    Proxy,
    SubsetRequest,
    WarmUp,
    request_from_proto,
    request_to_proto,
)
from lipt.v1 import subset_pb2

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
BLOBS = st.binary(max_size=4).map(BlobName.of) | st.none()
KINDS = st.sets(st.sampled_from(FeatureKind))
PROXIES = KINDS.map(lambda kinds: Proxy(tuple(kind for kind in FeatureKind if kind in kinds)))
REQUESTS = st.builds(
    SubsetRequest,
    budget=st.builds(Budget, fraction=st.floats(0, 1))
    | st.builds(Budget, number=st.integers(-(2**63), 2**63 - 1)),
    run=TEXTS,
    strategy=TEXTS,
    balanced=st.booleans() | st.none(),
    options=st.dictionaries(TEXTS.filter(lambda name: name != "pretraining"), TEXTS, max_size=3),
    preset=TEXTS,
    warm_up=st.none() | st.builds(WarmUp, st.sampled_from([0.0, 0.5, 15.0]), st.integers(1, 99)),
    proxy=st.none() | st.just(Proxy(None)) | PROXIES,
    labels=st.sampled_from(LabelUse),
    soft_labels=st.booleans(),
    weights=BLOBS,
    features=BLOBS,
    mixture=BLOBS,
    # It has no field in the message.
    probabilities=st.none(),
    previous=TEXTS,
)


@given(request=REQUESTS)
def test_a_request_is_the_same_after_its_message(request: SubsetRequest) -> None:
    message = request_to_proto(request)
    sent = subset_pb2.GetSubsetRequest.FromString(message.SerializeToString())
    assert request_from_proto(sent) == request


def test_every_field_of_a_request_but_the_probabilities_is_in_the_message() -> None:
    named = {field.name for field in subset_pb2.GetSubsetRequest.DESCRIPTOR.fields}
    held = {field.name for field in fields(SubsetRequest)}
    # A run has an id there, and a warm-up is one of the options.
    assert held - named == {"run", "warm_up", "probabilities"}
    assert named - held == {"run_id", "fraction"}


def test_an_empty_message_asks_for_the_defaults() -> None:
    request = request_from_proto(subset_pb2.GetSubsetRequest(strategy="craig", budget=3))
    assert request == SubsetRequest(strategy="craig", budget=Budget(number=3))


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        ({"labels": "some"}, InvalidRequestError, r"labels = 'some': choose one of given, none\."),
        ({"proxy": "best"}, ProxyError, "there is no proxy 'best'"),
        ({"options": {"pretraining": "15"}}, StrategyOptionError, r"cannot be '15'.*epochs:NxR"),
    ],
)
def test_unknown_texts_of_a_message_are_refused(
    message: dict[str, Any], error: type[LiptError], words: str
) -> None:
    with pytest.raises(error, match=words):
        request_from_proto(subset_pb2.GetSubsetRequest(**message))


@pytest.mark.parametrize(
    "text", ["soup", "auto", "ridge:patches", "ridge:soup", "ridge:user+patches+learners+backbone"]
)
def test_a_proxy_s_text_is_canonical(text: str) -> None:
    assert str(Proxy.parse(text)) == text
    assert Proxy.parse("ridge:learners+patches") == Proxy.parse("ridge:patches+learners")


@pytest.mark.parametrize(
    "text",
    ["", "ridge", "ridge:", "ridge:soup+", "ridge:cats", "patches", "ridge:soup+soup", "Soup"],
)
def test_an_unknown_proxy_is_refused_with_all_proxies(text: str) -> None:
    with pytest.raises(
        ProxyError, match=r"user, patches, columns, soup, initial, learners, backbone"
    ) as refusal:
        Proxy.parse(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize(
    ("fraction", "num_examples", "expected"),
    [
        (0.1, 50_000, 5_000),
        (1.0, 7, 7),
        (0.5, 3, 2),  # 1.5 is rounded up
        (0.5, 1, 1),
        (0.25, 9, 2),  # 2.25 is rounded down
        (0.145, 100, 15),  # written 14.5, though the nearest double is below
        (0.29, 100, 29),
        (1e-6, 1_000_000, 1),
        (0.005, 100, 1),
    ],
)
def test_a_fraction_rounds_to_a_budget(fraction: float, num_examples: int, expected: int) -> None:
    assert Budget(fraction).of(num_examples) == expected
    # A number is from one to all.
    assert Budget(number=expected).of(num_examples) == expected


OUTSIDE = (0.0, -0.1, 1.0001, math.nan, math.inf, -math.inf)


@pytest.mark.parametrize(
    ("fraction", "budget", "words"),
    [
        *((it, None, rf"{it} is outside \(0, 1\].*such as 0\.1") for it in OUTSIDE),
        (0.004, None, r"0\.004 of 50 examples keeps none.*at least 0\.01"),
        *((None, budget, rf"budget {budget} is outside 1\.\.50.*Choose") for budget in (0, -3, 51)),
        (None, None, r"exactly one .* Give a fraction in \(0, 1\] or a budget"),
        (0.1, 5, r"exactly one .* Give a fraction in \(0, 1\] or a budget"),
    ],
)
def test_a_budget_outside_its_range_and_other_than_one_form_are_refused(
    fraction: float | None, budget: int | None, words: str
) -> None:
    with pytest.raises(BudgetError, match=words):
        Budget(fraction, budget).of(50)


@pytest.mark.parametrize(
    ("text", "warm_up", "one_text"),
    [
        ("epochs:15", WarmUp(15.0), "epochs:15"),
        ("epochs:15.0x1", WarmUp(15.0), "epochs:15"),
        ("epochs:0.5", WarmUp(0.5), "epochs:0.5"),
        ("epochs:0", WarmUp(0.0), "epochs:0"),
        ("epochs:1x10", WarmUp(1.0, 10), "epochs:1x10"),
        ("epochs:1x2", WarmUp(1.0, 2), "epochs:1x2"),
    ],
)
def test_equal_warm_ups_are_one_text(text: str, warm_up: WarmUp, one_text: str) -> None:
    assert WarmUp.parse(text) == warm_up
    assert str(warm_up) == one_text


@pytest.mark.parametrize(
    "text", ["", "15", "epochs", "epochs:", "epochs:-1", "epochs:1x0", "epochs:nan", "epochs:1e3"]
)
def test_invalid_warm_ups_are_refused(text: str) -> None:
    with pytest.raises(StrategyOptionError, match=r"pretraining cannot be .* epochs:NxR"):
        WarmUp.parse(text)


@pytest.mark.parametrize(
    ("text", "epochs"), [("epochs:0", 1), ("epochs:0.5x4", 4), ("epochs:3x2", 6)]
)
def test_a_model_of_a_warm_up_costs_an_epoch_at_least(text: str, epochs: float) -> None:
    warm_up = WarmUp.parse(text)
    assert warm_up is not None
    assert warm_up.counted_epochs == epochs
