"""What the page says besides figures; written after looking at them."""

from __future__ import annotations

from collections.abc import Mapping

INTRODUCTION = """# The paper's tables

Does LiPT (Ro et al., ICML 2023) reproduce, and what is it worth beside simpler things? Every
figure here comes from the product's own path: a real coordinator and real workers make the run
and choose the subset, and the same main training follows for every row of a table. Beside the
paper's rows stand class-balanced random, random that is re-drawn every epoch, `auto`, and
everything for as many optimizer steps. A seed is one of the whole pipeline: theta*, shards,
learners, soup, subset and main training. In brackets: the paper's own figure (ResNet-18, CIFAR-10,
200 epochs). Differences are paired by seed. Seconds at the cpu scale were taken while other work
used the machine, more for some rows than for others: read them as orders of magnitude.

    python benchmarks/paper.py B.1 --scale cpu --seeds 3 --jobs 2   # one table; resumes
    python benchmarks/paper.py all --scale gpu --minutes 8          # ResNet-18, in pieces
    python benchmarks/paper.py all --page                           # writes this page

Ordinary warm-ups are the strategies' option `pretraining`: `epochs:15` trains a model for 15
epochs on everything before it selects, `epochs:1x10` ten of them for one epoch each.
"""

NOTES: Mapping[str, str] = {
    "1": (
        "It does not: GraNd's subsets, chosen again, reach none of the "
        "targets within the steps of this scale, with either pre-training. Before main training "
        "LiPT's takes a tenth of the time. Of what costs little, random subsets reach 95% of "
        "everything's accuracy about as fast as everything does, and `auto` alone reaches all of "
        "it with both seeds, later. Seconds are of trainings that other work slowed down to unlike "
        "degrees."
    ),
    "B.1": (
        "GraNd keeps the hardest examples: with either pre-training it stays below a random subset "
        "of its size, the farther the fewer are kept, as is known of top-k scores. What LiPT "
        "changes is by how much, and at what price: the warm-up trains ten models, LiPT's "
        "learners see a twentieth of the data."
    ),
    "B.2": (
        "GradMatch takes no more examples once their weighted gradients match the whole: that is "
        "so with 5,775 and 5,783 of 50,000 after the ordinary warm-up and with 5,701 and 5,721 on "
        "LiPT's model, and larger fractions are that very subset. LiPT's is the better one with "
        "both seeds, by unlike amounts."
    ),
    "2": (
        "GLISTER's subsets, too, are below random ones of their size here. On theta_p they are "
        "better than on an untrained model by less than the seeds differ, and 15 epochs of "
        "warm-up serve it worst."
    ),
    "3": (
        "Augmentation of the learners adds at both fractions. Pruning adds where there is no "
        "augmentation and takes away beside it: all together are, at 70%, no better than merging "
        "alone."
    ),
    "C": (
        "The plain mean of all learners does as well: what the greedy soup gains on the validation "
        "split, 24.7% against 22.9%, does not show in what GraNd chooses by it."
    ),
    "D": (
        "The three are the same here. With the first seed alone the paper's order seemed to show; "
        "with the second it is gone."
    ),
    "fig-n": (
        "theta_p gets better with every learner more, from 22.8% to 27.1% on the validation split; "
        "what GraNd chooses by it does not. It is best at 10 and worse at 50, as in the paper, but "
        "by less than the seeds differ."
    ),
    "fig-M": (
        "theta_p gains fourteen points on the validation split between 1 and 5 minibatches, and "
        "what GraNd chooses by it gains nothing."
    ),
    "fig-K": (
        "theta_p rises from 12.9% to 35.5% on the validation split between 1 and 40 passes. What "
        "GraNd chooses is best at 10, as in the paper, but by less than the seeds differ."
    ),
}
