import pytest

import lipt
from lipt.common.errors import BudgetError, ConfigError, UnknownNameError
from lipt.trainer import Subset
from tests.lipt.digits import QUICK, few_digits


def test_a_tenth_of_the_data_is_chosen_and_the_same_again() -> None:
    data = few_digits()
    first, second = (lipt.select(data, strategy="el2n", run=QUICK, seed=1) for _ in range(2))
    assert isinstance(first, Subset)
    assert len(first) == 24
    assert first.digest == second.digest
    assert len(first.apply(data)) == 24
    assert first.manifest["data"]["num_examples"] == 240


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"budget 500 is outside 1\.\.240"):
        lipt.select(few_digits(), budget=500, strategy="el2n", run=QUICK)
    with pytest.raises(UnknownNameError, match=r"no model 'resnet9'\. Did you mean resnet8"):
        lipt.select(few_digits(), "resnet9")
    with pytest.raises(ConfigError, match=r"learners\.num_step: there is no such setting"):
        lipt.select(few_digits(), run={"learners": {"num_step": 1}})


def test_data_is_diagnosed() -> None:
    images, labels = few_digits()
    images[9] = images[8]
    labels[9] = labels[8]
    diagnosis = lipt.diagnose((images, labels), progress=False)
    assert len(diagnosis) == 240
    assert [8, 9] in [group.tolist() for group in diagnosis.duplicate_groups()]


def test_strategies_are_compared_with_random() -> None:
    images, labels = few_digits(300)
    comparison = lipt.compare(
        (images[:200], labels[:200]),
        (images[200:], labels[200:]),
        strategies=["el2n"],
        baselines=["uniform", "everything"],
        proxy="ridge:patches",
        soft_labels=True,
        seeds=2,
        recipe={"steps": 2, "batch_size": 16, "augmentation": "none"},
        run=QUICK,
        progress=False,
    )
    names = {"uniform", "el2n", "everything"}
    names |= {f"{name}+soft" for name in names}
    assert {row.strategy for row in comparison.outcomes} == names
    assert len(comparison.trials) == 12
    alone, soft = (
        next(one for one in comparison.trials if one.strategy == name)
        for name in ("uniform", "uniform+soft")
    )
    # The same examples, whose soft labels are part of the digest and had to be computed.
    assert alone.num_examples == soft.num_examples
    assert alone.digest != soft.digest
    assert alone.choosing_seconds == 0 < soft.choosing_seconds
    assert comparison.verdict in str(comparison)
    assert "<td>el2n</td>" in comparison._repr_html_()
    assert "<td>everything +soft</td>" in comparison._repr_html_()
    with pytest.raises(ConfigError, match="stepz: there is no such setting"):
        lipt.compare(few_digits(), few_digits(), recipe={"stepz": 3})
