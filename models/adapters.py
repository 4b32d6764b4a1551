"""Adapters: low-rank additions to linear layers, of which one factor is trained (LoRA).

An adapted layer adds alpha / rank * B A x to its output. A is random, drawn from the run's seed,
and frozen; B starts at zero. Learners share A, so a weighted sum of their B is exactly that of
their additions, at the same rank, and B alone travels. Layers, names and files are those of peft.

Source: Hu et al. 2021, "LoRA" (arXiv:2106.09685); with A frozen, Sun et al. 2024, "Improving LoRA
in Privacy-preserving Federated Learning" (arXiv:2403.12313).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import ALL_LINEAR, AdaptersConfig, RunConfig
from lipt.common.determinism import derive_seed, seeded_generators
from lipt.common.errors import ConfigError
from lipt.common.imports import CAUSAL, OWN, folders_of, import_extra
from lipt.common.tensor_files import write_packed
from lipt.common.text import did_you_mean, listed
from lipt.models.causal_folder import NETWORK
from lipt.models.head import ADAPTERS, find_head

# Parts of a name in an adapted layer, before its "weight".
_ADDED, _INNER, _OWN = ".lora_", ".base_layer.", ".default."
_FILE = "adapter_model.safetensors"


def add_adapters(model: nn.Module, adapters: AdaptersConfig, seed: int) -> nn.Module:
    """Add adapters to a model in place, unless their rank is 0; A depends only on `seed`.

    ConfigError where no linear layer besides the head has one of the names.
    """
    if not adapters.rank:
        return model
    peft = import_extra("peft", package="peft", extra="lm", needed_for="adapters.rank")
    settings = peft.LoraConfig(
        r=adapters.rank,
        lora_alpha=adapters.alpha,
        target_modules=_adapted_layers(model, adapters.target_modules),
    )
    # It warns of layers that keep their weights transposed.
    with (
        warnings.catch_warnings(action="ignore", category=UserWarning),
        seeded_generators(derive_seed(seed, "adapters"), torch.device("cpu")),
    ):
        peft.inject_adapter_in_model(settings, model)
    # Which parts are trained is the run's to say.
    model.requires_grad_(requires_grad=True)
    setattr(model, ADAPTERS, True)
    return model


def _adapted_layers(model: nn.Module, names: Collection[str]) -> list[str]:
    """The linear layers besides the head that one of the names is of, whole or at its end."""
    head, _ = find_head(model)
    layers = [
        name
        for name, module in model.named_modules()
        # Conv1D of transformers is a linear layer, too.
        if name != head and (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")
    ]
    if ALL_LINEAR in names and layers:
        return layers
    by_end = {end: [name for name in layers if f".{name}".endswith(f".{end}")] for end in names}
    for end, own in by_end.items():
        if not own:
            ends = sorted({name.rpartition(".")[2] for name in layers})
            raise ConfigError(
                f"adapters.target_modules: the model has no linear layer {end!r} besides its head."
                f"{did_you_mean(end, ends)} Give {ALL_LINEAR!r}, or some of {listed(ends, 10)}."
            )
    return sorted({name for own in by_end.values() for name in own})


def adapter_names(model: nn.Module) -> frozenset[str]:
    """The state dict's names of both factors of all adapters."""
    return frozenset(name for name in model.state_dict() if _ADDED in name)


def plain_name(name: str) -> str:
    """The name of a tensor in the same model without adapters."""
    return name.replace(_INNER, ".")


def require_adapter(config: RunConfig) -> Path | None:
    """The folder of the model that a run's adapter is of; None for a live one.

    ConfigError for a run without adapters, or of another model, or one of a folder and an adapter.
    """
    if not config.adapters.rank:
        raise ConfigError(
            "there is no adapter to save: the learners trained all weights. Set adapters.rank, "
            "such as 8."
        )
    folders = folders_of(config.model)
    if config.model.startswith(OWN):
        return None
    if not folders:
        raise ConfigError(
            f"an adapter is saved for {CAUSAL}FOLDER, and the model is {config.model}. Take theta "
            "itself."
        )
    if len(folders) > 1:
        raise ConfigError(
            f"an adapter is saved for a model of one folder, and this is {config.model}. Merge it "
            f"with its adapter, save that, and name {CAUSAL}FOLDER."
        )
    return Path(folders[0])


def save_adapter(folder: Path, weights: Mapping[str, Tensor], config: RunConfig) -> Path:
    """Write the adapter of a run's weights as `PeftModel.from_pretrained` reads it.

    The model is that of the run's folder, as transformers opens it, or a live one, whose own names
    the weights have. Errors as `require_adapter`.
    """
    base = require_adapter(config)
    begin = "" if base is None else NETWORK
    peft = import_extra("peft", package="peft", extra="lm", needed_for="an adapter's file")
    saved = {
        f"base_model.model.{name.removeprefix(begin).replace(_OWN, '.')}": tensor
        for name, tensor in weights.items()
        if _ADDED in name
    }
    adapted = {name.removeprefix(begin).partition(_ADDED)[0] for name in weights if _ADDED in name}
    settings = peft.LoraConfig(
        r=config.adapters.rank,
        lora_alpha=config.adapters.alpha,
        target_modules=sorted(adapted),
        base_model_name_or_path=None if base is None else str(base),
        task_type=None if base is None else "CAUSAL_LM",
        inference_mode=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    settings.save_pretrained(str(folder))
    write_packed(folder / _FILE, saved, {"format": "pt"})
    return folder
