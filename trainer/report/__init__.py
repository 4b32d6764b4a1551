"""Report: one self-contained HTML file about a run, what it chose, and whether it paid."""
