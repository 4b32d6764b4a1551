"""Planning a run: what it will take in every place, and whether this coordinator admits it.

All of it is decided before anything is stored or computed. Imported by `runs` and `app`.
"""
