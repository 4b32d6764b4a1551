import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import ProxyError, SignalsError, UnknownBlobError, WeightsError
from lipt.common.requests import SOUP, Budget, Proxy, SubsetRequest
from lipt.common.subsets import subset_digest
from lipt.common.tensor_files import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.selection import (
    DiagnoseData,
    MapExamples,
    SelectSubset,
    ShowExamples,
    StoredSubset,
    principal_components,
    scaled_to_box,
)
from lipt.core.diagnosis.diagnosis import DiagnosisFile
from lipt.core.selection.select import STRATEGIES
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategy import VIEWS, Cost, Growth, Strategy
from lipt.core.signals.signals import Signals
from lipt.core.signals.views import ExampleLabels, Need, View
from lipt.core.stages.resolve import Sources, without_labels, works_without_labels
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType
from lipt.data.sources.rows import ColumnRows
from tests.coordinator.made_up_runs import IMAGE
from tests.digits import digits_context, digits_settings
from tests.in_memory import in_memory
from tests.resolved import selection_job

CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1)
NUM_EXAMPLES = 1797
FEATURES, SIGNALS = frozenset({Need.FEATURES}), frozenset({Need.SIGNALS})
NOWHERE = BlobName.of(b"never uploaded")


@dataclass
class Probe:
    """A strategy that keeps what it was given."""

    needs: frozenset[Need]
    stopped_early: str = ""
    seen: Any = None
    num_threads: int = 0

    def strategy(self) -> Strategy:
        def probe(labels: ExampleLabels, budget: int) -> Selection:
            self.num_threads = torch.get_num_threads()
            chosen = unweighted(torch.arange(budget - bool(self.stopped_early)))
            return replace(chosen, stopped_early=self.stopped_early)

        owner = self

        class Watched(Strategy):
            def needs_for(self, options: Mapping[str, Any]) -> frozenset[Need]:
                return owner.needs

            def views(self, signals: Signals, given: Mapping[str, Any]) -> list[View]:
                owner.seen = signals
                for view in VIEWS:
                    if view.need in owner.needs:
                        view.of(signals)
                return [ExampleLabels.of(signals)]

        return Watched(probe, "keeps", cost=Cost(Growth.LINEAR))


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
    def run(probe: Probe, **job: Any) -> StoredSubset:
        monkeypatch.setitem(STRATEGIES, "probe", probe.strategy())
        return job_of("probe", **{"weights": weights, "budget": 10, **job}).run(context)

    return run


def put(context: Context, **tensors: torch.Tensor) -> BlobName:
    return context.blobs.put_bytes(pack(tensors))


def test_a_subset_is_stored_under_its_digest(context: Context, select: Any) -> None:
    selected = select(Probe(frozenset()))
    assert selected.digest == subset_digest(np.arange(10), np.ones(10, np.float32))
    assert (selected.num_examples, selected.manifest["stopped_early"]) == (10, "")
    assert context.blobs.has(selected.blob)


def test_an_empty_subset_is_refused_with_the_strategy_s_reason(select: Any) -> None:
    with pytest.raises(SignalsError, match=r"'probe' chooses nothing for a budget of 1: no gain\."):
        select(Probe(frozenset(), stopped_early="no gain."), budget=1)


def test_the_run_s_threads_are_used_and_restored(select: Any) -> None:
    before = torch.get_num_threads()
    probe = Probe(frozenset())
    select(probe, config=CONFIG.model_copy(update={"evaluation_threads": 3}))
    assert probe.num_threads == 3
    assert torch.get_num_threads() == before


def test_validation_signals_are_of_the_validation_split(context: Context, select: Any) -> None:
    probe = Probe(SIGNALS | {Need.VALIDATION})
    select(probe)
    ids = context.split(CONFIG).validation_ids
    assert len(probe.seen.validation) == len(ids) > 0
    assert torch.equal(probe.seen.validation.errors_NC, probe.seen.errors_NC[ids])
    assert torch.equal(probe.seen.validation.labels_N, context.dataset.labels_N[ids])


