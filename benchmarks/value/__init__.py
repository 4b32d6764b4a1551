"""Value of a subset: main training on subsets of clean and of dirty data, cell by cell."""
