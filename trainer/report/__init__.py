"""Report: one self-contained HTML file about a run, what it chose, and whether it paid.

Imported by `lipt report` and the demo. All that it shows is gathered into a value first.
"""
