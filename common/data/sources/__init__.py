"""Data sources: one file for each kind of data that `open_dataset` knows, giving its rows.

Owns how bytes on a disk become labelled rows. For `data`, which makes data sets of them, and
for the trainer, which recognizes a user's own objects by the same rules.
"""
