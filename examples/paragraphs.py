"""Texts: a part of some paragraphs, and a small transformer that is trained on them."""

import asyncio
import decimal
import inspect
import logging
import os
import unittest

import lipt


def paragraphs(held_out):
    """Paragraphs of the standard library's documentation by module; every fifth is held out."""
    labels = {}
    for module in (asyncio, decimal, logging, os, unittest):
        members = [found for found in vars(module).values() if callable(found)]
        classes = [found for found in members if inspect.isclass(found)]
        members += [method for found in classes for method in vars(found).values()]
        for member in members:
            for paragraph in (inspect.getdoc(member) or "").split("\n\n"):
                if len(paragraph.split()) >= 8:
                    labels[paragraph] = module.__name__
    return [pair for row, pair in enumerate(labels.items()) if (row % 5 == 0) is held_out]


def train():
    return paragraphs(held_out=False)


if __name__ == "__main__":
    data, test = lipt.open_dataset(train()), lipt.open_dataset(paragraphs(held_out=True))
    if "LIPT_COORDINATOR" in os.environ:
        subset = lipt.Client(os.environ["LIPT_COORDINATOR"]).subset(fraction=0.3)
    else:
        learners = {"num_learners": 2, "num_steps": 5}  # a transformer on a CPU takes its time
        subset = lipt.select(data, "text:tiny", fraction=0.3, run={"learners": learners})
    epochs = int(os.environ.get("EPOCHS", "20"))
    recipe = lipt.Recipe(epochs=epochs, batch_size=32, learning_rate=0.05)
    trained = lipt.fit("text:tiny", data, subset=subset, test=test, recipe=recipe)
    print(f"{len(subset)} of {len(data)} texts: {trained.test_accuracy:.1%} on {len(test)} others")
