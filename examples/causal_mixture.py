"""How much of each source to train a causal model on: three files of tasks, and a target."""

import json
import tempfile
from pathlib import Path

import numpy as np
import lipt

draws = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())


def file_of(name, answer, number):
    words = ["".join(draws.choice(list("abcdefgh"), 4)) for _ in range(number)]
    lines = [json.dumps({"question": f"{word} =", "answer": answer(word)}) for word in words]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    # The loss counts the answer alone. Longer texts than max_length are cut.
    return f"jsonl:{folder}/{name}.jsonl?prompt=question&completion=answer&max_length=12"


sources = {
    "reversed": file_of("reversed", lambda word: word[::-1], 1000),
    "capitals": file_of("capitals", str.upper, 1000),
    "wrong answers": file_of("wrong", lambda word: "".join(draws.permutation(list(word))), 1000),
}
target = file_of("target", lambda word: word[::-1], 60)

mixture = lipt.mix(sources, target, model="text:causal", progress=False)
print(mixture)
