"""Demo: the whole service on one machine, a coordinator and workers as real processes."""
