"""Demo: the whole service on one machine, a coordinator and workers as real processes."""

DATA, MODEL = "digits-mislabelled", "resnet8"
