"""Warm-ups of a small model on the digits: what is kept, and what comes of several models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_seed
from lipt.common.images.formats import ImageFormat
from lipt.common.models import build_model, lay_out
from lipt.common.subsets import unpack
from lipt.common.weights.files import pack
from lipt.coordinator.compute.context import Context, keep_cached
from lipt.coordinator.compute.jobs.selecting import Selected, SelectSubset
from lipt.coordinator.compute.progress import Progressed
from lipt.core.selection.options import WarmUp
from lipt.core.signals.compute import compute_signals
from lipt.core.signals.signals import Signals
from lipt.core.stages.warm_up import WarmedUp, WarmUpQuestion, warmed_up
from lipt.core.training import warm_up
from tests.digits import digits_settings

CONFIG = RunConfig(model="resnet8", seed=3, evaluation_threads=1)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def context(tmp_path: Path, reports: list[str]) -> Context:
    def send(progressed: Progressed) -> None:
        reports.append(f"{progressed.activity}: {progressed.done}")

    return Context(digits_settings(tmp_path), send=send)


def question(context: Context, warm_up: WarmUp) -> WarmUpQuestion:
    initial = context.blobs.put_bytes(pack(context.new_model(CONFIG).state_dict()))
    return WarmUpQuestion(CONFIG, IMAGE, initial, warm_up)


def ask(context: Context, warm_up: WarmUp, *, gradient_norms: bool = False) -> WarmedUp:
    wanted = question(context, warm_up)
    return warmed_up(context, wanted, signals=True, gradient_norms=gradient_norms)


def by_hand(context: Context, index: int, epochs: float) -> Signals:
    """What a model makes of the data that begins as the index says."""
    purpose = ("model", 0) if index == 0 else ("warm-up model", index)
    model = build_model(
        "resnet8", num_classes=10, inputs=context.dataset.inputs, seed=derive_seed(3, *purpose)
    )
    model = lay_out(model, "resnet8", context.device)
    train_ids = context.split(CONFIG).train_ids
    seed = derive_seed(3, "warm-up", index)
    threads = CONFIG.learners.cpu_threads
    warm_up(
        *(model.train(), context.dataset, train_ids, epochs, IMAGE),
        seed=seed,
        device=context.device,
        cpu_threads=threads,
    )
    return compute_signals(model.eval(), context.batches(IMAGE, "by hand"))


def select(context: Context, pretraining: str, **options: str) -> Selected:
    asked = question(context, WarmUp(0))
    job = SelectSubset(
        *(CONFIG, IMAGE, asked.initial),
        strategy="grand",
        budget=10,
        balanced=False,
        options=(*options.items(), ("pretraining", pretraining)),
    )
    return job.run(context)


def test_grand_of_two_models_is_the_mean_of_both_norms(context: Context) -> None:
    norms_N = torch.zeros(len(context.dataset))
    for index in range(2):
        signals = by_hand(context, index, 1)
        features_N = signals.features_ND.square().sum(dim=-1) + 1
        norms_N += (signals.errors_NC.square().sum(dim=-1) * features_N).sqrt() / 2
    selected = select(context, "epochs:1x2")
    chosen = unpack(context.blobs.read_bytes(selected.blob), 10)
    indices_K = torch.from_numpy(chosen.indices_K)
    assert indices_K.tolist() == norms_N.topk(10).indices.sort().values.tolist()


def test_a_warm_up_is_paid_for_once_and_told_ever_after(
    context: Context, reports: list[str]
) -> None:
    first = ask(context, WarmUp(1.0, 2))
    assert first.seconds == first.spent_seconds > 0
    assert "warming up model 2 of 2: 1" in reports
    reports.clear()
    again = ask(context, WarmUp(1.0, 2))
    assert (again.seconds, again.spent_seconds) == (first.seconds, 0.0)
    assert torch.equal(again.signals.errors_NC, first.signals.errors_NC)
    assert reports == []
    # Its first model is that of the shorter question, and gradients need no training.
    norms = ask(context, WarmUp(1.0), gradient_norms=True)
    assert norms.spent_seconds == 0.0
    assert norms.signals.gradient_norms_N is not None
    assert not any("warming up" in report for report in reports)


def test_many_models_do_not_push_each_other_out(context: Context, reports: list[str]) -> None:
    ask(context, WarmUp(0.0, 7), gradient_norms=False)
    reports.clear()
    ask(context, WarmUp(0.0, 7), gradient_norms=False)
    assert reports == []


def test_a_killed_warm_up_goes_on_at_the_last_epochs_end(
    context: Context, reports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Context(digits_settings(tmp_path / "other"), send=lambda _: None)
    expected = ask(whole, WarmUp(3.0)).signals

    def keep_and_die(*given: object) -> None:
        keep_cached(*given)  # type: ignore[arg-type]
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("lipt.coordinator.compute.context.keep_cached", keep_and_die)
        with pytest.raises(Killed):
            ask(context, WarmUp(3.0))
    reports.clear()
    found = ask(context, WarmUp(3.0))
    per_epoch = len(context.split(CONFIG).train_ids) // 256
    assert reports[0] == f"warming up model: {per_epoch + 1}"
    assert found.seconds > found.spent_seconds
    assert torch.equal(found.signals.errors_NC, expected.errors_NC)
    assert torch.equal(found.signals.features_ND, expected.features_ND)


def test_a_subset_says_what_its_warm_up_took(context: Context) -> None:
    first = select(context, "epochs:1")
    assert first.warm_up_seconds == first.warming_seconds
    again = select(context, "epochs:1", parameters="all")
    assert (again.warm_up_seconds, again.warming_seconds) == (first.warm_up_seconds, 0.0)
