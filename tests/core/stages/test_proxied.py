from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import (
    InitializationConfig,
    LearnersConfig,
    RunConfig,
    SoupConfig,
)
from lipt.common.determinism import derive_generator
from lipt.common.errors import ProxyError
from lipt.common.requests import Proxy
from lipt.common.tensor_files import pack
from lipt.coordinator.compute.context import Context
from lipt.core.diagnosis.label_errors import find_label_errors, label_confidence
from lipt.core.pretraining.results import CommittedLearner, Trajectories
from lipt.core.proxies.ridge import LeaveOneOut, leave_one_out
from lipt.core.proxies.untrained import draw_filters, patch_features
from lipt.core.signals.signals import Signals, required
from lipt.core.stages import proxy as proxying
from lipt.core.stages import proxy_features
from lipt.core.stages.proxy import proxied_features, proxied_signals
from lipt.core.stages.resolve import Sources
from lipt.core.stages.warm_up import own_learners
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import ImageFormat, ImageSpec
from lipt.data.loading import open_dataset
from lipt.models.encodings import encode_sparse
from lipt.models.networks import build_torchvision
from tests.digits import digits_context
from tests.in_memory import in_memory

PATCHES = Proxy.parse("ridge:patches")
LEARNERS = LearnersConfig(num_learners=2, num_minibatches=2, batch_size=30)
CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1, learners=LEARNERS)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))
NOWHERE = BlobName.of(b"never uploaded")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return digits_context(tmp_path_factory.mktemp("state"), "digits-test")


def put_learner(context: Context, index: int, seed: int) -> CommittedLearner:
    config = CONFIG.model_copy(update={"seed": seed})
    result = encode_sparse(context.new_model(config).state_dict())
    return CommittedLearner(index, (), context.blobs.put_bytes(result))


@pytest.fixture(scope="module")
def weights(context: Context) -> BlobName:
    return context.blobs.put_bytes(pack(context.new_model(CONFIG).state_dict()))


@pytest.fixture(scope="module")
def trajectories(context: Context, weights: BlobName) -> Trajectories:
    return Trajectories(weights, (put_learner(context, 0, 3), put_learner(context, 1, 4)))


@pytest.fixture
def ask(context: Context, weights: BlobName) -> Any:
    def asked(text: str, **question: Any) -> tuple[Signals, Mapping[str, Any]]:
        sources = replace(Sources(CONFIG, IMAGE, weights), **question)
        signals = proxied_signals(context, sources, Proxy.parse(text))
        return signals, required(signals.facts, "facts")

    return asked


def patches_of(dataset: Dataset, *, mirrored: bool = False) -> Tensor:
    """Features by the filters that a run of `CONFIG` draws."""
    generator = derive_generator(CONFIG.seed, "patches")
    drawn = torch.randperm(len(dataset), generator=generator).sort().values
    filters = draw_filters(dataset.images(drawn), generator=generator)
    return patch_features(dataset.images(drawn), replace(filters, mirrored=mirrored))


@pytest.fixture(scope="module")
def patches_ND(context: Context) -> Tensor:
    return patches_of(context.dataset)


def test_errors_and_features_are_the_head_s(context: Context, ask: Any, patches_ND: Tensor) -> None:
    # No model is looked at.
    signals, facts = ask("ridge:patches", weights=NOWHERE)
    dataset = context.dataset
    head = leave_one_out(patches_ND, dataset.labels_N, 10, generator=torch.Generator())
    chances_NC = (head.outputs_NC * facts["inverse_temperature"]).softmax(dim=-1)
    expected_NC = chances_NC - functional.one_hot(dataset.labels_N, 10)
    torch.testing.assert_close(signals.errors_NC, expected_NC, rtol=0, atol=1e-5)
    assert signals.has_bias
    assert facts["proxy"] == "ridge:patches"
    assert facts["features"] == ["patches"]
    assert facts["num_features"] == signals.features_ND.shape[1] == 2048
    assert facts["accuracy"] == pytest.approx(head.accuracy)
    assert facts["accuracy"] > 0.9
    assert facts["penalty"] == head.penalty
    assert facts["tried"] == []
    # Scaled: where the classes are nearly even, mean 0 and deviation 1.
    spread_D = signals.features_ND.std(dim=0)
    torch.testing.assert_close(spread_D[spread_D > 0].mean(), torch.tensor(1.0), rtol=0.05, atol=0)


