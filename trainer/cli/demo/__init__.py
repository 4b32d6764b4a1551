"""Demo: the whole service on one machine, a coordinator and workers as real processes."""

# One label in twenty is wrong, as in real data; here on purpose.
DATA, MODEL = "digits-mislabelled", "resnet8"
