from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import (
    SignalsError,
    UnknownBlobError,
    WeightsError,
)
from lipt.common.images.formats import ImageFormat
from lipt.common.subsets import subset_digest
from lipt.common.weights.files import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.selecting import Selected, SelectSubset
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategy import FEATURES, SIGNALS, Need, Strategy
from lipt.core.signals.signals import Signals
from lipt.core.stages import choice, question
from lipt.core.stages.question import Labels
from tests.digits import digits_context

CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))
NUM_EXAMPLES = 1797


@dataclass
class Probe:
    """A strategy that keeps what it was given."""

    needs: frozenset[Need]
    stopped_early: str = ""
    seen: Signals | None = None
    num_threads: int = 0

    def __call__(self, signals: Signals, budget: int) -> Selection:
        self.seen, self.num_threads = signals, torch.get_num_threads()
        chosen = unweighted(torch.arange(budget - bool(self.stopped_early)))
        return replace(chosen, stopped_early=self.stopped_early)

    def strategy(self) -> Strategy:
        def probe(signals: Signals, budget: int) -> Selection:
            return self(signals, budget)

        return Strategy(probe, "keeps", "", cost="N", needs=self.needs)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return digits_context(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def weights(context: Context) -> BlobName:
    state = context.new_model(CONFIG).state_dict()
    return context.blobs.put_bytes(pack(state))


@pytest.fixture
def select(
    context: Context, weights: BlobName, monkeypatch: pytest.MonkeyPatch
) -> Any:  # (probe, features=...) -> Selected
    def run(probe: Probe, **job: Any) -> Selected:
        for module in (choice, question):
            monkeypatch.setattr(module, "find_strategy", lambda _: probe.strategy())
        wanted = SelectSubset(
            config=CONFIG,
            inputs=IMAGE,
            weights=weights,
            strategy="probe",
            budget=10,
            balanced=False,
            options=(),
        )
        return replace(wanted, **job).run(context)

    return run


def put(context: Context, **tensors: torch.Tensor) -> BlobName:
    return context.blobs.put_bytes(pack(tensors))


def test_a_subset_is_stored_as_its_digest_says(context: Context, select: Any) -> None:
    selected = select(Probe(frozenset()))
    assert selected.digest == subset_digest(np.arange(10), np.ones(10, np.float32))
    assert (selected.num_examples, selected.told["stopped_early"]) == (10, "")
    assert context.blobs.has(selected.blob)


def test_a_subset_of_nothing_is_refused_with_the_strategys_reason(select: Any) -> None:
    with pytest.raises(SignalsError, match=r"'probe' chooses nothing for a budget of 1: no gain\."):
        select(Probe(frozenset(), stopped_early="no gain."), budget=1)


def test_the_run_s_threads_are_used_and_given_back(select: Any) -> None:
    before = torch.get_num_threads()
    probe = Probe(frozenset())
    select(probe, config=CONFIG.model_copy(update={"evaluation_threads": 3}))
    assert probe.num_threads == 3
    assert torch.get_num_threads() == before


def test_validation_signals_are_those_of_the_split(context: Context, select: Any) -> None:
    probe = Probe(SIGNALS | {Need.VALIDATION})
    select(probe)
    assert probe.seen is not None
    assert probe.seen.validation is not None
    ids = context.split(CONFIG).validation_ids
    assert len(probe.seen.validation) == len(ids) > 0
    assert torch.equal(probe.seen.validation.errors_NC, probe.seen.errors_NC[ids])
    assert torch.equal(probe.seen.validation.labels_N, context.dataset.labels_N[ids])


def test_without_a_validation_split_it_says_so(
    select: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = torch.empty(0, dtype=torch.int64)
    split = Context.split
    monkeypatch.setattr(
        Context,
        "split",
        lambda self, config: replace(split(self, config), validation_ids=empty),
    )
    with pytest.raises(SignalsError, match=r"needs a validation split.*validation\.fraction"):
        select(Probe(SIGNALS | {Need.VALIDATION}))


def test_own_features_take_the_place_of_the_model_s(context: Context, select: Any) -> None:
    own = torch.rand(NUM_EXAMPLES, 3)
    pairs = torch.rand(NUM_EXAMPLES, 2)
    probe = Probe(SIGNALS | {Need.VALIDATION})
    select(probe, features=put(context, features=own.half(), paired_features=pairs))
    assert probe.seen is not None
    assert torch.equal(probe.seen.features_ND, own.half().float())
    assert probe.seen.paired_features_NP is not None
    assert torch.equal(probe.seen.paired_features_NP, pairs)
    # Errors are still the model's, and the validation split is seen with the same features.
    assert probe.seen.errors_NC.shape == (NUM_EXAMPLES, 10)
    assert probe.seen.validation is not None
    assert probe.seen.validation.features_ND.shape[1] == 3


@pytest.mark.parametrize("needs", [FEATURES, frozenset({Need.PAIRED_FEATURES}), frozenset()])
def test_a_strategy_on_own_features_needs_no_model(
    context: Context, select: Any, needs: frozenset[Need]
) -> None:
    own = torch.rand(NUM_EXAMPLES, 3)
    probe = Probe(needs)
    nowhere = BlobName.of(b"never uploaded")
    blob = put(context, features=own, paired_features=own)
    select(probe, weights=nowhere, features=blob)
    assert probe.seen is not None
    assert torch.equal(probe.seen.features_ND, own)
    assert probe.seen.errors_NC.shape == (NUM_EXAMPLES, 0)


def test_without_own_features_they_are_the_model_s(select: Any) -> None:
    probe, both = Probe(FEATURES), Probe(SIGNALS)
    select(probe)
    select(both)
    assert probe.seen is not None
    assert both.seen is not None
    assert torch.equal(probe.seen.features_ND, both.seen.features_ND)
    with pytest.raises(UnknownBlobError):
        select(Probe(FEATURES), weights=BlobName.of(b"never uploaded"))


def test_uploaded_weights_that_are_not_finite_are_called_that(
    context: Context, select: Any
) -> None:
    state = context.new_model(CONFIG).state_dict()
    name, tensor = next(iter(state.items()))
    diverged = put(context, **{**state, name: tensor * float("inf")})
    with pytest.raises(WeightsError) as refused:
        select(Probe(SIGNALS), weights=diverged)
    sentence = str(refused.value)
    assert f"weights {diverged.sha256[:12]} cannot be selected on: {name!r} has NaN or" in sentence
    assert "take a checkpoint from before, and lower" in sentence
    assert "learner" not in sentence


def test_pairs_that_were_not_given_are_asked_for(context: Context, select: Any) -> None:
    probe = Probe(frozenset({Need.PAIRED_FEATURES}))
    how = r"lipt subset get --features FILE\.safetensors.*client\.subset"
    with pytest.raises(SignalsError, match=rf"needs features of pairs\..*{how}"):
        select(probe)
    with pytest.raises(SignalsError, match=rf"needs paired features\..*{how}"):
        select(probe, features=put(context, features=torch.rand(NUM_EXAMPLES, 3)))


def test_without_labels_a_strategy_sees_features_of_one_class_and_copies(
    context: Context, select: Any
) -> None:
    probe, nowhere = Probe(FEATURES | {Need.COPIES}), BlobName.of(b"never uploaded")
    selected = select(probe, weights=nowhere, labels=Labels.NONE, proxy="ridge:patches")
    assert probe.seen is not None
    assert probe.seen.labels_N.tolist() == [0] * NUM_EXAMPLES
    assert probe.seen.errors_NC.shape == (NUM_EXAMPLES, 0)
    assert probe.seen.features_ND.shape == (NUM_EXAMPLES, 2048)
    assert probe.seen.pictures_N is not None
    assert (probe.seen.gradient_norms_N, probe.seen.dynamics) == (None, None)
    assert selected.told["proxy"]["features"] == "patches"
    plain = Probe(frozenset({Need.COPIES}))
    select(plain)
    assert plain.seen is not None
    assert plain.seen.pictures_N is not None
    assert torch.equal(plain.seen.pictures_N, probe.seen.pictures_N)


@pytest.mark.parametrize("need", [Need.SIGNALS, Need.GRADIENT_NORMS, Need.VALIDATION])
def test_without_labels_there_is_nothing_that_is_made_of_them(select: Any, need: Need) -> None:
    with pytest.raises(SignalsError, match="'probe' needs"):
        select(Probe(frozenset({need})), labels=Labels.NONE, proxy="ridge:patches")
