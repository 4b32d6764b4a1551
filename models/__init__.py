"""Models: classifiers by name, their memory layout, their last layer, and their weights."""
