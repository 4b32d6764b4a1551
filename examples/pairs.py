"""Image-caption pairs by two towers: captions of another image are dropped, in one process."""

import lipt
from towers import write_pairs

write_pairs("pairs")
source = "pairs:pairs?image_tower=towers:image&text_tower=towers:text&size=32&clusters=4"
smallest = {
    "learners": {"num_learners": 1, "num_steps": 1, "num_minibatches": 1, "batch_size": 8},
}

kept = lipt.select(source, fraction=0.9, strategy="clip_score", run=smallest)
pairs = lipt.open_pairs(source)
dropped = sorted(set(range(len(pairs))) - set(kept.indices.tolist()))
print(f"{len(kept)} of {len(pairs)} pairs are kept; dropped:")
for row in dropped:
    path, caption = pairs[row]
    print(f"{path}: {caption}")
