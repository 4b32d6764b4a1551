"""One self-contained HTML file about a run: what it did, what it chose, whether it paid."""
