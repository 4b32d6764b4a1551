"""Sources and samplers that resample or re-select the examples of each epoch."""
