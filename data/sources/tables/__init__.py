"""Tables: CSV, JSON lines, Parquet and frames as Arrow columns, and their reading as tensors."""
