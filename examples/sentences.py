"""Texts with labels in a list: a part of them, and a small transformer that is trained on them."""

import inspect
import os
import socket

import lipt

members = [(member, "os") for member in vars(os).values()]
members += [(member, "socket") for member in vars(socket.socket).values()]
texts = [(text, label) for member, label in members if (text := inspect.getdoc(member))]

learners = {"num_minibatches": 4, "num_steps": 5}  # a transformer on a CPU takes its time
subset = lipt.select(texts, fraction=0.3, run={"learners": learners})

recipe = lipt.Recipe(epochs=int(os.environ.get("EPOCHS", "20")), batch_size=32, learning_rate=0.05)
trained = lipt.fit("text:tiny", texts, subset=subset, test=texts, recipe=recipe)
text, label = texts[subset.indices[0]]
print(
    f"{len(subset)} of {len(texts)} texts: {trained.test_accuracy:.1%} of all; {label}: {text:.20}"
)