def test_the_second_head_excludes_suspected_labels(weights: BlobName, tmp_path: Path) -> None:
    context = digits_context(tmp_path, "digits-mislabelled")
    first = proxied_signals(context, Sources(CONFIG, IMAGE, weights), PATCHES)
    labels_N = context.dataset.labels_N
    confidence_N = label_confidence(
        find_label_errors(replace(first, second_errors_NC=None)), labels_N
    )
    assert confidence_N is not None
    assert torch.equal(required(first.confidence_N, "confidence"), confidence_N)
    assert required(first.facts, "facts")["suspected"] == int((confidence_N < 1).sum()) > 0
    assert first.second_errors_NC is not None
    # Of examples without a say the second head knows better than their labels.
    wrong_N = labels_N != open_dataset("digits-train").labels_N
    suggested_N = find_label_errors(first).suggested_N
    assert float((suggested_N[wrong_N] != labels_N[wrong_N]).double().mean()) > 0.9
    # What was kept on disk is what was computed.
    again = proxied_signals(context, Sources(CONFIG, IMAGE, weights), PATCHES)
    assert again.facts == first.facts
    assert torch.equal(required(again.confidence_N, "confidence"), confidence_N)
    assert again.second_errors_NC is not None
    assert torch.equal(again.second_errors_NC, first.second_errors_NC)


def test_theta_star_s_features_equal_those_of_a_soup(ask: Any, weights: BlobName) -> None:
    as_they_came = CONFIG.model_copy(update={"soup": SoupConfig(reestimate_batch_norm=False)})
    question = {"config": as_they_came, "initial": weights}
    initial, facts = ask("ridge:initial", **question, weights=NOWHERE)
    soup, _ = ask("ridge:soup", config=as_they_came)
    assert facts["features"] == ["initial"]
    assert torch.equal(initial.features_ND, soup.features_ND)
    # Given weights keep their statistics; those of random ones are of the run's own data.
    began = InitializationConfig(weights_sha256="0" * 64)
    given = CONFIG.model_copy(update={"initialization": began})
    kept, _ = ask("ridge:initial", config=given, initial=weights)
    assert torch.equal(kept.features_ND, initial.features_ND)
    anew, _ = ask("ridge:initial", initial=weights)
    assert not torch.equal(anew.features_ND, initial.features_ND)
    _, facts = ask("auto", **question)
    tried = [one["features"] for one in facts["tried"]]
    assert tried == [["patches"], ["patches", "soup"], ["patches", "initial"]]


def test_learner_features_are_concatenated_and_zero_on_own_shards(
    context: Context, ask: Any, weights: BlobName, trajectories: Trajectories
) -> None:
    signals, facts = ask("ridge:learners", trajectories=trajectories)
    # Of each the head's 64 inputs, and 4x4 of the 32 channels of the map before the last.
    assert facts["num_features"] == 2 * (64 + 16 * 32)
    own_learner_N = own_learners(context, CONFIG, trajectories)
    num_distinct = []
    for learner, block_NW in enumerate(signals.features_ND.chunk(2, dim=1)):
        own_N = own_learner_N == learner
        assert int(own_N.sum()) == 2 * 30
        assert len(block_NW[own_N].unique(dim=0)) == 1
        num_distinct.append(len(block_NW[~own_N].unique(dim=0)))
    assert min(num_distinct) > 250
    # Others see the same of both learners, wherever the shards are.
    small = LEARNERS.model_copy(update={"batch_size": 2})
    elsewhere = CONFIG.model_copy(update={"learners": small})
    other, _ = ask("ridge:learners", trajectories=trajectories, config=elsewhere)
    assert not torch.equal(other.errors_NC, signals.errors_NC)
    _, both = ask("ridge:soup+learners", trajectories=trajectories)
    assert both["features"] == ["soup", "learners"]
    assert both["num_features"] == 3 * (64 + 16 * 32)


