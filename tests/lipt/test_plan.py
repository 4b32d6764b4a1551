import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.errors import BudgetError, ConfigError
from lipt.common.requests import SOUP, Proxy
from lipt.common.tensor_files import copy_to_cpu
from lipt.coordinator.compute.context import DataDescription
from lipt.core.planning import PROCESS_BYTES, total
from lipt.core.pretraining.sharding import draw_shards, split_validation
from lipt.core.selection.select import find_strategy
from lipt.data.inputs.specs import ImageSpec
from lipt.data.shard import pack_shard
from lipt.models.encodings import encode_weights
from lipt.models.footprint import ModelFigures
from lipt.models.registry import build_model
from lipt.plan import Estimate, StageEstimate, estimate, lines_of, plan_choice
from lipt.pretraining import Pretrained, kind_of_run
from lipt.trainer.formatting import to_jsonable
from tests import processes
from tests.coordinator.fakes import described
from tests.lipt.digits import few_digits
from tests.resolved import resolved

SMALL_RUN: dict[str, Any] = {
    "learners": {"num_learners": 2, "num_steps": 3, "num_minibatches": 1, "batch_size": 64},
    "soup": {"batch_norm_examples": 32},
}


def planned(
    source: Any = "digits",
    strategy: str = "el2n",
    *,
    target_data: Any = None,
    run: dict[str, Any] | None = None,
    model: str | None = None,
    fraction: float = 0.1,
    **given: Any,
) -> Estimate:
    kind = kind_of_run(strategy, is_targeted=target_data is not None)
    opened = kind(source, model, run=SMALL_RUN if run is None else run, progress=False)
    request = opened.resolve(strategy, fraction, target_data=target_data)
    return estimate(opened, request, **{"timed": False, **given})


def stages(found: Estimate) -> dict[str, StageEstimate]:
    return {stage.name: stage for stage in found.stages}


def test_the_plan_has_the_images_of_a_run_s_admission() -> None:
    images = {name: stage.images for name, stage in stages(planned()).items()}
    # 2 learners of 3 steps on 64; each alone and their mean, on 200 + 32 images.
    learners, soup = 2 * 3 * 64, (2 + 1) * (200 + 32)
    assert images == {"theta*": 0, "shards": 0, "learners": learners, "soup": soup, "subset": 1797}
    trained = {**SMALL_RUN, "initialization": {"steps": 7, "batch_size": 100}}
    assert stages(planned(run=trained))["theta*"].images == 700
    twice = {**SMALL_RUN, "learners": {**SMALL_RUN["learners"], "redundancy": 2}}
    assert stages(planned(run=twice))["learners"].images == 2 * learners


def test_the_plan_has_the_bytes_that_are_transferred() -> None:
    opened = Pretrained("digits", "resnet8", run=SMALL_RUN, progress=False)
    config, dataset = opened.config, opened.data
    train_ids = split_validation(dataset.labels_N, config.validation, seed=0).train_ids
    shards = draw_shards(train_ids, config.learners, seed=0)
    cut = sum(len(pack_shard(dataset, ids)) for ids in shards)
    model = build_model("resnet8", num_classes=10, inputs=dataset.inputs, seed=0)
    sent = len(encode_weights(copy_to_cpu(model.state_dict()), config.learners.encoding))
    found = planned(model="resnet8")
    assert found.bytes_to_workers == pytest.approx(cut + sent, rel=0.05)
    assert found.bytes_from_workers == pytest.approx(2 * sent, rel=0.05)
    # theta* comes to each worker, a shard to each learner.
    two = planned(model="resnet8", num_workers=2)
    assert two.bytes_to_workers - found.bytes_to_workers == pytest.approx(sent, rel=0.05)
    assert planned(model="resnet8", num_workers=9).bytes_to_workers == two.bytes_to_workers
    with_snapshots = {**SMALL_RUN, "learners": {**SMALL_RUN["learners"], "num_snapshots": 2}}
    more = planned(model="resnet8", run=with_snapshots)
    assert more.bytes_from_workers == 3 * found.bytes_from_workers


def counted(
    name: str,
    data: DataDescription,
    *,
    proxy: str | None = None,
    options: dict[str, str] | None = None,
) -> tuple[int, int, int]:
    """Images, memory and signals' bytes, for a model without memory and a run of ten learners."""
    request = resolved(
        name,
        100,
        balanced=find_strategy(name).resolve_balance(None),
        given=options or {},
        proxy=SOUP if proxy is None else Proxy.parse(proxy),
    )
    config = RunConfig(learners=LearnersConfig(num_learners=10))
    [stage], size = plan_choice(request, config, data, ModelFigures(0, 0, 0), 64, batch_size=1)
    return total(stage.images), total(stage.memory), size


