"""A mixture for a model of transformers, by LoRA: a tiny random one stands for yours."""

import json
import tempfile
from pathlib import Path

import lipt
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())
model = folder / "model"  # a folder of save_pretrained: your model, and its tokenizer

letters = ["<s>", "</s>", *"abcdefghABCDEFGH ="]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(letters)}))
tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(letters), num_hidden_layers=2, bos_token_id=0, eos_token_id=1, **sizes
    )
).save_pretrained(model)
tokenizer.save(str(model / "tokenizer.json"))
ends = {"bos_token": "<s>", "eos_token": "</s>"}
(model / "tokenizer_config.json").write_text(json.dumps(ends))

words = [a + b + c for a in "abcdefgh" for b in "abcd" for c in "efgh"]
right = [{"ask": f"{word} =", "say": word.upper()} for word in words]
other = [{"ask": f"{word} =", "say": word[::-1]} for word in words]
target = f"prompt=ask&completion=say&max_length=10&tokenizer={model}/tokenizer.json"

mixture = lipt.mix(
    {"capitals": right, "reversed": other},
    right[::4],
    model=f"causal:{model}",
    target=target,
    run={
        "adapters": {"rank": 4},
        "learners": {"num_minibatches": 8, "batch_size": 16, "learning_rate": 1e-2},
    },
    progress=False,
)
print(mixture.weights)
adapter = mixture.save_adapter(folder / "adapter")  # PeftModel.from_pretrained(model, adapter)
print(sorted(file.name for file in adapter.iterdir()))
