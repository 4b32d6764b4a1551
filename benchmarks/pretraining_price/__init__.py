"""The price of pre-training: what LiPT takes until a first subset, and what it replaces."""
