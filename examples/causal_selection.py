"""Examples for a causal model's target: a pool in which half of the answers are wrong."""

import json
import tempfile
from pathlib import Path

import numpy as np
import lipt

draws = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
pool = ["".join(draws.choice(list("abcdefgh"), 4)) for _ in range(600)]
mine = ["".join(draws.choice(list("abcdefgh"), 4)) for _ in range(60)]


def file_of(name, pairs):
    lines = [json.dumps({"question": f"{word} =", "answer": answer}) for word, answer in pairs]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return f"jsonl:{folder}/{name}.jsonl?prompt=question&completion=answer&max_length=12"


right = [(word, word.upper()) for word in pool[:300]]
wrong = [(word, other.upper()) for word, other in zip(pool[300:], pool[:300])]
data = file_of("pool", right + wrong)
target = file_of("target", [(word, word.upper()) for word in mine])

subset = lipt.select(data, "text:causal", target_data=target, budget=100, progress=False)
print(f"{(subset.indices < 300).sum()} of {len(subset)} answers are right")
