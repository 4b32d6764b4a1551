# pyright: reportArgumentType=false, reportCallIssue=false
import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch

import lipt
from lipt.common.errors import ConfigError, LiptError
from lipt.trainer.arguments import UNEVEN
from lipt.trainer.client.sources import SelectionArguments
from lipt.trainer.resampling.samplers import Uneven
from tests.trainer.made_up import made_up_subset

# Ten kinds of garbage: none is a name, a number, a path, a flag, a dictionary, a list of names,
# a subset or data.
GARBAGE = (5.5, b"x", object(), dict, len, {1, 2}, [[[]]], float("nan"), (1, None), np.array(3))
DATA = (np.eye(4).repeat(3, axis=0), np.arange(12) % 2)
CALLS: dict[str, Callable[[Any], object]] = {
    "data": lambda given: lipt.select(given, progress=False),
    "X": lambda given: lipt.select((given, [0, 1]), progress=False),
    "y": lambda given: lipt.select((DATA[0], given), progress=False),
    "model": lambda given: lipt.select(DATA, given, strategy="el2n", progress=False),
    **{
        name: lambda given, name=name: lipt.select(DATA, progress=False, **{name: given})
        for name in (
            *("fraction", "budget", "strategy", "seed", "balanced", "options", "preset", "proxy"),
            *("features", "labels", "soft_labels", "run", "image_size", "device", "target"),
            *("allow_modules", "head"),
        )
    },
    "diagnose": lambda given: lipt.diagnose(given, progress=False),
    "pretrain": lambda given: lipt.pretrain(given, progress=False),
    **{
        f"compare {name}": lambda given, name=name: lipt.compare(DATA, DATA, **{name: given})
        for name in ("strategies", "fractions", "baselines", "seeds", "recipe", "proxy", "out")
    },
    "fit": lambda given: lipt.fit("mlp", given),
    "fit model": lambda given: lipt.fit(given, DATA),
    "fit recipe": lambda given: lipt.fit("mlp", DATA, recipe=given),
    "fit subset": lambda given: lipt.fit("mlp", DATA, subset=given),
    "Client": lipt.Client,
    "apply": lambda given: made_up_subset([1]).apply(given),
    "dataset": lambda given: made_up_subset([1]).dataset(given),
    "save": lambda given: made_up_subset([1]).save(given),
    "load": lipt.Subset.load,
    "from_json": lipt.Subset.from_json,
    "sampler": lipt.SubsetSampler,
    "weights": lipt.normalized_weights,
}


@pytest.mark.parametrize("call", CALLS)
def test_invalid_arguments_are_refused_in_a_short_message(call: str) -> None:
    for given in GARBAGE:
        with pytest.raises(LiptError) as refused:
            CALLS[call](given)
        assert len(str(refused.value)) <= 400


NONSENSE = {
    "select(None, fraction='0.1')": r"fraction='0\.1' is not a number in \(0, 1\]\. Give a share",
    "select(None, fraction=True)": r"fraction=True is not a number in",
    "select(None, fraction=10)": r"fraction=10 is not a number in",
    "select(None, fraction=float('nan'))": r"fraction=nan is not a number in",
    "select(None, budget=1.5)": r"budget=1\.5 is not a whole number from 1\. Give a number of ex",
    "select(None, budget=-1)": r"budget=-1 is not a whole number from 1",
    "select(None, fraction=0.1, budget=3)": "fraction 0.1 and budget 3 were given: give one of",
    "select(None, seed='a')": r"seed='a' is not a whole number in 0\.\.2\*\*63 - 1\. Example: seed",
    "select(None, seed=-1)": "seed=-1 is not a whole number",
    "select(None, seed=2**63)": "seed=9223372036854775808 is not a whole number",
    "select(None, strategy=3)": "strategy=3 is not a text",
    "select(None, strategy='\\udce9')": r"strategy='\\udce9' is not a text in UTF-8",
    "Client().start_run(name='caf\\udce9')": r"name='caf\\udce9' is not a text in UTF-8",
    "Client().weights('\\udce9')": r"run='\\udce9' is not a text in UTF-8",
    "select(None, strategy='random')": r"no strategy 'random'\. Did you mean uniform",
    "select(None, strategy='balanced')": r"no strategy 'balanced'\. Did you mean uniform_per_class",
    "select(None, strategy='k_center')": r"no strategy 'k_center'\. Did you mean kcenter",
    "compare(None, None, strategies='auto')": r"strategies='auto' is not a list of names",
    "compare(None, None, seeds=0)": "seeds=0 is not a whole number from 1. Example: seeds=1",
    "compare(None, None, fractions=[])": r"fractions=\[\] is not a list of numbers in",
    "compare(None, None, fractions=[1, 2])": r"fractions=\[1, 2\] is not a list of numbers in",
    "select(DATA, labels='None')": "labels='None' is not one of given, n",
    "select(DATA, labels=None)": "labels=None is not one of given, none",
    "CLIENT.subset(labels='given ')": "labels='given ' is not one of given",
    "CLIENT.subset(soft_labels='no')": "soft_labels='no' is not True or",
    "CLIENT.subset(3)": "run=3 is not a text",
    "CLIENT.subset(previous=3)": "previous=3 is not a subset or its dig",
    "CLIENT.run(3)": "run_id=3 is not a text",
    "CLIENT.start_run('x')": "overrides='x' is not a dictionary",
    "CLIENT.subset(weights=3)": "the weights are a int. Give a safetensors",
    "Client(reconnect_seconds='5')": "seconds='5' is not a number from",
    "SAMPLERS['SubsetSampler'](shuffle='no')": "shuffle='no' is not True or False",
    "SAMPLERS['ReselectingSampler'](alpha=2)": r"alpha=2 is not a number in \[0, 1\]",
    "SAMPLERS['ReselectingSampler'](every=0)": "every=0 is not a whole number from 1",
    "SAMPLERS['RepeatedRandomSampler'](rank='0')": "rank='0' is not a whole number",
    "RepeatedRandomSampler(DATA, budget=3)": "num_examples=.* is not a whole num",
    "SAMPLERS['RepeatedRandomSampler'](labels=['a'] * 9)": "list of no 9 numbers",
    "SAMPLERS['RepeatedRandomSampler'](labels=[0, 1])": "list of no 9 numbers",
    "fit('mlp', DATA, schedule={'test_at': [0.5]})": "is not a schedule",
    "fit('mlp', DATA, reselect='x')": "reselect='x' is not a source of sub",
    "fit('mlp', DATA, on_epoch=print)": "is not a list of functions",
    "fit('mlp', DATA, max_seconds='5')": "max_seconds='5' is not a number",
    "fit('mlp', DATA, allowed_modules='m')": "='m' is not a list of names",
    "Schedule(test_at=0.5)": r"test_at=0.5 is not a list of numbers in \(0, 1",
    "Schedule(subset_at=[2])": r"subset_at=\[2\] is not a list of numbers",
    "Recipe(schedule='Cosine')": "should be 'cosine' or 'constant'",
    "Recipe(augmentation='Crop')": "should be 'auto', 'crop_flip', 'crop'",
    "Recipe(lr=0.1)": "lr: there is no such setting",
    "WeightedSubsetLoss(3)": "criterion=3 is not a function",
    "WeightedCollate('x')": "collate='x' is not a function",
    "SUBSET.apply(DATA, check='no')": "check='no' is not True or False",
}


