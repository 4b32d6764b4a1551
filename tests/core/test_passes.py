import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.errors import ConfigError, DataError, SignalsError, WeightsError
from lipt.common.tensor_files import Weights
from lipt.core.passes import (
    KINDS,
    Batches,
    account,
    encode_range,
    merged_account,
    pass_over,
    read_range,
    results_on_cpu,
    score_range,
    score_texts,
    texts_at_once,
    unnoticed,
    value_specs,
    with_mean_states,
    without_prompts,
)
from lipt.core.tasks import ScoredValues, ScoringTask
from lipt.core.workspace import InMemory
from lipt.data.dataset import Dataset, input_format
from lipt.data.inputs.model_input import to_model_input
from lipt.data.inputs.specs import ColumnsFormat, Inputs
from lipt.data.loading import open_dataset
from lipt.data.sources.tables.causal import BEGIN, END, PADDING
from lipt.data.targets.values import MASKED, NextTokens, SingleLabel
from lipt.models.head import evaluation_mode, forward_with_features
from lipt.models.transformers import CausalTransformer
from tests.core.signals.made_up import CPU, IMAGE, made_up_dataset, made_up_network
from tests.data.columns import write_folder
from tests.image_files import files_of


def tensor(inputs: Inputs) -> Tensor:
    assert isinstance(inputs, Tensor)
    return inputs


@pytest.mark.parametrize("some", [None, torch.arange(20).flip(0)], ids=["all", "some"])
def test_batches_are_in_order_and_progress_is_reported_after_each(some: Tensor | None) -> None:
    dataset, told = made_up_dataset(20 if some is None else 50), list[tuple[int, int]]()
    batches = Batches(dataset, IMAGE, CPU, 8, lambda *counts: told.append(counts), some)
    assert len(batches) == 20
    seen = []
    for rows, inputs_BCHW, labels_B in batches:
        seen.append(rows)
        assert len(told) == len(seen) - 1
        ids_B = batches.ids_N[rows]
        images_BCHW = dataset.images(ids_B)
        assert torch.equal(tensor(inputs_BCHW), tensor(to_model_input(images_BCHW, IMAGE, CPU)))
        assert torch.equal(labels_B, dataset.labels_N[ids_B])
    assert seen == [slice(0, 8), slice(8, 16), slice(16, 20)]
    assert told == [(8, 20), (16, 20), (20, 20)]


def folder(place: Path) -> Dataset:
    images = enumerate(files_of(made_up_dataset(20).images(torch.arange(20))))
    write_folder(place, {f"{'ab'[number % 2]}/{number:02}.png": file for number, file in images})
    return open_dataset(f"imagefolder:{place}", memory_budget_bytes=0)


def threads_of(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names = set()
    given = Dataset.examples

    def examples(self: Dataset, ids: Tensor) -> object:
        names.add(threading.current_thread().name.partition("_")[0])
        return given(self, ids)

    monkeypatch.setattr(Dataset, "examples", examples)
    list(Batches(dataset, IMAGE, CPU, 8))
    return names


def test_only_decoding_uses_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.current_thread().name
    assert threads_of(made_up_dataset(), monkeypatch) == {here}
    files = folder(tmp_path)
    assert threads_of(files, monkeypatch) == {"decode"}
    # As a user's own rows are, which may be bound to the thread that opened them.
    monkeypatch.setattr(type(files.rows), "concurrent", False)
    assert threads_of(files, monkeypatch) == {here}


def test_a_broken_file_is_named_at_its_batch(tmp_path: Path) -> None:
    dataset = folder(tmp_path)
    (tmp_path / "b" / "19.png").write_bytes(b"no image")
    told = list[tuple[int, int]]()
    batches = Batches(dataset, IMAGE, CPU, 8, lambda done, total: told.append((done, total)))
    with pytest.raises(DataError, match=r"19\.png"):
        list(batches)
    assert told == [(8, 20), (16, 20)]
    assert not [one for one in threading.enumerate() if one.name.startswith("decode")]


DATASET, MODEL = made_up_dataset(), made_up_network()
TASK = ScoringTask(
    model="tests",
    num_classes=3,
    image=IMAGE,
    fingerprint=DATASET.fingerprint,
    start=0,
    stop=len(DATASET),
    batch_size=4,
    threads=1,
    values=ScoredValues.SIGNALS,
)


def score(task: ScoringTask) -> Weights:
    return score_range(MODEL, DATASET, task, device=CPU)


OF_CLASSES = st.sampled_from([one for one in ScoredValues if one is not ScoredValues.UNPROMPTED])


@given(st.integers(1, 5), OF_CLASSES)
def test_ranges_of_whole_batches_equal_one_pass_bit_for_bit(
    num_batches: int, values: ScoredValues
) -> None:
    specs = value_specs(values, len(DATASET), num_outputs=3, num_features=64)
    whole = {name: torch.empty(spec.shape) for name, spec in specs.items()}
    batches = Batches(DATASET, IMAGE, CPU, TASK.batch_size)
    pass_over(MODEL, batches, KINDS[values], whole)
    task, size = replace(TASK, values=values), num_batches * TASK.batch_size
    parts = [
        score(replace(task, start=start, stop=min(start + size, TASK.stop)))
        for start in range(0, TASK.stop, size)
    ]
    assert all(part.keys() == whole.keys() for part in parts)
    for name, expected in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), expected)


