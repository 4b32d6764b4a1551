"""Adapters: B alone is trained, sums are exact, and peft reads what is saved."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipt.common.config.run_config import AdaptersConfig, RunConfig
from lipt.common.errors import ConfigError, MissingExtraError, WeightsError
from lipt.common.tensor_files import pack
from lipt.data.inputs.specs import ImageSpec, InputSpec
from lipt.models.adapters import adapter_names, plain_name, save_adapter
from lipt.models.checkpoints import read_initial
from lipt.models.footprint import measure_model
from lipt.models.head import find_head, freeze, frozen_names
from lipt.models.registry import build_model, build_without_values
from tests.causal_folders import NUM_CLASSES, inputs, write_model

pytest.importorskip("peft")
TWO = AdaptersConfig(rank=2, alpha=6.0)
TOKENS_BL = torch.tensor([[1, 6, 7, 8, 2, 0, 0, 0]])


def built(
    spec: str = "text:causal",
    adapters: AdaptersConfig = TWO,
    seed: int = 0,
    of: InputSpec | None = None,
) -> nn.Module:
    return build_model(
        spec,
        num_classes=NUM_CLASSES,
        inputs=of or inputs(),
        seed=seed,
        allowed_modules=(spec,),
        adapters=adapters,
    )


def with_random_b(model: nn.Module, seed: int) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    state = dict(model.state_dict())
    return {
        name: torch.randn(item.shape, generator=draws) / 10 if ".lora_B." in name else item.clone()
        for name, item in state.items()
    }


def logits(model: nn.Module, weights: dict[str, Tensor]) -> Tensor:
    model.load_state_dict(weights)
    with torch.no_grad():
        found: Tensor = model.eval()(TOKENS_BL)
    return found


@pytest.mark.parametrize("kind", ["text:causal", "llama", "gpt2"])
def test_adapters_begin_by_adding_nothing(tmp_path: Path, kind: str) -> None:
    spec = kind if ":" in kind else write_model(tmp_path / kind, kind)
    with_adapters, plain = built(spec), built(spec, AdaptersConfig())
    with torch.no_grad():
        assert torch.equal(with_adapters.eval()(TOKENS_BL), plain.eval()(TOKENS_BL))
    own = {plain_name(name) for name in with_adapters.state_dict()} - adapter_names(with_adapters)
    assert own == set(plain.state_dict())


def test_all_linear_layers_but_the_head_get_one() -> None:
    model = built()
    name, _ = find_head(model)
    assert name == "fc"
    adapted = {name.partition(".lora_")[0] for name in adapter_names(model)}
    assert len(adapted) == 4 * 4
    assert "fc" not in adapted
    some = built(adapters=AdaptersConfig(rank=2, target_modules=("out", "each.0")))
    assert len({name.partition(".lora_")[0] for name in adapter_names(some)}) == 4 * 2


def test_a_is_of_the_seed_alone() -> None:
    first, again, other = (built(seed=seed).state_dict() for seed in (3, 3, 4))
    name = "blocks.0.attention.out.lora_A.default.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert first[name].shape == (2, 128)


def test_all_but_b_is_frozen() -> None:
    model = built()
    frozen = frozen_names(model, ())
    trained = model.state_dict().keys() - frozen
    assert len(trained) == 16
    assert all(".lora_B." in name for name in trained)
    freeze(model, frozen)
    assert {n for n, item in model.named_parameters() if item.requires_grad} == trained
    # Patterns freeze more, and everything is refused.
    fewer = model.state_dict().keys() - frozen_names(model, ["blocks.0.*"])
    assert len(fewer) == 12
    with pytest.raises(ConfigError, match=r"freezes all"):
        frozen_names(model, ["*"])


def test_a_weighted_sum_of_learners_is_that_of_their_additions() -> None:
    # The slow way: each adapted weight is W + sum of w_k alpha / rank B_k A.
    model, plain = built(), built(adapters=AdaptersConfig())
    learners, shares = [with_random_b(model, seed) for seed in range(3)], (0.5, 0.2, 0.3)
    merged = dict(learners[0])
    whole = {plain_name(n): i.clone() for n, i in learners[0].items() if ".lora_" not in n}
    for name in merged:
        if ".lora_B." in name:
            merged[name] = sum(w * one[name] for w, one in zip(shares, learners, strict=True))  # type: ignore[assignment]
            a_RD = merged[name.replace("lora_B", "lora_A")]
            added = [one[name] @ a_RD for one in learners]
            own = name.partition(".lora_")[0] + ".weight"
            whole[own] += 3.0 * sum(w * one for w, one in zip(shares, added, strict=True))
    assert torch.allclose(logits(model, merged), logits(plain, whole), atol=1e-5)


def test_they_are_measured_without_values(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m")
    for name in ("text:causal", spec):
        empty = build_without_values(
            name, num_classes=NUM_CLASSES, inputs=inputs(), allowed_modules=(name,), adapters=TWO
        )
        assert empty.state_dict().keys() == built(name).state_dict().keys()
        assert measure_model(empty, name, inputs=inputs()).training_bytes > 0


def test_other_layers_are_refused_with_the_models() -> None:
    other = AdaptersConfig(rank=2, target_modules=("outs",))
    with pytest.raises(ConfigError, match=r"no linear layer 'outs' besides its head.*mean out\?"):
        built(adapters=other)
    with pytest.raises(ConfigError, match=r"no linear layer 'fc' besides its head"):
        built(adapters=AdaptersConfig(rank=2, target_modules=("fc",)))
    with pytest.raises(ConfigError, match=r"no linear layer 'all-linear' besides its head"):
        built("linear", of=ImageSpec(1, 2, 2))


def test_a_checkpoint_without_adapters_is_taken() -> None:
    model, plain = built(), built(adapters=AdaptersConfig(), seed=5)
    most = 2**30
    weights, _ = read_initial(pack(plain.state_dict()), model, new_head=False, max_bytes=most)
    assert weights.keys() == model.state_dict().keys() - adapter_names(model)
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        assert torch.equal(model.eval()(TOKENS_BL), plain.eval()(TOKENS_BL))
    whole = with_random_b(model, 1)
    again, _ = read_initial(pack(whole), model, new_head=False, max_bytes=most)
    assert all(torch.equal(again[name], item) for name, item in whole.items())
    del whole["norm.weight"]
    with pytest.raises(WeightsError, match=r"'norm\.weight' is missing"):
        read_initial(pack(whole), model, new_head=False, max_bytes=most)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_peft_loads_what_is_saved_with_equal_logits(tmp_path: Path, kind: str) -> None:
    import peft
    import transformers

    spec = write_model(tmp_path / "m", kind)
    model = built(spec)
    weights = with_random_b(model, 2)
    config = RunConfig(model=spec, adapters=TWO)
    folder = save_adapter(tmp_path / "adapter", weights, config)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    loaded: Any = peft.PeftModel.from_pretrained(base, folder)
    with torch.no_grad():
        own_LT = loaded.eval()(input_ids=torch.tensor([[0, 3, 4, 5, 1]])).logits[0]
    found_LV = logits(model, weights)[0, :5]
    assert torch.allclose(found_LV[:, 5:], own_LT[:, 2:], atol=1e-5)
    # And this package opens it again, added to the weights.
    with torch.no_grad():
        again_LV = built(f"{spec}@{folder}", AdaptersConfig()).eval()(TOKENS_BL)[0, :5]
    assert torch.allclose(found_LV, again_LV, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (RunConfig(model="causal:/m"), r"no adapter to save.*Set adapters\.rank"),
        (RunConfig(model="causal:/m@/a", adapters=TWO), r"of one folder, .*Merge it with its ad"),
        (RunConfig(model="text:causal", adapters=TWO), r"saved for causal:FOLDER, and the model"),
    ],
)
def test_what_is_no_adapter_of_a_folder_is_not_saved(
    tmp_path: Path, config: RunConfig, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        save_adapter(tmp_path / "adapter", {}, config)
    assert not (tmp_path / "adapter").exists()


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"adapters\.rank needs the package 'peft'.*\[lm\]"):
        built()
