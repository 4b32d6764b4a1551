"""Embedded: the service's own coordinator and workers, in this process."""