def test_losses_and_features_are_those_of_the_outputs() -> None:
    images_BCHW = tensor(to_model_input(DATASET.images(torch.arange(4)), IMAGE, CPU))
    with evaluation_mode(MODEL), torch.no_grad():
        logits_BC, features_BD = forward_with_features(MODEL, images_BCHW)
    expected_B = functional.cross_entropy(logits_BC, DATASET.labels_N[:4], reduction="none")
    found = score(replace(TASK, stop=4, values=ScoredValues.LOSSES_AND_FEATURES))
    assert torch.allclose(found["losses"], expected_B, atol=1e-6)
    assert torch.equal(found["features"], features_BD)
    assert score(replace(TASK, stop=4, values=ScoredValues.LOSSES)).keys() == {"losses"}


def test_ranges_of_completions_alone_equal_one_pass(tmp_path: Path) -> None:
    lines = [f"{number},{number * number}" for number in range(10)]
    (tmp_path / "texts.csv").write_text("\n".join(["ask,say", *lines]))
    texts = open_dataset(f"csv:{tmp_path}/texts.csv?prompt=ask&completion=say&max_length=8")
    inputs = input_format(texts, torch.arange(10), 0)
    assert isinstance(inputs, ColumnsFormat)
    task = replace(
        TASK,
        num_classes=259,
        image=None,
        columns=inputs,
        other_target=NextTokens(num_tokens=259, length=8),
        stop=10,
        values=ScoredValues.UNPROMPTED,
    )
    model = CausalTransformer(num_classes=259, inputs=texts.inputs)
    whole, first, last = (
        score_range(model, texts, replace(task, start=start, stop=stop), device=CPU)["losses"]
        for start, stop in ((0, 10), (0, 4), (4, 10))
    )
    assert torch.equal(torch.cat([first, last]), whole)
    prompted = replace(task, values=ScoredValues.LOSSES)
    assert not torch.equal(score_range(model, texts, prompted, device=CPU)["losses"], whole)


class FiveLater(nn.Module):
    """Says that the token after `n` is n + 5, as 9 comes after 4 in 49."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(100.0))

    def forward(self, tokens_BL: Tensor) -> Tensor:
        return self.logit * functional.one_hot((tokens_BL + 5) % 259, 259)


def test_scores_of_texts_count_right_tokens_and_losses_have_to_be_finite(tmp_path: Path) -> None:
    lines = [f"{number},{number * number}" for number in range(10)]
    (tmp_path / "texts.csv").write_text("\n".join(["ask,say", *lines]))
    texts = open_dataset(f"csv:{tmp_path}/texts.csv?prompt=ask&completion=say&max_length=8")
    inputs, model = input_format(texts, torch.arange(10), 0), FiveLater()
    batches = Batches(texts, inputs, CPU, 2, some=torch.tensor([7, 2, 5]))
    losses_N, right_N = score_texts(model, batches)
    # The completions are 49, 4 and 25, each with its end.
    assert right_N.tolist() == [1, 0, 0]
    assert losses_N.tolist() == pytest.approx([200 / 3, 100, 100])
    nn.init.constant_(model.logit, torch.nan)
    with pytest.raises(SignalsError, match="not finite for 2 of 2 examples, with ids 7, 2"):
        score_texts(model, batches)


def test_a_task_of_prompts_is_one_of_texts() -> None:
    with pytest.raises(ConfigError, match="the task has no prompts"):
        replace(TASK, values=ScoredValues.UNPROMPTED)


def test_a_completion_alone_begins_where_it_counts() -> None:
    # The prompt 7 8 and the completion 9 4; then a text without a prompt.
    tokens_BL = torch.tensor([[BEGIN, 7, 8, 9, 4, PADDING], [BEGIN, 5, *[PADDING] * 4]])
    wanted_BL = torch.full((2, 6), MASKED)
    wanted_BL[0, 2:5] = torch.tensor([9, 4, END])
    wanted_BL[1, :2] = torch.tensor([5, END])
    moved_BL, next_BL = without_prompts(tokens_BL, wanted_BL)
    assert moved_BL.tolist() == [[BEGIN, 9, 4, *[PADDING] * 3], [BEGIN, 5, *[PADDING] * 4]]
    assert next_BL[0].tolist() == [9, 4, END, MASKED, MASKED, MASKED]
    assert next_BL[1].tolist() == wanted_BL[1].tolist()


class Echo(nn.Module):
    """States are the tokens themselves, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 4)

    def forward(self, tokens_BL: torch.Tensor) -> torch.Tensor:
        logits_BLV: torch.Tensor = self.fc(tokens_BL[..., None].float().expand(-1, -1, 2))
        return logits_BLV