def images_of(number: int, size: int = 32) -> DataDescription:
    return described((number // 10,) * 10, ImageSpec(3, size, size))


@pytest.mark.parametrize(
    ("name", "options", "images", "signals_bytes"),
    [
        # 10 errors and 64 features in float32, and labels of eight bytes.
        ("el2n", {}, 5000, 5000 * (4 * 74 + 8)),
        ("uniform", {}, 0, 5000 * 8),
        # A gradient's norm; there is no pass of the model alone.
        ("grand", {"parameters": "all"}, 0, 5000 * (8 + 4)),
        # theta* and ten learners; two numbers of each.
        ("disagreement", {}, 11 * 5000, 5000 * (8 + 11 * 8)),
    ],
)
def test_the_plan_counts_a_strategy_s_passes(
    name: str, options: dict[str, str], images: int, signals_bytes: int
) -> None:
    found = counted(name, images_of(5000), options=options)
    assert (found[0], found[2]) == (images, signals_bytes)


def test_auto_makes_at_most_two_passes() -> None:
    # Patches of photographs and of their mirror images are one, the soup's features one.
    images, most, _ = counted("auto", images_of(5000), proxy="auto")
    assert images == 2 * 5000
    # A ridge head on patches alone: 2,048 columns, their sums in float64 and two copies.
    images, memory, _ = counted("auto", images_of(5000), proxy="ridge:patches")
    assert images == 5000
    assert 3 * 8 * 2048**2 < memory - PROCESS_BYTES < most


@pytest.mark.parametrize(("number", "pairs"), [(80_000, 4 * 8_000**2), (600_000, 2_750_000_000)])
def test_pairs_of_a_class_are_in_memory_up_to_a_limit(number: int, pairs: int) -> None:
    craig, el2n = (counted(name, images_of(number, 224))[1] for name in ("craig", "el2n"))
    assert craig - el2n == pairs


@pytest.mark.parametrize("source", ["digits", "table"])
def test_the_plan_scales_a_batch_s_seconds(source: str, tmp_path: Path) -> None:
    if source == "table":
        rows = "\n".join(f"{row % 7},{row % 3}.5,{row % 2}" for row in range(400))
        (tmp_path / "table.csv").write_text(f"a,b,c\n{rows}\n")
        source = f"csv:{tmp_path / 'table.csv'}?label=c"
    found = planned(source, timed=True)
    seconds = {stage.name: stage.seconds for stage in found.stages if stage.seconds is not None}
    assert seconds.keys() == {"learners", "soup", "subset"}
    assert all(taken > 0 for taken in seconds.values())
    assert "All images take" in "\n".join(lines_of(found))
    # As scripts have it: no NaN, and nothing that JSON has not.
    json.dumps(to_jsonable(found), allow_nan=False)


def test_the_plan_times_texts_for_a_target(tmp_path: Path) -> None:
    texts = "".join(json.dumps({"text": f"row {row} is short"}) + "\n" for row in range(200))
    (tmp_path / "texts.jsonl").write_text(texts)
    source = f"jsonl:{tmp_path}/texts.jsonl?text=text&max_length=8"
    found = planned(source, "loss_drop", target_data=source, run=None, timed=True)
    timed = {stage.name for stage in found.stages if stage.seconds is not None}
    assert timed == {"theta*", "learners", "soup", "target", "subset"}


@pytest.mark.parametrize(
    ("strategy", "trained", "passes", "numbers"),
    [
        # Losses and features under theta*, and losses after a learner on each of two parts.
        ("loss_drop", 2 * 10 * 64, 1 + 2, 64 + 1 + 2),
        ("rds_plus", 0, 1, 64 + 1),
        ("bm25", 0, 0, 0),
    ],
)
def test_the_plan_counts_learners_and_passes_for_a_target(
    strategy: str, trained: int, passes: int, numbers: int
) -> None:
    target = {"one": few_digits(50), "two": few_digits(60)}
    found = planned(few_digits(), strategy, model="resnet8", run={}, target_data=target)
    images = {stage.name: stage.images for stage in found.stages}
    assert images.get("target", 0) == trained
    assert images["subset"] == passes * 240
    assert found.signals_bytes == 240 * (8 + 4 * numbers)
    # The preset of a target: 400 steps of theta*, and one learner of a minibatch.
    assert (images["theta*"], images["learners"]) == (400 * 64, 64)


def test_a_refused_run_is_reported_and_not_timed() -> None:
    run = {**SMALL_RUN, "learners": {**SMALL_RUN["learners"], "num_steps": 2**31 - 1}}
    found = planned(run=run, timed=True)
    assert {stage.seconds for stage in found.stages} == {None}
    [why] = found.refused
    assert "Lower learners.num_steps to at most" in why
    assert f"refuses it: {why}" in "\n".join(lines_of(found))
    assert planned().refused == ()
    with pytest.raises(BudgetError, match=r"fraction 2\.0 is outside"):
        planned(fraction=2.0)
    with pytest.raises(ConfigError, match="5000 learners x 1 minibatch"):
        planned(run={"learners": {"num_learners": 5000}})


def lipt_plan(*words: str) -> subprocess.CompletedProcess[str]:
    return processes.run(["-m", "lipt.cli", "plan", *words, "--no-measure"])


def test_the_command_prints_a_table_or_json_of_the_settings() -> None:
    done = lipt_plan("--data", "digits", "--strategy", "uniform")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "digits: 1,797 examples of 1x8x8 images, resnet8, 180 by uniform"
    firsts = [line.split()[0] for line in lines[2:8]]
    assert firsts == ["stage", "theta*", "shards", "learners", "soup", "subset"]
    assert lines[-1] == "Nothing was timed."
    done = lipt_plan(
        *("--data", "digits", "--json", "--budget", "7", "--strategy", "gradmatch"),
        *("--num-learners", "3", "--set", "learners.batch_size=80", "--option", "ridge=0.5"),
    )
    told = json.loads(done.stdout)
    images = {stage["name"]: stage["images"] for stage in told["stages"]}
    # 1,597 digits to train on: 1597 // (3 x 80) minibatches in place of 32.
    assert images["learners"] == 3 * 6 * 80 * RunConfig().learners.num_steps
    assert "7 by gradmatch" in told["subject"]
    done = lipt_plan("--data", "digits", "--set", "learners")
    assert (done.returncode, "is not NAME=VALUE" in done.stderr) == (2, True)