def test_own_features_replace_the_model_s(context: Context, select: Any) -> None:
    own = torch.rand(NUM_EXAMPLES, 3)
    pairs = torch.rand(NUM_EXAMPLES, 2)
    probe = Probe(SIGNALS | {Need.VALIDATION})
    select(probe, features=put(context, features=own.half(), paired_features=pairs))
    assert torch.equal(probe.seen.features_ND, own.half().float())
    assert torch.equal(probe.seen.paired_features_NP, pairs)
    # Errors are still the model's, and the validation split is seen with the same features.
    assert probe.seen.errors_NC.shape == (NUM_EXAMPLES, 10)
    assert probe.seen.validation.features_ND.shape[1] == 3


@pytest.mark.parametrize("needs", [FEATURES, frozenset({Need.PAIRED_FEATURES}), frozenset()])
def test_a_strategy_on_own_features_needs_no_model(
    context: Context, select: Any, needs: frozenset[Need]
) -> None:
    own = torch.rand(NUM_EXAMPLES, 3)
    probe = Probe(needs)
    blob = put(context, features=own, paired_features=own)
    select(probe, weights=NOWHERE, features=blob)
    assert torch.equal(probe.seen.features_ND, own)
    assert probe.seen.errors_NC.shape == (NUM_EXAMPLES, 0)


def test_features_default_to_the_model_s(select: Any) -> None:
    probe, both = Probe(FEATURES), Probe(SIGNALS)
    select(probe)
    select(both)
    assert torch.equal(probe.seen.features_ND, both.seen.features_ND)
    with pytest.raises(UnknownBlobError):
        select(Probe(FEATURES), weights=NOWHERE)


def test_uploaded_weights_that_no_training_gives_are_refused(context: Context, select: Any) -> None:
    state = context.new_model(CONFIG).state_dict()
    name, tensor = next(iter(state.items()))
    diverged = put(context, **{**state, name: tensor * float("inf")})
    with pytest.raises(WeightsError) as refused:
        select(Probe(SIGNALS), weights=diverged)
    sentence = str(refused.value)
    assert f"weights {diverged.sha256[:12]} cannot be selected on: {name!r} has NaN or" in sentence
    assert "take a checkpoint from before, and lower" in sentence
    assert "learner" not in sentence
    # Nor are statistics that no training gives.
    name = next(name for name in state if name.endswith("running_var"))
    with pytest.raises(WeightsError, match=rf"{name}' has a variance below 0"):
        select(Probe(SIGNALS), weights=put(context, **{**state, name: -state[name]}))


def test_missing_paired_features_are_an_error(context: Context, select: Any) -> None:
    probe = Probe(frozenset({Need.PAIRED_FEATURES}))
    how = r"lipt subset get --features FILE\.safetensors.*client\.subset"
    with pytest.raises(SignalsError, match=rf"have no features\..*{how}"):
        select(probe)
    with pytest.raises(SignalsError, match=rf"have no paired features\..*{how}"):
        select(probe, features=put(context, features=torch.rand(NUM_EXAMPLES, 3)))


def test_without_labels_all_examples_have_one_class(context: Context, select: Any) -> None:
    probe = Probe(FEATURES | {Need.DUPLICATES})
    selected = select(probe, weights=NOWHERE, unlabelled=True, proxy=Proxy.parse("ridge:patches"))
    assert probe.seen.labels_N.tolist() == [0] * NUM_EXAMPLES
    assert probe.seen.errors_NC.shape == (NUM_EXAMPLES, 0)
    assert probe.seen.features_ND.shape == (NUM_EXAMPLES, 2048)
    assert probe.seen.duplicate_group_N is not None
    assert (probe.seen.gradient_norms_N, probe.seen.dynamics) == (None, None)
    assert selected.manifest["proxy"]["features"] == "patches"
    plain = Probe(frozenset({Need.DUPLICATES}))
    select(plain)
    assert torch.equal(plain.seen.duplicate_group_N, probe.seen.duplicate_group_N)


