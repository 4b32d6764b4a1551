"""Examples of each epoch: drawn anew or selected again, for main training and for DataLoaders."""
