"""Everything that takes long, apart from the event loop: jobs, their queue and their processes."""
