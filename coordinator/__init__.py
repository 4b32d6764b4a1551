"""The head node: runs, soup, signals, selection, and the service around them."""
