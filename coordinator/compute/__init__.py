"""Long computations outside the event loop: jobs, their queue and their processes."""