@pytest.mark.parametrize(("scale", "mirrored"), [(4, False), (4, True), (3, False)])
def test_mirror_images_are_used_if_they_raise_accuracy(
    tmp_path: Path, weights: BlobName, scale: int, *, mirrored: bool
) -> None:
    context = digits_context(tmp_path, "digits-test")
    dataset = context.dataset
    images_NCHW = dataset.images(torch.arange(len(dataset)))
    scaled_NCHW = functional.interpolate(images_NCHW.float(), scale_factor=scale, mode="bilinear")
    images_NCHW = scaled_NCHW.round().to(torch.uint8)
    if mirrored or scale == 3:
        # Half of the images are mirrored: only what both have in common is of use. Below 28 pixels
        # that is not tried.
        images_NCHW[::2] = images_NCHW[::2].flip(3)
    names = dataset.class_names
    vars(context)["dataset"] = in_memory("made-up", names, dataset.labels_N, "0" * 64, images_NCHW)
    signals = proxied_signals(context, Sources(CONFIG, IMAGE, weights), PATCHES)
    features_ND = patches_of(context.dataset, mirrored=mirrored)
    head = leave_one_out(features_ND, dataset.labels_N, 10, generator=torch.Generator())
    assert required(signals.facts, "facts")["accuracy"] == pytest.approx(head.accuracy, abs=1e-3)


def test_user_features_come_from_the_request(context: Context, ask: Any) -> None:
    # They give the labels away.
    onehot_NC = functional.one_hot(context.dataset.labels_N, 10).float()
    features = context.blobs.put_bytes(pack({"features": onehot_NC}))
    signals, facts = ask("ridge:user", features=features, weights=NOWHERE)
    assert facts["accuracy"] == 1.0
    assert facts["num_features"] == signals.features_ND.shape[1] == 10
    # Nothing that costs a pass can be better.
    _, facts = ask("auto", features=features)
    assert [one["features"] for one in facts["tried"]] == [["user"]]


def test_the_operator_sets_the_backbone(
    weights: BlobName, context: Context, tmp_path: Path
) -> None:
    path = tmp_path / "resnet18.safetensors"
    save_file(build_torchvision("resnet18", num_classes=3, in_channels=3).state_dict(), path)
    settings = context.settings.model_copy(update={"backbone": f"torchvision:resnet18@{path}"})
    named, backbone = Context(settings, send=lambda _: None), Proxy.parse("ridge:backbone")
    found = proxied_signals(named, Sources(CONFIG, IMAGE, weights), backbone)
    assert required(found.facts, "facts")["num_features"] == 5 * 512


def test_auto_reports_all_tried_proxies(ask: Any, trajectories: Trajectories) -> None:
    chosen, facts = ask("auto", trajectories=trajectories)
    tried = {tuple(one["features"]): one for one in facts["tried"]}
    assert list(tried) == [("patches",), ("patches", "soup")]
    assert [one["passes"] for one in tried.values()] == [1.0, 2.0]
    assert facts["features"] == ["patches"]
    assert facts["accuracy"] == tried[("patches",)]["accuracy"]
    alone, _ = ask("ridge:patches")
    assert torch.equal(chosen.errors_NC, alone.errors_NC)
    assert torch.equal(chosen.features_ND, alone.features_ND)


