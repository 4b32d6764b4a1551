"""Causal models of a folder: logits beside transformers' own, and folders that are refused."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lipt.common.config.run_config import WeightEncoding
from lipt.common.errors import ConfigError, FactoryNotAllowedError, MissingExtraError, WeightsError
from lipt.common.tensor_files import pack, specs_of
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType
from lipt.models.causal_folder import in_data_numbers
from lipt.models.encodings import encode_weights, open_weights
from lipt.models.footprint import measure_model
from lipt.models.head import find_head
from lipt.models.registry import (
    OwnModel,
    build_model,
    build_without_values,
    is_users_own,
    load_model,
)
from tests.causal_folders import NUM_CLASSES, NUM_TOKENS, inputs, write_model, write_tokenizer

transformers = pytest.importorskip("transformers")
# 1 begins, 2 ends, 0 is padding; the model's numbers are 3 less.
TOKENS_BL = torch.tensor([[1, 6, 7, 8, 2, 0, 0, 0]])
OWN_BL = torch.tensor([[0, 3, 4, 5, 1]])


def built(spec: str, num_classes: int = NUM_CLASSES, length: int = 8, **more: Any) -> nn.Module:
    return build_model(
        spec,
        num_classes=num_classes,
        inputs=inputs(length, num_classes),
        seed=0,
        allowed_modules=(spec,),
        **more,
    )


def live(folder: Path, **changes: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **changes).eval()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_logits_are_transformers_own_by_the_datas_numbers(tmp_path: Path, kind: str) -> None:
    spec = write_model(tmp_path / kind, kind)
    with torch.no_grad():
        found_LV = built(spec).eval()(TOKENS_BL)[0, :5]
        own_LT = live(tmp_path / kind)(input_ids=OWN_BL).logits[0]
    shares_LV, own_shares_LT = found_LV.softmax(-1), own_LT.softmax(-1)
    # The end is the model's 1; the tokenizer's own number of it follows almost never.
    assert torch.allclose(found_LV[:, 2], own_LT[:, 1], atol=1e-5)
    assert torch.allclose(found_LV[:, 5:], own_LT[:, 2:], atol=1e-5)
    assert torch.allclose(shares_LV[:, 2], own_shares_LT[:, 1], atol=1e-5)
    assert torch.allclose(shares_LV[:, 5:], own_shares_LT[:, 2:], atol=1e-5)
    assert float(shares_LV[:, 4].max()) < 1e-8
    assert found_LV.isfinite().all()
    assert float(shares_LV[:, :2].max()) == 0.0


def in_numbers(network: nn.Module, num_classes: int = NUM_CLASSES, length: int = 8) -> nn.Module:
    return in_data_numbers(network, num_classes=num_classes, inputs=inputs(length, num_classes))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_live_network_is_that_of_its_folder(tmp_path: Path, kind: str) -> None:
    spec = write_model(tmp_path / kind, kind)
    found = in_numbers(live(tmp_path / kind, dtype=torch.float32))
    expected = built(spec)
    assert found.state_dict().keys() == expected.state_dict().keys()
    assert find_head(found)[0] == find_head(expected)[0]
    with torch.no_grad():
        assert torch.equal(found.eval()(TOKENS_BL), expected.eval()(TOKENS_BL))
    narrow = in_numbers(live(tmp_path / kind, dtype=torch.bfloat16))
    assert {tensor.dtype for tensor in narrow.state_dict().values()} == {torch.float32}


def test_a_function_may_return_a_live_network(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m")
    source = OwnModel("own:made", lambda num_classes: live(tmp_path / "m"))
    made = build_model(source, num_classes=NUM_CLASSES, inputs=inputs(), seed=0)
    assert made.state_dict().keys() == built(spec).state_dict().keys()


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_adapters_are_added_to_the_weights_and_those_of_a_live_network_trained(
    tmp_path: Path,
) -> None:
    peft = pytest.importorskip("peft")
    spec = write_model(tmp_path / "m")
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(live(tmp_path / "m"), settings).eval()
    adapted.save_pretrained(tmp_path / "a")
    with torch.no_grad():
        own_LT = adapted(input_ids=OWN_BL).logits[0]
        plain_LV = built(spec).eval()(TOKENS_BL)[0, :5]
        model = in_numbers(adapted)
        for one in (model, built(f"{spec}@{tmp_path}/a")):
            found_LV = one.eval()(TOKENS_BL)[0, :5]
            assert torch.allclose(found_LV[:, 5:], own_LT[:, 2:], atol=1e-5)
            assert not torch.allclose(found_LV, plain_LV, atol=1e-2)
    assert all(parameter.requires_grad for parameter in model.parameters())
    prompted = peft.get_peft_model(
        live(tmp_path / "m"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    )
    with pytest.raises(ConfigError, match=r"the adapter of LlamaForCausalLM cannot be merged"):
        in_numbers(prompted)


def test_a_live_network_that_cannot_read_the_data_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "m", vocab_size=600)
    network = live(tmp_path / "m")
    # Bytes, and a larger vocabulary.
    for num_classes in (259, 700):
        with pytest.raises(ConfigError, match=r"the model has 600: its tokenizer is another one"):
            in_numbers(network, num_classes)
    with pytest.raises(
        ConfigError, match="LlamaForCausalLM takes 64 positions, and the data has 65"
    ):
        in_numbers(network, 600, length=65)
    network.config.eos_token_id = None
    with pytest.raises(ConfigError, match="ends a text with the token None"):
        in_numbers(network, 600)
    network.config.quantization_config = {"bits": 4}
    with pytest.raises(ConfigError, match="LlamaForCausalLM has quantized weights"):
        in_numbers(network, 600)


def test_a_model_of_classes_stays_as_it_is(tmp_path: Path) -> None:
    write_model(tmp_path / "m")
    for model in (live(tmp_path / "m"), nn.Linear(2, 2)):
        assert in_data_numbers(model, num_classes=2, inputs=inputs()) is model


def test_padding_and_a_missing_pad_token_change_nothing(tmp_path: Path) -> None:
    model = built(write_model(tmp_path / "m")).eval()
    with torch.no_grad():
        assert torch.allclose(model(TOKENS_BL)[0, :5], model(TOKENS_BL[:, :5])[0], atol=1e-6)


def test_a_model_without_a_begin_has_read_an_end(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m", tokenizer=False, bos_token_id=None)
    with torch.no_grad():
        found_LV = built(spec).eval()(TOKENS_BL)[0, :5]
        own_LT = live(tmp_path / "m")(input_ids=torch.tensor([[1, 3, 4, 5, 1]])).logits[0]
    assert torch.allclose(found_LV[:, 2], own_LT[:, 1], atol=1e-5)


def test_the_tokenizers_end_wins_over_the_configurations(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m", eos_token_id=[7, 1])
    assert built(spec).end == 1
    shutil.rmtree(tmp_path / "m")
    assert built(write_model(tmp_path / "m", tokenizer=False, eos_token_id=[7, 1])).end == 7


def test_evaluation_mode_has_no_dropout(tmp_path: Path) -> None:
    model = built(write_model(tmp_path / "m", attention_dropout=0.5))
    training_BLV, again_BLV = model(TOKENS_BL), model(TOKENS_BL)
    assert not torch.equal(training_BLV, again_BLV)
    model.eval()
    assert torch.equal(model(TOKENS_BL), model(TOKENS_BL))


@pytest.mark.parametrize("encoding", list(WeightEncoding))
def test_tied_weights_pass_the_codec(tmp_path: Path, encoding: WeightEncoding) -> None:
    model = built(write_model(tmp_path / "m"))
    name, head = find_head(model)
    assert name == "network.lm_head"
    state = model.state_dict()
    opened = open_weights(encode_weights(state, encoding), like=specs_of(state))
    model.load_state_dict(dict(opened))
    tied = model.get_submodule("network.model.embed_tokens").weight
    assert head.weight is tied
    assert torch.allclose(opened["network.lm_head.weight"], head.weight)


def test_narrow_weights_are_widened(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m")
    live(tmp_path / "m", dtype=torch.bfloat16).save_pretrained(tmp_path / "m")
    assert {tensor.dtype for tensor in built(spec).state_dict().values()} == {torch.float32}


def test_it_is_measured_without_reading_weights(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m")
    whole = built(spec)
    (tmp_path / "m" / "model.safetensors").unlink()
    empty = build_without_values(
        spec, num_classes=NUM_CLASSES, inputs=inputs(), allowed_modules=(spec,)
    )
    assert empty.state_dict().keys() == whole.state_dict().keys()
    figures = measure_model(empty, spec, inputs=inputs())
    assert figures.weights_bytes == sum(item.nbytes for item in whole.state_dict().values())
    assert figures.training_bytes > figures.evaluation_bytes > 0


def test_it_is_no_users_own_and_only_allowed_folders_are_read(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m")
    assert not is_users_own("causal:folder")
    for allowed in ((), ("causal:" + str(tmp_path / "mm"),), ("transformers",)):
        with pytest.raises(FactoryNotAllowedError, match=f"--allow-module {spec} if you trust"):
            build_model(
                spec, num_classes=NUM_CLASSES, inputs=inputs(), seed=0, allowed_modules=allowed
            )
    inside = (f"causal:{tmp_path}/",)
    build_model(spec, num_classes=NUM_CLASSES, inputs=inputs(), seed=0, allowed_modules=inside)


def _without_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def _changed(name: str, **values: Any) -> Any:
    def change(folder: Path) -> None:
        file = folder / name
        known = json.loads(file.read_text()) | values
        file.write_text(json.dumps({key: value for key, value in known.items() if value != "-"}))

    return change


def _code(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('it was run')")
    _changed("config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})(folder)


def _of_sentences(folder: Path) -> None:
    shutil.rmtree(folder)
    config = transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)


def _encoder(folder: Path) -> None:
    shutil.rmtree(folder)
    config = transformers.BertConfig(
        vocab_size=NUM_TOKENS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        eos_token_id=1,
        initializer_range=1.0,
    )
    transformers.BertLMHeadModel(config).save_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (shutil.rmtree, ConfigError, r"there is no folder .*save_pretrained wrote"),
        (lambda f: (f / "config.json").unlink(), ConfigError, r"config\.json cannot be read"),
        (lambda f: (f / "config.json").write_text("[" * 10**5), ConfigError, r"is no JSON object"),
        (lambda f: (f / "config.json").write_text("{}"), ConfigError, r"no model_type"),
        (_without_safetensors, WeightsError, r"only pickled weights \(pytorch_model\.bin\)"),
        (lambda f: (f / "model.safetensors").unlink(), WeightsError, r"no model\.safetensors\. Sa"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 99), ConfigError, r"cannot be ope"),
        (_code, ConfigError, r"cannot open its kind, 'own'\. It needs code of its own.*not run"),
        (_of_sentences, ConfigError, r"no causal language model, but T5ForConditionalGeneration"),
        (_encoder, ConfigError, r"a token changes the logits before it"),
        (_changed("config.json", num_hidden_layers=3), WeightsError, r"lack \d+ of the model's"),
        (_changed("config.json", quantization_config={}), ConfigError, r"has quantized weights"),
        (
            _changed("config.json", architectures=["LlamaForSequenceClassification"]),
            ConfigError,
            r"no causal language model, but LlamaForSequenceClassification",
        ),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, change: Any, error: Any, words: str) -> None:
    spec = write_model(tmp_path / "m", tokenizer=False)
    change(tmp_path / "m")
    with pytest.raises(error, match=words):
        built(spec)


def test_an_end_is_needed(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m", tokenizer=False, eos_token_id=None)
    with pytest.raises(ConfigError, match=r"ends a text with the token None.*Set eos_token_id"):
        built(spec)


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m")
    with pytest.raises(ConfigError, match=rf"has 256 tokens, .* {NUM_TOKENS}.*another.*tokenizer="):
        built(spec, num_classes=259)
    spec = write_model(tmp_path / "n", tokenizer=False)
    with pytest.raises(ConfigError, match=rf"has 256 tokens, and the model has {NUM_TOKENS}"):
        built(spec, num_classes=259)
    # The embedding has more rows than there are tokens.
    assert built(spec, num_classes=NUM_CLASSES - 1)(TOKENS_BL).shape[-1] == NUM_CLASSES - 1


def test_longer_texts_and_classes_are_refused(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m")
    with pytest.raises(
        ConfigError, match=r"takes 64 positions, and the data has 65.*max_length=64"
    ):
        built(spec, length=65)
    with pytest.raises(ConfigError, match=r"data has 2 classes"):
        build_model(spec, num_classes=2, inputs=inputs(), seed=0, allowed_modules=(spec,))
    numbers = ColumnsSpec((Column("", ColumnType.FLOAT32, (6,)),))
    with pytest.raises(ConfigError, match=r"cannot take .*, only tokens"):
        build_model(spec, num_classes=2, inputs=numbers, seed=0, allowed_modules=(spec,))
    with pytest.raises(ConfigError, match=r"names no folder\. Write causal:FOLDER"):
        build_model("causal:", num_classes=2, inputs=inputs(), seed=0, allowed_modules=("causal:",))


@pytest.mark.parametrize("package", ["transformers", "peft"])
def test_a_missing_package_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    spec = write_model(tmp_path / "m")
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "a").mkdir()
    with pytest.raises(MissingExtraError, match=rf"needs the package '{package}'.*\.\[lm\]"):
        built(f"{spec}@{tmp_path}/a")


def test_other_adapters_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    spec, adapter = write_model(tmp_path / "m"), tmp_path / "a"
    with pytest.raises(ConfigError, match=r"no folder .*/a of an adapter.*FOLDER@ADAPTER"):
        built(f"{spec}@{adapter}")
    adapter.mkdir()
    with pytest.raises(ConfigError, match=r"adapter_config\.json cannot be read"):
        built(f"{spec}@{adapter}")
    (adapter / "adapter_config.json").write_text('{"peft_type": "PROMPT_TUNING"}')
    with pytest.raises(ConfigError, match=r"'PROMPT_TUNING', not LORA\. Merge it"):
        built(f"{spec}@{adapter}")
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    torch.save({}, adapter / "adapter_model.bin")
    with pytest.raises(WeightsError, match=r"only pickled weights \(adapter_model\.bin\)"):
        built(f"{spec}@{adapter}")


def test_weights_from_elsewhere_are_loaded_over_the_folders(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m")
    weights = {name: torch.zeros_like(item) for name, item in built(spec).state_dict().items()}
    loaded = load_model(
        spec,
        pack(weights),
        num_classes=NUM_CLASSES,
        inputs=inputs(),
        device=torch.device("cpu"),
        allowed_modules=(spec,),
        max_bytes=2**20,
    )
    assert not any(bool(item.any()) for item in loaded.parameters())


def test_a_tokenizer_beside_other_data_is_named(tmp_path: Path) -> None:
    spec = write_model(tmp_path / "m")
    write_tokenizer(tmp_path / "m", ("<s>", "</s>", "?", "a"))
    with pytest.raises(ConfigError, match=r"model's tokenizer 4: .*tokenizer=.*/m/tokenizer\.json"):
        built(spec)
