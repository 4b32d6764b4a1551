"""Demo: the whole service on one machine, a coordinator and workers as real processes.

Imported by `lipt demo` and by the benchmarks, which start processes the same way.
"""
