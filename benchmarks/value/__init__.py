"""What a subset is worth: main training on subsets of clean and of dirty data, cell by cell."""
