"""From a data set to theta_p: split, shards, initialization, and the soup of learners."""
