"""Find wrong labels and near-duplicates before training; needs no run and no worker."""

import os

import torch
from lipt import Client
from mine import data

with Client(os.environ.get("LIPT_COORDINATOR", "127.0.0.1:50051")) as client:
    diagnosis = client.diagnose()
print(diagnosis)

names = diagnosis.class_names
for issue in diagnosis.label_issues(sure=True)[:5]:  # the worst first
    print(f"row {issue.id}: labelled {names[issue.given]}, looks like {names[issue.suggested]}")

# Without labels that are surely wrong, and without what is there twice.
clean = torch.utils.data.Subset(data(), diagnosis.clean().tolist())
print(f"{len(clean)} of {len(data())} examples are left")