@pytest.mark.parametrize("need", [Need.SIGNALS, Need.GRADIENT_NORMS, Need.VALIDATION])
def test_without_labels_label_signals_are_refused(select: Any, need: Need) -> None:
    with pytest.raises(SignalsError, match="the signals have no"):
        select(Probe(frozenset({need})), unlabelled=True, proxy=Proxy.parse("ridge:patches"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Context:
    settings = digits_settings(tmp_path_factory.mktemp("state"), "digits-test")
    return Context(settings, send=lambda _: None)


def holding(context: Context, dataset: Dataset) -> Context:
    """The same state with another data set."""
    other = Context(context.settings, send=lambda _: None)
    vars(other)["dataset"] = dataset
    return other


@pytest.fixture(scope="module")
def permuted(small: Context) -> Context:
    """The same images under other labels, which make them another data set."""
    labels_N = small.dataset.labels_N
    order_N = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(0))
    rows = replace(small.dataset.rows, labels_N=labels_N[order_N])
    return holding(small, replace(small.dataset, rows=rows, fingerprint="permuted"))


def job_of(name: str, **others: Any) -> SelectSubset:
    where = {"config": CONFIG, "inputs": IMAGE, "weights": NOWHERE}
    return selection_job(name, **{**where, **others})


def unlabelled(name: str, **others: Any) -> SelectSubset:
    request = SubsetRequest(
        strategy=name, budget=Budget(number=40), features=others.get("features")
    )
    options, proxy = without_labels(STRATEGIES[name], {}, request)
    return job_of(name, given=options, proxy=proxy, unlabelled=True, **others)


@pytest.mark.parametrize(
    "name", [name for name, strategy in STRATEGIES.items() if works_without_labels(strategy)]
)
def test_permuted_labels_give_the_same_subset(small: Context, permuted: Context, name: str) -> None:
    job = unlabelled(name)
    first, second = job.run(small), job.run(permuted)
    assert first.num_examples == 40 or first.manifest["stopped_early"]
    assert first.blob == second.blob
    assert first.manifest["proxy"]["features"] == "patches"


@pytest.mark.parametrize("name", ["facility_location", "sas"])
def test_with_labels_permuted_ones_matter(small: Context, permuted: Context, name: str) -> None:
    # The test above would see them come in.
    job = job_of(name, proxy=Proxy.parse("ridge:patches"))
    assert job.run(small).blob != job.run(permuted).blob


def test_own_features_are_not_scaled(small: Context, permuted: Context) -> None:
    # Of two columns one counts, unless each is divided by its deviation.
    drawn_N2 = torch.rand(len(small.dataset), 2, generator=torch.Generator().manual_seed(0))
    own = pack({"features": drawn_N2 * torch.tensor([1000.0, 1.0])})
    features = small.blobs.put_bytes(own)
    job = unlabelled("kcenter", features=features)
    assert job.request.proxy == SOUP
    first = job.run(small)
    assert first.manifest["proxy"] == {"proxy": None}
    assert job.run(permuted).blob == first.blob
    # The same as with labels that are not read.
    assert job_of("kcenter", features=features).run(small).blob == first.blob
    by_head = replace(job, request=replace(job.request, proxy=Proxy.parse("ridge:user")))
    assert by_head.run(small).blob != first.blob


SOURCES = Sources(CONFIG, None, None)
FLIPPED = list(range(0, 300, 10))
COPY = 299


@pytest.fixture
def flipped(small: Context) -> Context:
    """Some labels are flipped on purpose, and one picture is there twice."""
    plain, some = small.dataset, torch.arange(300)
    images, labels_N = plain.images(some), plain.labels_N[some].clone()
    images[COPY], labels_N[COPY] = images[1], labels_N[1]
    labels_N[FLIPPED] = (labels_N[FLIPPED] + 1) % 10
    return holding(small, in_memory("flipped", plain.class_names, labels_N, "print", images))


def diagnosed(context: Context) -> DiagnosisFile:
    made = DiagnoseData(SOURCES, Proxy.parse("ridge:patches")).run(context)
    assert made.device == "cpu"
    return DiagnosisFile.load(context.blobs.verified_path(made.blob))


def test_wrong_labels_and_duplicates_are_found_without_a_run(flipped: Context) -> None:
    diagnosis = diagnosed(flipped)
    findings = diagnosis.findings
    assert findings.proxy["features"] == "patches"
    ranked = [issue.id for issue in findings.label_errors.ranked]
    assert len(set(ranked[:20]) & set(FLIPPED)) >= 18
    assert findings.label_errors.noise_low <= 0.1 <= findings.label_errors.noise_high
    assert findings.duplicates.exact_groups == 1
    assert diagnosis.columns["duplicate_of"][[1, COPY]].unique().numel() == 1
    assert findings.learnability.sizes == (150, 300)
    assert findings.redundancy.sampled == 300
    # One question has one answer.
    again = diagnosed(flipped)
    for name, column in diagnosis.columns.items():
        assert torch.equal(column, again.columns[name]), name
    assert findings == again.findings


@pytest.mark.parametrize(
    ("proxy", "words"),
    [("soup", "has learned from the labels in question"), ("ridge:soup", "`soup` needs a run")],
)
def test_proxies_that_cannot_diagnose_are_refused(flipped: Context, proxy: str, words: str) -> None:
    with pytest.raises(ProxyError, match=words):
        DiagnoseData(SOURCES, Proxy.parse(proxy)).run(flipped)


def test_pictures_have_the_requested_order(small: Context) -> None:
    found = ShowExamples((7, 2)).run(small)
    images = small.dataset.images(torch.tensor([7, 2]))
    for shown, image_CHW in zip(found, images, strict=True):
        assert shown.text == ""
        assert shown.png is not None
        content = base64.b64decode(shown.png.partition(",")[2])
        pixels = list(Image.open(io.BytesIO(content)).tobytes())
        assert pixels == image_CHW.flatten().tolist()
    assert ShowExamples(()).run(small) == ()


def test_column_examples_show_their_first_values(small: Context) -> None:
    columns = (Column("age", ColumnType.FLOAT32, ()), Column("text", ColumnType.INT64, (20,)))
    tensors = {"age": torch.tensor([0.5, 1.25]), "text": torch.arange(40).view(2, 20)}
    rows = ColumnRows("made up", ("a", "b"), torch.tensor([0, 1]), columns, tensors)
    columned = holding(small, Dataset(rows, "print", ColumnsSpec(columns)))
    (shown,) = ShowExamples((1,)).run(columned)
    assert shown.png is None
    values = ", ".join(map(str, range(20, 32)))
    assert shown.text == f"age: 1.25; text: {values}, ..."


def test_equal_examples_have_one_position_on_the_map(small: Context) -> None:
    weights = small.blobs.put_bytes(pack(small.new_model(CONFIG).state_dict()))
    job = MapExamples(CONFIG, IMAGE, weights, (*range(40), 3))
    places = job.run(small)
    assert places[40] == pytest.approx(places[3])
    assert len({(round(x, 6), round(y, 6)) for x, y in places}) == 40
    assert all(0 <= value <= 1 for place in places for value in place)


def test_map_points_are_centred_and_not_stretched() -> None:
    corners = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0]])
    # Eight are free of the width of ten: two units are eight, and one is four.
    found = scaled_to_box(corners, width=10, height=10, margin=1)
    assert found.tolist() == [[1.0, 3.0], [9.0, 3.0], [9.0, 7.0]]
    features_ND = torch.tensor([[0.0, 3.0, 1.0], [0.0, -3.0, 1.0], [0.5, 0.0, 1.0], [-0.5, 0, 1.0]])
    expected_N2 = torch.tensor([[3.0, 0.0], [3.0, 0.0], [0.0, 0.5], [0.0, 0.5]]).double()
    torch.testing.assert_close(principal_components(features_ND).abs(), expected_N2)


@pytest.mark.parametrize(("count", "dimensions"), [(1, 1), (2, 6), (40, 2)])
def test_few_or_equal_points_have_positions(count: int, dimensions: int) -> None:
    places = principal_components(torch.ones(count, dimensions))
    assert places.shape == (count, 2)
    assert places.isfinite().all()
