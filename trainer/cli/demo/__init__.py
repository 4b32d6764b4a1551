"""Demo: the whole service on one machine, a coordinator and workers as real processes."""

# Data as people have it: one label in twenty is wrong, here on purpose.
DATA, MODEL = "digits-mislabelled", "resnet8"
