"""Texts: a part of some paragraphs, and a small transformer that is trained on them."""

import os

import lipt

# Of your own: csv:train.csv?text=COLUMN&label=COLUMN, and so the test set.
train, test = lipt.open_dataset("pydocs-train"), lipt.open_dataset("pydocs-test")

if "LIPT_COORDINATOR" in os.environ:
    subset = lipt.Client(os.environ["LIPT_COORDINATOR"]).subset(fraction=0.3)
else:
    learners = {"num_minibatches": 4, "num_steps": 5}  # a transformer on a CPU takes its time
    subset = lipt.select(train, "text:tiny", fraction=0.3, run={"learners": learners})

epochs = int(os.environ.get("EPOCHS", "20"))
recipe = lipt.Recipe(epochs=epochs, batch_size=32, learning_rate=0.05)
trained = lipt.fit("text:tiny", train, subset=subset, test=test, recipe=recipe)
print(f"{len(subset)} of {len(train)} texts: {trained.test_accuracy:.1%} on {len(test)} others")
