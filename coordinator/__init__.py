"""The coordinator: holds theta* and the data, leases learners, makes the soup, serves subsets."""