@pytest.mark.parametrize("call", NONSENSE)
def test_an_argument_of_another_type_range_or_case_is_refused_before_the_data_is_read(
    call: str,
) -> None:
    names = {name: getattr(lipt, name) for name in lipt.__all__}
    with pytest.raises(LiptError, match=NONSENSE[call]) as refused:
        eval(call, names | {"DATA": DATA, "CLIENT": CLIENT, "SAMPLERS": SAMPLERS, "SUBSET": SUBSET})
    assert len(str(refused.value)) <= 400


def test_refusals_do_not_import_torch() -> None:
    code = (
        "import lipt, sys\n"
        "try: lipt.select(None, fraction='0.1')\n"
        "except Exception as error: print(type(error).__name__, 'torch' in sys.modules)\n"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert told == "BudgetError False\n"


def test_numpy_numbers_are_accepted() -> None:
    data = (np.eye(4).repeat(3, axis=0), np.arange(12) % 2)
    asked = {"seed": np.int64(1), "strategy": "uniform", "progress": False}
    assert len(lipt.select(data, budget=np.int64(3), **asked)) == 3  # type: ignore[arg-type]
    assert len(lipt.select(data, fraction=np.float32(0.5), **asked)) == 6  # type: ignore[arg-type]


SUBSET = made_up_subset([1, 4])
# No coordinator is asked: it would not answer.
CLIENT = lipt.Client("127.0.0.1:1", reconnect_seconds=0)
SAMPLERS: dict[str, Callable[..., object]] = {
    "SubsetSampler": lambda **given: lipt.SubsetSampler(SUBSET, **given),
    "RepeatedRandomSampler": lambda **given: lipt.RepeatedRandomSampler(9, budget=3, **given),
    "ReselectingSampler": lambda **given: lipt.ReselectingSampler(
        CLIENT, torch.nn.Linear(2, 2), **given
    ),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("uneven", ["Drop", "DROP", "drop ", True, 1, None, ["drop"]])
def test_a_sampler_refuses_all_but_three_policies(name: str, uneven: object) -> None:
    # Else "Drop" would be "keep", and ranks of different lengths wait for each other for ever.
    with pytest.raises(ConfigError, match=r"is not one of keep, drop, repeat\. Example: uneven="):
        SAMPLERS[name](uneven=uneven)


def test_every_policy_is_accepted_and_documented() -> None:
    assert get_args(Uneven) == UNEVEN
    for uneven in UNEVEN:
        assert len(lipt.SubsetSampler(SUBSET, num_ranks=2, uneven=uneven)) == 1  # type: ignore[arg-type]


def test_weights_are_taken_from_a_subset_an_array_a_tensor_or_a_list() -> None:
    weighted = made_up_subset([1, 4, 5], [1.0, 2.0, 3.0])
    for given in (weighted, weighted.weights, [1, 2, 3], torch.tensor([1, 2, 3])):
        assert lipt.normalized_weights(given).tolist() == [0.5, 1.0, 1.5]
    assert lipt.normalized_weights([0, 0]).tolist() == [1.0, 1.0]
    for given in ("x", None, [-1, 1], [math.nan], torch.eye(2)):
        with pytest.raises(ConfigError, match=r"Give a subset, or subset\.weights"):
            lipt.normalized_weights(given)


def test_rs2_takes_any_data() -> None:
    source = lipt.RepeatedRandom(DATA, 4, 0)
    assert len(source.before_epoch(1)) == 4


def test_the_arguments_of_a_selection_stand_in_the_signature_of_each_call() -> None:
    shared = set(SelectionArguments.__annotations__)
    for call in (lipt.select, lipt.Pretrained.select, lipt.Client.subset):
        assert shared <= set(inspect.signature(call).parameters)
    assert shared <= set(inspect.signature(lipt.ReselectingSampler.__init__).parameters)


def test_an_unknown_argument_of_a_selection_is_named_with_its_call() -> None:
    with pytest.raises(TypeError, match=r"^select\(\): .*unexpected keyword argument 'fractoin'"):
        lipt.select([], fractoin=0.1)  # type: ignore[call-arg]
