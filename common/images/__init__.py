"""Images: from a file or pixels to what a model sees, the same way in every process.

Owns decoding, fitting, normalizing and the mild augmentation. For `data`, and for the
processes that put images into a model.
"""
