"""`lipt.mix` for a causal model: its learners take few steps on short texts."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import lipt
from lipt.common.config.run_config import AdaptersConfig
from lipt.common.errors import ConfigError, DataError, InvalidRequestError, ProxyError
from lipt.models.adapters import plain_name
from lipt.models.registry import build_model
from tests.causal_folders import NUM_CLASSES, inputs, write_model, write_tokenizer

OPTIONS = "?prompt=word&completion=answer&max_length=12"
QUICK = {
    "initialization": {"steps": 30, "batch_size": 32},
    "learners": {"num_minibatches": 20, "batch_size": 32},
}
RULES: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "doubled": lambda word: word[:2] * 2,
    "digits": lambda word: "".join(str(ord(letter) - 97) for letter in word),
}


def written(folder: Path, name: str, rule: Callable[[str], str], number: int, seed: int) -> str:
    draws = random.Random(seed)
    words = ["".join(draws.choices("abcdef", k=3)) for _ in range(number)]
    lines = [json.dumps({"word": f"{word}=", "answer": rule(word)}) for word in words]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return f"jsonl:{folder}/{name}.jsonl{OPTIONS}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


@pytest.fixture(scope="module")
def mixture(folder: Path) -> lipt.Mixture:
    sources = {
        name: written(folder, name, rule, 300, seed)
        for seed, (name, rule) in enumerate(RULES.items())
    }
    target = written(folder, "target", str.upper, 60, 9)
    return lipt.mix(sources, target, "text:causal", run=QUICK, device="cpu", progress=False)


def test_the_source_of_the_targets_rule_gets_the_share(mixture: lipt.Mixture) -> None:
    assert mixture.weights["upper"] > 0.6
    low, high = mixture.intervals["upper"]
    assert low <= mixture.weights["upper"] <= high
    assert mixture.loss["merged"] < mixture.loss["uniform"]
    assert "Better than equal shares" in mixture.verdict or "One source alone" in mixture.verdict


def test_ngrams_and_all_baselines_stand_beside_it(mixture: lipt.Mixture) -> None:
    assert list(mixture.outcomes) == [
        *("merged", "uniform", "size", "size^0.7", "lone ranking", "greedy soup"),
        *("closed form", "nearest source"),
    ]
    assert mixture.outcomes["closed form"].weights["upper"] > 0.8


def test_a_sample_is_of_rows(mixture: lipt.Mixture) -> None:
    subset = mixture.sample(100)
    upper = (subset.indices < 300).sum()
    assert len(subset.indices) <= 100
    assert upper > 50


@pytest.mark.slow
def test_one_seed_gives_one_mixture(folder: Path, mixture: lipt.Mixture) -> None:
    sources = {name: f"jsonl:{folder}/{name}.jsonl{OPTIONS}" for name in RULES}
    target = f"jsonl:{folder}/target.jsonl{OPTIONS}"
    again = lipt.mix(sources, target, run=QUICK, device="cpu", progress=False)
    assert again.weights == mixture.weights
    assert again.loss == mixture.loss


def test_parts_of_other_lengths_or_kinds_are_refused(folder: Path) -> None:
    target = written(folder, "other", str.upper, 40, 1)
    longer = written(folder, "longer", str.upper, 40, 2).replace("=12", "=16")
    with pytest.raises(DataError, match="Give one with the same inputs"):
        lipt.mix({"a": longer, "b": longer}, target, device="cpu", progress=False)


def test_what_needs_signals_is_refused(folder: Path) -> None:
    data = written(folder, "pool", str.upper, 60, 3)
    with pytest.raises(InvalidRequestError, match="next-token"):
        lipt.select(data, strategy="el2n", fraction=0.5, device="cpu", progress=False)
    with pytest.raises(ProxyError, match=r"judged by learners, not by a proxy, .*\. Leave"):
        lipt.diagnose(data, proxy="ridge:patches", device="cpu", progress=False)


def test_the_model_of_a_folder_is_mixed_and_selects(folder: Path) -> None:
    model = write_model(folder / "model")
    own = f"&tokenizer={folder}/model/tokenizer.json"
    sources = {
        name: written(folder, f"own {name}", rule, 200, seed) + own
        for seed, (name, rule) in enumerate(RULES.items())
    }
    target = written(folder, "own target", str.upper, 40, 9) + own
    run = {"learners": {"num_minibatches": 20, "batch_size": 32, "learning_rate": 3e-3}}
    mixture = lipt.mix(sources, target, model, run=run, device="cpu", progress=False)
    assert mixture.weights["upper"] > 0.6
    # theta* is the folder's: it takes no step.
    assert [test["steps"] for test in mixture.manifest["readiness"]] == [0]
    subset = lipt.select(
        *(sources["upper"], model), target_data=target, budget=20, device="cpu", progress=False
    )
    assert len(subset.indices) == 20
    of_bytes = [sources[name].removesuffix(own) for name in ("upper", "doubled")]
    with pytest.raises(ConfigError, match=r"has 256 tokens, .*its tokenizer is another one"):
        lipt.mix(dict(enumerate(of_bytes)), of_bytes[0], model, device="cpu", progress=False)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_a_live_model_is_mixed_and_selects_as_its_folder(folder: Path, tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    # Without a tokenizer of its own, so that the configuration names the end for both.
    named = write_model(tmp_path / "model", tokenizer=False)
    own = f"&tokenizer={write_tokenizer(tmp_path)}"
    live = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    before = {name: tensor.clone() for name, tensor in live.state_dict().items()}
    with torch.no_grad():
        unadapted_LT = live.eval()(input_ids=torch.tensor([[0, 3, 4, 5]])).logits
    pool = written(folder, "live pool", str.upper, 60, 4) + own
    doubled = written(folder, "live doubled", RULES["doubled"], 60, 6) + own
    target = written(folder, "live target", str.upper, 30, 5) + own
    run: dict[str, Any] = {"learners": {"num_minibatches": 2, "batch_size": 8}}
    rest: Any = {"device": "cpu", "progress": False}
    here, there = (
        lipt.select(pool, model, target_data=target, budget=10, run=run, **rest)
        for model in (live, named)
    )
    assert np.array_equal(here.indices, there.indices)
    assert here.manifest["run_config"]["model"] == "own:LlamaForCausalLM"
    run["adapters"] = {"rank": 2}
    sources = {"upper": pool, "doubled": doubled}
    mixtures = [lipt.mix(sources, target, model, run=run, **rest) for model in (live, named)]
    assert mixtures[0].weights == mixtures[1].weights
    # The caller's model is not changed.
    assert all(torch.equal(live.state_dict()[name], before[name]) for name in before)
    assert mixtures[0].theta is not None
    plain = {plain_name(name) for name in mixtures[0].theta if ".lora_" not in name}
    assert plain == before.keys()
    saved = [
        mixture.save_adapter(tmp_path / name)
        for name, mixture in zip(("a", "b"), mixtures, strict=True)
    ]
    own, folders = (load_file(path / "adapter_model.safetensors") for path in saved)
    assert own.keys() == folders.keys()
    assert all(torch.equal(own[name], folders[name]) for name in own)
    adapted = peft.PeftModel.from_pretrained(live, saved[0]).eval()
    with torch.no_grad():
        logits_LT = adapted(input_ids=torch.tensor([[0, 3, 4, 5]])).logits
    assert not torch.allclose(logits_LT, unadapted_LT, atol=1e-5)


class MeansOfEarlier(nn.Module):
    """Logits of the next byte by the mean state so far."""

    def __init__(self) -> None:
        super().__init__()
        self.states, self.fc = nn.Embedding(259, 16), nn.Linear(16, 259)

    def forward(self, tokens_BL: torch.Tensor) -> Any:
        states_BLD = self.states(tokens_BL).cumsum(dim=1)
        places_L = torch.arange(1, 1 + tokens_BL.shape[1], device=tokens_BL.device)
        return SimpleNamespace(logits=self.fc(states_BLD / places_L[:, None]))


def test_a_plain_module_of_tokens_selects(folder: Path) -> None:
    pool, model = written(folder, "plain pool", str.upper, 60, 4), MeansOfEarlier()
    subset = lipt.select(
        *(pool, model),
        target_data=pool,
        options={"duplicates": "keep", "steps": 2},
        budget=10,
        device="cpu",
        progress=False,
    )
    assert len(subset) == 10


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_adapters_are_mixed_and_saved_for_peft(folder: Path, tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = write_model(tmp_path / "model")
    own = f"&tokenizer={tmp_path}/model/tokenizer.json"
    sources = {
        name: written(folder, f"small {name}", rule, 60, seed) + own
        for seed, (name, rule) in enumerate(RULES.items())
    }
    target = written(folder, "small target", str.upper, 30, 9) + own
    run = {"learners": {"num_minibatches": 8, "batch_size": 16}, "adapters": {"rank": 2}}
    mixture = lipt.mix(sources, target, model, run=run, device="cpu", progress=False)
    saved = mixture.save_adapter(tmp_path / "adapter")
    with pytest.raises(ConfigError, match=r"has no theta"):
        lipt.Mixture.load(mixture.save(tmp_path / "m.json")).save_adapter(saved)
    # theta is the folder's weights, but for what adapters add.
    merged = build_model(
        model,
        num_classes=NUM_CLASSES,
        inputs=inputs(),
        seed=0,
        allowed_modules=(model,),
        adapters=AdaptersConfig(rank=2),
    )
    merged.load_state_dict(mixture.theta)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        found_LV = merged.eval()(torch.tensor([[1, 6, 7, 8]]))[0]
        base_LT = base.eval()(input_ids=torch.tensor([[0, 3, 4, 5]])).logits[0]
        adapted = peft.PeftModel.from_pretrained(base, saved).eval()
        own_LT = adapted(input_ids=torch.tensor([[0, 3, 4, 5]])).logits[0]
    assert torch.allclose(found_LV[:, 5:], own_LT[:, 2:], atol=1e-5)
    assert not torch.allclose(base_LT, own_LT, atol=1e-4)


def test_adapters_select_and_the_soup_of_a_run_is_saved(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = write_model(tmp_path / "model")
    own = f"&tokenizer={tmp_path}/model/tokenizer.json"
    pool = written(folder, "soup pool", str.upper, 100, 4) + own
    target = written(folder, "soup target", str.upper, 30, 5) + own
    run = {"adapters": {"rank": 2}, "learners": {"num_minibatches": 2, "batch_size": 8}}
    subset = lipt.select(
        pool, model, target_data=target, budget=10, run=run, device="cpu", progress=False
    )
    assert len(subset.indices) == 10
    pretrained = lipt.pretrain(pool, model, run=run, device="cpu", progress=False)
    theta, theta_p = pretrained.theta_star, pretrained.theta_p
    changed = {name for name, item in theta_p.items() if not torch.equal(item, theta[name])}
    assert changed
    assert all(".lora_B." in name for name in changed)
    assert (pretrained.save_adapter(tmp_path / "adapter") / "adapter_model.safetensors").is_file()


def test_random_weights_are_trained_before_their_adapters(folder: Path) -> None:
    pytest.importorskip("peft")
    sources = {
        name: written(folder, f"few {name}", rule, 100, seed)
        for seed, (name, rule) in enumerate(RULES.items())
    }
    target = written(folder, "few target", str.upper, 30, 9)
    run = {
        "initialization": {"steps": 2, "batch_size": 16},
        "learners": {"num_minibatches": 2, "batch_size": 16},
        "adapters": {"rank": 2},
        "pruning": {"method": "none", "density_min": 1.0, "density_max": 1.0},
    }
    pretrained = lipt.Pretrained(
        lipt.open_dataset(sources["upper"]), "text:causal", run=run, device="cpu", progress=False
    )
    untrained = pretrained.workspace.new_model(pretrained.config).state_dict()
    theta = pretrained.theta_star
    for name, before in untrained.items():
        assert torch.equal(theta[name], before) is (".lora_" in name)
    changed = {
        name
        for learner in pretrained.learners
        for name, item in learner.items()
        if not torch.equal(item, theta[name])
    }
    assert changed == {name for name in theta if ".lora_B." in name}
    mixture = lipt.mix(sources, target, "text:causal", run=run, device="cpu", progress=False)
    assert sum(mixture.probabilities) == pytest.approx(1.0)
