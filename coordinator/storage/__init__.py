"""Storage: quotas of uploads, and the removal of unused blobs and old runs."""
