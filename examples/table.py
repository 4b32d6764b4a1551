"""A table: a tenth of its rows, and an MLP that is trained on them."""

import os

import lipt

# Of your own: csv:train.csv?label=COLUMN and csv:test.csv?label=COLUMN
train, test = lipt.open_dataset("breast_cancer-train"), lipt.open_dataset("breast_cancer-test")

if "LIPT_COORDINATOR" in os.environ:
    subset = lipt.Client(os.environ["LIPT_COORDINATOR"]).subset(fraction=0.1)
else:
    subset = lipt.select(train, "mlp", fraction=0.1)

recipe = lipt.Recipe(epochs=50, batch_size=32, learning_rate=0.05)
trained = lipt.fit("mlp", train, subset=subset, test=test, recipe=recipe)
print(f"{len(subset)} of {len(train)} rows: {trained.test_accuracy:.1%} on {len(test)} others")
