"""Proxies: features under a closed-form head, in place of theta_p and its own head."""
