"""Data: labelled data sets by name; row n is the same example in every process."""
