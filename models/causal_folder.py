"""Causal models of transformers: of a folder, `causal:FOLDER` or `causal:FOLDER@ADAPTER`, or live.

A folder's weights are safetensors. Nothing of it is unpickled or run, and no hub is asked. An
adapter of peft is added to the weights.

The data numbers tokens otherwise (`lipt.data.sources.tables.causal`): 0 is padding, 1 begins an
example, 2 ends it, and 3 + n is the tokenizer's n. They are mapped to the model's numbers, and its
logits back. Padding stands at the end, where no earlier position sees it, so it takes any number.

Shapes: B texts, L positions, V tokens of the data, T of the tokenizer.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError, LiptError, WeightsError
from lipt.common.imports import folders_of, import_extra
from lipt.common.tensor_files import Weights
from lipt.common.text import listed
from lipt.data.inputs.specs import InputSpec, call_model, shown_error
from lipt.data.sources.tables.causal import BEGIN, END, FIRST
from lipt.data.sources.tables.chat import read_json, special_texts
from lipt.data.sources.tables.texts import opened_tokenizer
from lipt.models.head import HEAD, evaluation_mode
from lipt.models.networks import predicts_tokens, token_column

_WEIGHTS, _ADAPTER = "model.safetensors", "adapter_model.safetensors"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# The logit of a number that never follows, and what the second number of the end has less.
_NEVER, _LESS = -1e4, 20.0
# Difference of equal logits, as a share of the largest.
_NOISE = 1e-3
# Begins the names of a network's tensors in its model.
NETWORK = "network."


class CausalNetwork(nn.Module):
    """A network of transformers with the data's numbers of tokens.

    begin, end: the network's numbers of them. Both 2 and the tokenizer's own number of the end
    mean its logit; the second gets a probability of nearly 0, so that the sum stays 1.
    """

    def __init__(self, network: nn.Module, *, begin: int, end: int, num_tokens: int) -> None:
        super().__init__()
        self.network, self.begin, self.end, self.num_tokens = network, begin, end, num_tokens
        setattr(self, HEAD, _head_of(network))

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Map tokens, int64 B x L, to logits of each next token, B x L x V."""
        numbers_BL = (tokens_BL - FIRST).where(tokens_BL >= FIRST, self.begin)
        numbers_BL = numbers_BL.where(tokens_BL != END, self.end)
        logits_BLT = self.network(input_ids=numbers_BL, use_cache=False).logits
        never_BL2 = logits_BLT.new_full((*tokens_BL.shape, END), _NEVER)
        end_BL1 = logits_BLT[..., self.end : self.end + 1]
        of_text_BLT = logits_BLT[..., : self.num_tokens]
        logits_BLV = torch.cat([never_BL2, end_BL1, of_text_BLT], dim=-1)
        logits_BLV[..., FIRST + self.end] -= _LESS
        return logits_BLV


def in_data_numbers(
    model: nn.Module, *, num_classes: int, inputs: InputSpec, merge: bool = True
) -> nn.Module:
    """A live causal model of transformers as one of the data's tokens; other models unchanged.

    It is changed in place: LoRA adapters of peft are merged into its weights, with `merge`, and all
    are float32.

    ConfigError for quantized weights, no end of texts, or a vocabulary of another tokenizer.
    """
    peft = sys.modules.get("peft")
    is_adapted = peft is not None and isinstance(model, peft.PeftModel)
    given: Any = model
    network = given.get_base_model() if is_adapted else given
    # It is loaded where there is such a model.
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None or not isinstance(network, modeling.PreTrainedModel):
        return model
    if not predicts_tokens(inputs, num_classes):
        return model
    spec, config = type(network).__name__, network.config
    if getattr(config, "quantization_config", None) is not None:
        raise ConfigError(
            f"the model {spec} has quantized weights, which cannot be trained. Load it in float32 "
            "or bfloat16."
        )
    if is_adapted and not merge:
        raise ConfigError(
            f"the model {spec} has an adapter of peft, which would be merged into it. Give "
            "model.merge_and_unload(), or train the adapter with peft's own tools."
        )
    if is_adapted:
        network = _merged(given, spec).requires_grad_(requires_grad=True)
    num_tokens, num_rows = num_classes - FIRST, network.get_input_embeddings().weight.shape[0]
    # Vocabularies are padded, by some percent.
    if not num_rows / 2 < num_tokens <= num_rows:
        raise _other_tokenizer(spec, num_tokens, f"the model has {num_rows}")
    begin, end = _numbers_of_ends(spec, {}, config, num_tokens)
    _require_length(spec, config, token_column(inputs, spec).shape[0])
    return CausalNetwork(network.float(), begin=begin, end=end, num_tokens=num_tokens)


def by_own_names(model: nn.Module, weights: Mapping[str, Tensor]) -> Weights:
    """A model's weights by the names of the network that was made one of the data's tokens."""
    begin = NETWORK if isinstance(model, CausalNetwork) else ""
    return {name.removeprefix(begin): tensor for name, tensor in weights.items()}


