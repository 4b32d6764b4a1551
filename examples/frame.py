"""A data frame: a third of its rows, and an MLP that is trained on them."""

import lipt
from sklearn.datasets import load_wine

frame = load_wine(as_frame=True).frame.sample(frac=1, random_state=0)  # alcohol, ..., target
train, test = frame[:120], frame[120:]

subset = lipt.select(train, target="target", fraction=0.3)

chosen = train.iloc[subset.indices]
recipe = lipt.Recipe(epochs=50, batch_size=32, learning_rate=0.05)
trained = lipt.fit("mlp", train, target="target", subset=subset, test=test, recipe=recipe)
print(f"{len(chosen)} of {len(train)} rows: {trained.test_accuracy:.1%} on {len(test)} others")
