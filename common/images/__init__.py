"""Images: from a file or pixels to what a model sees, the same way in every process."""
