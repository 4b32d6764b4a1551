"""Diagnosis: wrong labels, duplicates, outliers, and how much data is enough."""
