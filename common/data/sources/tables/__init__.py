"""Tables: CSV, JSON lines and Parquet files whose rows are numbers and categories, or text.

Owns how the cells of a row become a model's inputs, the same in two files that are opened apart.
"""