def test_later_positions_of_a_text_count_more_and_padding_nothing() -> None:
    _, means_BD = with_mean_states(Echo(), torch.tensor([[1, 6, 3, 0], [4, 0, 0, 0]]))
    # Of the tokens 1, 6 and 3 with the weights 1/6, 2/6 and 3/6.
    assert torch.allclose(means_BD, torch.tensor([[22 / 6, 22 / 6], [4.0, 4.0]]))


def test_fewer_texts_are_scored_at_once_the_more_logits_they_have() -> None:
    assert texts_at_once(NextTokens(num_tokens=2**16, length=2**9)) == 2
    assert texts_at_once(NextTokens(num_tokens=2**20, length=2**16)) == 1
    assert texts_at_once(SingleLabel(10)) > 10**6


def test_a_workspaces_batches_have_few_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.csv").write_text("text\na\nb\n")
    texts = open_dataset(f"csv:{tmp_path}/texts.csv?text=text&max_length=8")
    monkeypatch.setattr("lipt.core.passes._MOST_LOGITS", 2 * 8 * 259)
    assert InMemory(texts, CPU).batch_size == 2


def test_float16_values_are_rounded_and_too_large_features_refused_by_id() -> None:
    halves = score(replace(TASK, half_errors=True, half_features=True))
    for name, values in score(TASK).items():
        assert torch.equal(halves[name], values.half())
    large = made_up_network()
    with torch.no_grad():
        for parameter in list(large.parameters())[:-2]:
            parameter.mul_(1e4)
    task = replace(TASK, start=4, half_features=True)
    with pytest.raises(SignalsError, match=r"features, kept in float16, are not finite .* ids 4"):
        score_range(large, DATASET, task, device=CPU)


def test_a_range_file_keeps_its_bits_and_wrong_files_are_refused() -> None:
    for values in (ScoredValues.SIGNALS, ScoredValues.LOSSES):
        task = replace(TASK, stop=8, values=values)
        scored = score(task)
        found = read_range(encode_range(scored), task, 64)
        assert [*found] == [*scored]
        assert all(torch.equal(found[name], scored[name]) for name in scored)
        # Of another range, or of another pass.
        for other in (
            replace(task, stop=9),
            replace(task, values=ScoredValues.LOSSES_AND_FEATURES),
        ):
            with pytest.raises(WeightsError, match="the model has"):
                read_range(encode_range(scored), other, 64)
        next(iter(scored.values()))[0] = float("nan")
        with pytest.raises(SignalsError, match="examples 0 to 7"):
            read_range(encode_range(scored), task, 64)


def test_an_account_states_the_probability_of_unnoticed_forgeries_by_hand() -> None:
    assert unnoticed(0.5, 3) == 0.125
    assert unnoticed(1.0, 1) == 0.0
    assert unnoticed(0.05, 0) == 1.0
    assert account(9, {"a": 200, "b": 100}, {"b": 7}, 0.5) == {
        "num_here": 9,
        "verified_share": 0.5,
        "credentials": [
            credential("a", num_examples=200, num_verified=0, unnoticed_at_1_percent=0.25),
            credential("b", num_examples=100, num_verified=7, unnoticed_at_1_percent=0.5),
        ],
    }


def credential(name: str, **numbers: float) -> dict[str, object]:
    return {"credential": name, **numbers}


def test_accounts_of_several_passes_are_added_up() -> None:
    first, second = account(9, {"a": 100}, {"a": 4}, 0.5), account(4, {"a": 100, "b": 3}, {}, 0.75)
    assert merged_account(None, None) is None
    assert merged_account(None, first) == first
    assert merged_account(first, None, second) == account(13, {"a": 200, "b": 3}, {"a": 4}, 0.5)


Computed = Iterator[tuple[slice, tuple[Tensor, ...]]]


def computed(device: str, asked: list[int]) -> Computed:
    for number in range(5):
        asked.append(number)
        values_B = torch.arange(3, device=device) + 10 * number
        yield slice(3 * number, 3 * number + 3), (values_B, values_B > 11)


@pytest.mark.parametrize(
    ("device", "ahead"),
    [
        ("cpu", 1),
        # The next batch is on its way when one is handed on.
        pytest.param(
            "cuda", 2, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
        ),
    ],
)
def test_finished_batches_are_passed_on_in_order(device: str, ahead: int) -> None:
    asked: list[int] = []
    for number, (rows, (values_B, above_B)) in enumerate(results_on_cpu(computed(device, asked))):
        assert len(asked) == min(number + ahead, 5)
        assert values_B.device.type == above_B.device.type == "cpu"
        assert rows == slice(3 * number, 3 * number + 3)
        expected = [10 * number, 10 * number + 1, 10 * number + 2]
        assert values_B.tolist() == expected
        assert above_B.tolist() == [value > 11 for value in expected]
