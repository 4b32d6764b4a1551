"""Choose examples for a target, and fine-tune on them with TRL: pip install trl."""

import json
import tempfile
from pathlib import Path

import datasets
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
import lipt

draws = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
words = ["".join(draws.choice(list("abcdefgh"), 4)) for _ in range(300)]


def file_of(name, pairs):
    lines = [json.dumps({"prompt": f"{word} =", "completion": answer}) for word, answer in pairs]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return f"jsonl:{folder}/{name}.jsonl?prompt=prompt&completion=completion&max_length=12"


pool = file_of("pool", [(word, word.upper()) for word in words[:150]] + [*zip(words, words[:100])])
target = file_of("target", [(word, word.upper()) for word in words[250:]])

quick = {"initialization": {"steps": 100}}  # a toy needs no more
subset = lipt.select(pool, "text:causal", target_data=target, budget=64, run=quick, progress=False)
chosen = subset.to_jsonl(pool, folder / "chosen.jsonl")

# A model and a tokenizer of your own here: this one is tiny and random, and its tokens are bytes.
PAD, END = "<pad>", "<end>"
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
numbers = {one: place for place, one in enumerate([PAD, END, *letters])}
bytes_only = Tokenizer(models.BPE(numbers, merges=[]))
bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bytes_only.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only, pad_token=PAD, eos_token=END)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=len(numbers), num_attention_heads=4, max_position_embeddings=64, **sizes)
)

trainer = SFTTrainer(
    model,
    # The columns prompt and completion are TRL's: the loss counts completions alone.
    train_dataset=datasets.load_dataset(
        "json", data_files=str(chosen), split="train", cache_dir=str(folder / "cache")
    ),
    args=SFTConfig(
        output_dir=str(folder / "trained"),
        max_steps=20,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        max_length=64,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        bf16=False,
        use_cpu=True,
    ),
    processing_class=tokenizer,
)
trainer.train()
first, *_, last = [float(one["loss"]) for one in trainer.state.log_history if "loss" in one]
right = sum(json.loads(row)["completion"].isupper() for row in chosen.open())
print(f"{len(subset)} chosen examples, {right} of them right")
print(f"loss {first:.2f}, after {trainer.state.global_step} steps {last:.2f}")