def test_auto_fits_only_the_best_of_a_sample_to_all_examples(
    ask: Any, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[tuple[int, ...]] = []

    def noted(features_ND: Tensor, *args: Any, **kwargs: Any) -> LeaveOneOut:
        fitted.append(tuple(features_ND.shape))
        return leave_one_out(features_ND, *args, **kwargs)

    monkeypatch.setattr(proxy_features, "MAX_SAMPLE", 100)
    monkeypatch.setattr(proxy_features, "leave_one_out", noted)
    # Signals of other seeds are stored already.
    config = CONFIG.model_copy(update={"seed": 5})
    signals, facts = ask("auto", config=config)
    assert [one["features"] for one in facts["tried"]] == [["patches"], ["patches", "soup"]]
    # The head's 64 inputs, and 4x4 of 32 channels.
    num_patches, num_both = 2048, 2048 + 64 + 16 * 32
    assert fitted[:2] == [(100, num_patches), (100, num_both)]
    # A second head, to confident labels, has the same features.
    num_chosen = num_patches if facts["features"] == ["patches"] else num_both
    assert set(fitted[2:]) == {(len(context.dataset), num_chosen)}
    alone, _ = ask("ridge:" + "+".join(facts["features"]), config=config)
    assert torch.equal(signals.errors_NC, alone.errors_NC)


@pytest.mark.parametrize(("easy", "chosen"), [(0.5, ["patches"]), (1.0, ["patches", "soup"])])
def test_the_first_proxy_is_taken_if_it_leaves_too_few_errors_of_all(
    ask: Any, monkeypatch: pytest.MonkeyPatch, easy: float, chosen: list[str]
) -> None:
    # On the sample the soup gains five points; half of the errors of all are a quarter of a point.
    scores = iter([0.9, 0.95])

    def on_sample(features_ND: Tensor, *args: Any, **kwargs: Any) -> LeaveOneOut:
        head = leave_one_out(features_ND, *args, **kwargs)
        return replace(head, accuracy=next(scores) if len(features_ND) == 100 else 0.995)

    monkeypatch.setattr(proxy_features, "MAX_SAMPLE", 100)
    monkeypatch.setattr(proxying, "_EASY", easy)
    monkeypatch.setattr(proxy_features, "leave_one_out", on_sample)
    seed = 6 if easy < 1 else 7
    _, facts = ask("auto", config=CONFIG.model_copy(update={"seed": seed}))
    assert facts["features"] == chosen


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("ridge:patches+learners", "a run's own theta_p: no other .*leave `learners` out"),
        ("ridge:user", "features in the request: --features FILE"),
        ("ridge:backbone", "a coordinator started with --backbone"),
    ],
)
def test_unavailable_features_are_refused_with_a_remedy(ask: Any, text: str, remedy: str) -> None:
    with pytest.raises(ProxyError, match=remedy):
        ask(text)


def test_only_images_have_patches(context: Context) -> None:
    rows = Context(context.settings, send=lambda _: None)
    vars(rows)["dataset"] = replace(context.dataset, inputs=ImageSpec(1, 1, 64))
    with pytest.raises(
        ProxyError, match=r"needs pictures, and the data has 1x1x64 images. .*leave `patches` out"
    ):
        proxied_signals(rows, Sources(CONFIG, IMAGE, NOWHERE), PATCHES)


def test_features_alone_need_neither_a_head_nor_a_label(
    context: Context, monkeypatch: pytest.MonkeyPatch, patches_ND: Tensor
) -> None:
    monkeypatch.setattr(proxy_features, "leave_one_out", None)
    signals = proxied_features(context, Sources(CONFIG, IMAGE, NOWHERE), PATCHES)
    # Every example has the same say in the mean and the deviation, whatever its class.
    features_ND = patches_ND.double()
    deviation_D = features_ND.std(dim=0, unbiased=False)
    varies_D = deviation_D > 1e-6
    expected_ND = (features_ND - features_ND.mean(dim=0)) / deviation_D
    torch.testing.assert_close(
        signals.features_ND[:, varies_D], expected_ND[:, varies_D].float(), rtol=0, atol=1e-3
    )
    assert signals.labels_N.tolist() == [0] * len(features_ND)
    assert signals.errors_NC.shape == (len(features_ND), 0)
    facts = required(signals.facts, "facts")
    assert set(facts) == {"proxy", "features", "num_features", "drawn", "seconds"}
    assert (facts["proxy"], facts["features"]) == ("ridge:patches", ["patches"])
    assert facts["num_features"] == 2048
