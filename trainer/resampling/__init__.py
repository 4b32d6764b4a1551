"""Resampling: other examples in every epoch, in place of a fixed subset."""
