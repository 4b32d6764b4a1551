"""Images: from files or pixels to a model's input, the same in every process."""