def by_network_names(model: nn.Module, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The inverse of `by_own_names`; weights that have such names already are unchanged."""
    if not isinstance(model, CausalNetwork) or any(name.startswith(NETWORK) for name in weights):
        return weights
    return {f"{NETWORK}{name}": tensor for name, tensor in weights.items()}


def _merged(model: Any, spec: str) -> Any:
    try:
        return model.merge_and_unload()
    except (AttributeError, ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"the adapter of {spec} cannot be merged into its weights: {shown_error(error)}. Give "
            "the model without it."
        ) from error


def causal_model(
    spec: str, *, num_classes: int, inputs: InputSpec, with_values: bool = True
) -> nn.Module:
    """The model of a folder, for the data's number of tokens; float32.

    Without values no weights are read: they are random, of the default device.

    Raises:
        ConfigError: the folder has no causal model, or the data's tokens are not the model's.
        WeightsError: its weights are pickled, or not those of the model.
        MissingExtraError: transformers or peft, of the extra `lm`, is not installed.
    """
    if not spec.partition(":")[2]:
        raise ConfigError(f"the model {spec!r} names no folder. Write causal:FOLDER.")
    column = token_column(inputs, spec)
    if num_classes != column.num_values:
        raise ConfigError(
            f"the model {spec} predicts the next of {column.num_values} tokens, and the data has "
            f"{num_classes} classes. Choose another model, or open texts without a label."
        )
    transformers = import_extra(
        "transformers", package="transformers", extra="lm", needed_for=f"the model {spec}"
    )
    folder, *adapters = map(Path, folders_of(spec))
    config = _config_of(transformers, spec, folder)
    begin, end = _ends_of(spec, folder, config, num_classes - FIRST)
    _require_length(spec, config, column.shape[0])
    try:
        with _silent(transformers):
            if not with_values:
                network = transformers.AutoModelForCausalLM.from_config(config).float()
            else:
                network = _network_of(transformers, spec, folder)
                for adapter in adapters:
                    network = _with_adapter(network, spec, adapter)
    except LiptError:
        raise
    except Exception as error:  # of transformers, which raises any
        raise ConfigError(
            f"the model {spec} cannot be opened: {shown_error(error)}. Save it again with "
            "save_pretrained(FOLDER)."
        ) from error
    num_rows = network.get_input_embeddings().weight.shape[0]
    if num_classes - FIRST > num_rows:
        raise _other_tokenizer(spec, num_classes - FIRST, f"the model has {num_rows}")
    model = CausalNetwork(network, begin=begin, end=end, num_tokens=num_classes - FIRST)
    model.requires_grad_(requires_grad=True)
    if with_values:
        require_causal(model, spec)
    return model


def _config_of(transformers: Any, spec: str, folder: Path) -> Any:
    if not folder.is_dir():
        raise ConfigError(
            f"the model {spec}: there is no folder {folder}. Name one that save_pretrained wrote."
        )
    plain = read_json(folder / "config.json")
    if "model_type" not in plain:
        raise ConfigError(
            f"the model {spec}: {folder}/config.json has no model_type, as a model of "
            "transformers has. Name a folder that save_pretrained wrote."
        )
    if "quantization_config" in plain:
        raise ConfigError(
            f"the model {spec} has quantized weights, which cannot be trained. Save it in float32 "
            "or bfloat16."
        )
    try:
        # Code beside the weights is never run.
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        own = " It needs code of its own, which is not run." if "auto_map" in plain else ""
        raise ConfigError(
            f"the model {spec}: transformers {transformers.__version__} cannot open its kind, "
            f"{plain['model_type']!r:.80}.{own or ' Install a newer one.'}"
        ) from error
    architectures = [str(name) for name in plain.get("architectures") or []]
    known = type(config) in transformers.AutoModelForCausalLM._model_mapping  # noqa: SLF001
    named = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    if not known or (architectures and not named):
        shown = listed(architectures, 3) or str(plain["model_type"])
        raise ConfigError(
            f"the model {spec} is no causal language model, but {shown:.80}. Choose one that "
            "AutoModelForCausalLM opens."
        )
    return config


def _network_of(transformers: Any, spec: str, folder: Path) -> Any:
    _require_safetensors(spec, folder, _WEIGHTS)
    network, loading = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    if wrong := sorted(map(str, [*loading["missing_keys"], *loading["mismatched_keys"]])):
        raise WeightsError(
            f"the weights of {spec} lack {len(wrong)} of the model's tensors, or have others: "
            f"{listed(wrong, 3)}. Save the whole model again."
        )
    # Exact, and as the learners compute.
    return network.float()


def _with_adapter(network: Any, spec: str, adapter: Path) -> Any:
    """The network with an adapter added to its weights."""
    peft = import_extra("peft", package="peft", extra="lm", needed_for=f"the adapter of {spec}")
    if not adapter.is_dir():
        raise ConfigError(
            f"the model {spec}: there is no folder {adapter} of an adapter. Name one that peft "
            "saved: causal:FOLDER@ADAPTER."
        )
    kind = read_json(adapter / "adapter_config.json").get("peft_type")
    if kind != "LORA":
        raise ConfigError(
            f"the model {spec}: the adapter is of the kind {kind!r:.40}, not LORA. Merge it into "
            "the model, and name the merged model's folder."
        )
    _require_safetensors(spec, adapter, _ADAPTER)
    return peft.PeftModel.from_pretrained(network, str(adapter)).merge_and_unload()


def _require_safetensors(spec: str, folder: Path, name: str) -> None:
    if any((folder / file_name).is_file() for file_name in (name, f"{name}.index.json")):
        return
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLED)
    other = f"only pickled weights ({listed(pickled, 3)}), which may run code" if pickled else ""
    raise WeightsError(
        f"the model {spec}: {folder} has {other or f'no {name}'}. Save it as safetensors, with "
        "save_pretrained(FOLDER)."
    )


def _ends_of(spec: str, folder: Path, config: Any, num_tokens: int) -> tuple[int, int]:
    """The model's numbers of an example's begin and end, those of its tokenizer first."""
    named: dict[str, int | None] = {}
    file = folder / "tokenizer.json"
    if file.is_file():
        of_tokens, own_tokens = _special_tokens(folder, file.stat().st_mtime_ns)
        if num_tokens != own_tokens:
            raise _other_tokenizer(spec, num_tokens, f"the model's tokenizer {own_tokens}", file)
        named |= of_tokens
    return _numbers_of_ends(spec, named, config, num_tokens)


def _numbers_of_ends(
    spec: str, named: Mapping[str, int | None], config: Any, num_tokens: int
) -> tuple[int, int]:
    """As `_ends_of`, of a configuration where no tokenizer has `named` them."""
    numbers = {
        name: named.get(name, _first(getattr(config, f"{name}_token_id", None)))
        for name in ("bos", "eos")
    }
    begin, end = numbers["bos"], numbers["eos"]
    if end is None or not 0 <= end < num_tokens:
        raise ConfigError(
            f"the model {spec} ends a text with the token {end}, and the data has {num_tokens}. "
            "Set eos_token_id in its config."
        )
    # A model without a token for the begin has read the last text's end before one.
    return (begin if begin is not None and 0 <= begin < num_tokens else end), end


@lru_cache(8)
def _special_tokens(folder: Path, _changed: int) -> tuple[dict[str, int | None], int]:
    """Numbers of the tokenizer's begin and end, as far as it names them; and how many it has."""
    tokenizer, size = opened_tokenizer(folder / "tokenizer.json")
    file, token_ids = folder / "tokenizer_config.json", dict[str, int | None]()
    for name, text in special_texts(read_json(file) if file.is_file() else {}).items():
        number = tokenizer.token_to_id(text)
        if number is not None:
            token_ids[name] = number
    return token_ids, size


def _first(number: Any) -> int | None:
    """A token's number, the first of several."""
    first_number = number[0] if isinstance(number, list) and number else number
    return first_number if isinstance(first_number, int) else None


def _other_tokenizer(spec: str, num_tokens: int, own: str, file: Path | None = None) -> ConfigError:
    return ConfigError(
        f"the data has {num_tokens} tokens, and {own}: its tokenizer is another one than that of "
        f"{spec}. Open the data with tokenizer={file or 'FOLDER/tokenizer.json'}."
    )


def _require_length(spec: str, config: Any, length: int) -> None:
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if isinstance(most, int) and length > most:
        raise ConfigError(
            f"the model {spec} takes {most} positions, and the data has {length}. Open the data "
            f"with max_length={most} or less."
        )


def _head_of(network: Any) -> str:
    head = network.get_output_embeddings()
    for name, module in network.named_modules():
        if module is head and isinstance(module, nn.Linear):
            return f"{NETWORK}{name}"
    raise ConfigError(
        f"{type(network).__name__} has no linear layer for its logits. Choose another model."
    )


def require_causal(model: nn.Module, spec: str, length: int = 3) -> None:
    """Refuse a model of texts of which an earlier position sees a later token."""
    tokens_BL = torch.full((2, length), FIRST)
    tokens_BL[:, 0], tokens_BL[1, -1] = BEGIN, END
    with evaluation_mode(model), torch.no_grad():
        first_LV, second_LV = call_model(model, tokens_BL)[:, :-1, END:]
    # Kernels sum in another order for other values, which large models show.
    if float((first_LV - second_LV).abs().max()) > _NOISE * float(first_LV.abs().max()):
        raise ConfigError(
            f"the model {spec} is no causal language model: a token changes the logits before it. "
            "Choose another model."
        )


@contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """Without bars and warnings of transformers, of which one line would come for each model."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The newest peft and transformers warn of each other.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
