"""Doctor: what is installed, what answers, and what to do about it, for `lipt doctor`.

Imported by that command alone. Finding facts and judging them are kept apart: `checks` is pure.
"""
