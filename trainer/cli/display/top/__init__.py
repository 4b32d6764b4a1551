"""`lipt top`: the whole service on one screen, live.

Owns what is drawn, which keys there are, and how the terminal is read and given back. For the
command alone.
"""
