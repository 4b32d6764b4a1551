"""Latent classes: SAS, and for image-caption pairs ClipCov and CLIP score.

ClipCov: with images v_i and captions t_i, rows of length 1 in one space, latent classes V_c, S_c
the chosen ones of V_c, and the similarity a_ij = v_i . t_j + t_i . v_j of two pairs, maximize

    F(S) = sum_c 1/|V_c| sum_{i in S_c} sum_{j in V_c not in S_c} a_ij       (cross term)
           + sum_{i in S} (2 v_i . t_i                                        (easiness)
                           + 1/2 t_i . l_c(i)                                 (label term)
                           - v_i . o^t_c(i) - t_i . o^v_c(i)).                (centre terms)

o^t_c is the mean of the other classes' caption centres, o^v_c of their image centres. A centre is
the direction of a class's mean row.

Terms and weights are those of the authors' code, without its clipping of negative similarities and
its updates in steps of 200 picks. Labels are the latent classes; l_c is their caption centre.

Shapes: N examples, M of a latent class, B of a block, C latent classes, D features.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.errors import SignalsError
from lipt.core.passes import row_blocks
from lipt.core.selection.selection import Selection, keep_largest, unweighted
from lipt.core.selection.solvers.linear_cut import (
    cut_picks,
    exact_bits,
    spherical_kmeans,
    unit_rows,
)
from lipt.core.selection.strategy import Balance, Cost, Growth, built_in
from lipt.core.signals.views import Features, PairedFeatures
from lipt.data.groups import class_shares, members

EASINESS_WEIGHT = 2.0
LABEL_WEIGHT = 0.5
CENTRE_WEIGHT = 1.0


@built_in(
    summary="pairs whose image and caption are most alike",
    paper='Hessel et al. 2021, "CLIPScore" (arXiv:2104.08718)',
    cost=Cost(Growth.LINEAR, "N d"),
    balance=Balance.ON_REQUEST,
)
def clip_score(pairs: PairedFeatures, budget: int) -> Selection:
    """Keep the `budget` pairs with the largest cosine of image and caption (0 for zeros)."""
    images_ND, captions_ND = in_one_space(pairs)
    cosines_N = torch.empty(len(pairs), dtype=torch.float64, device=images_ND.device)
    for rows in row_blocks(len(pairs), images_ND.shape[1] * 32):
        images_BD, captions_BD = images_ND[rows].double(), captions_ND[rows].double()
        lengths_B = images_BD.norm(dim=-1) * captions_BD.norm(dim=-1)
        products_B = (images_BD * captions_BD).sum(dim=-1)
        cosines_N[rows] = products_B / lengths_B.masked_fill(lengths_B == 0, 1)
    return keep_largest(cosines_N, budget)


def in_one_space(pairs: PairedFeatures) -> tuple[Tensor, Tensor]:
    """The images' and the captions' features; SignalsError if their widths differ."""
    images_ND, captions_NP = pairs.features_ND, pairs.paired_features_NP
    if captions_NP.shape[1] != images_ND.shape[1]:
        raise SignalsError(
            "the strategy compares images with captions, but features have "
            f"{images_ND.shape[1]} columns and paired features {captions_NP.shape[1]}. Give two "
            "encoders' outputs in one space."
        )
    return images_ND, captions_NP


@dataclass(frozen=True)
class PairTerms(PairedFeatures):
    """Pairs, and the weighted terms of F besides the cross term, float64."""

    terms_N: Tensor


def pair_terms(pairs: PairedFeatures) -> PairTerms:
    """The weighted terms of F besides the cross term, of each pair, float64."""
    (images_ND, captions_ND), labels_N = in_one_space(pairs), pairs.labels_N
    bits = exact_bits(len(pairs))
    blocks = list(row_blocks(len(pairs), images_ND.shape[1] * 64))
    image_sums_CD = torch.zeros(
        int(labels_N.max()) + 1, images_ND.shape[1], dtype=torch.float64, device=images_ND.device
    )
    caption_sums_CD = torch.zeros_like(image_sums_CD)
    for rows in blocks:
        image_sums_CD.index_add_(0, labels_N[rows], unit_rows(images_ND[rows], bits).double())
        caption_sums_CD.index_add_(0, labels_N[rows], unit_rows(captions_ND[rows], bits).double())
    image_centres_CD = unit_rows(image_sums_CD, bits).double()
    caption_centres_CD = unit_rows(caption_sums_CD, bits).double()
    other_images_CD = image_centres_CD.sum(dim=0) - image_centres_CD
    other_captions_CD = caption_centres_CD.sum(dim=0) - caption_centres_CD
    # With a single latent class the sums are zero.
    num_others = max(1, len(torch.unique(labels_N)) - 1)

    own_N = torch.empty(len(pairs), dtype=torch.float64, device=images_ND.device)
    for rows in blocks:
        labels_B = labels_N[rows]
        images_BD = unit_rows(images_ND[rows], bits).double()
        captions_BD = unit_rows(captions_ND[rows], bits).double()
        easiness_B = (images_BD * captions_BD).sum(dim=-1)
        label_B = (captions_BD * caption_centres_CD[labels_B]).sum(dim=-1)
        centres_B = (images_BD * other_captions_CD[labels_B]).sum(dim=-1)
        centres_B += (captions_BD * other_images_CD[labels_B]).sum(dim=-1)
        own_N[rows] = EASINESS_WEIGHT * easiness_B + LABEL_WEIGHT * label_B
        own_N[rows] -= CENTRE_WEIGHT * (centres_B / num_others)
    return PairTerms(images_ND, captions_ND, labels_N, own_N)


@built_in(
    summary="pairs that preserve the cross-covariance of a latent class",
    paper='Joshi et al. 2024, "Data-Efficient Contrastive Language-Image" (arXiv:2403.12267)',
    cost=Cost(Growth.ITERATIONS, "k N d"),
    prepare=pair_terms,
)
def clipcov(pairs: PairTerms, budget: int) -> Selection:
    """Keep pairs that preserve the cross-covariance of their latent classes, greedily.

    Easiness prefers captions that fit their image, the label term captions close to the class's
    own, and the centre terms pairs away from other latent classes.
    """
    # Gains within a class do not depend on other classes: the best pick is one of their next.
    of_classes = (rows_M for rows_M in members(pairs.labels_N) if len(rows_M))
    picks = heapq.merge(*(_class_picks(pairs, rows_M, budget) for rows_M in of_classes))
    chosen = [position for _, position in islice(picks, budget)]
    return unweighted(torch.tensor(chosen, device=pairs.labels_N.device))


def _class_picks(pairs: PairTerms, positions_M: Tensor, budget: int) -> Iterator[tuple[float, int]]:
    bits = exact_bits(len(positions_M))
    images_MD = unit_rows(pairs.features_ND[positions_M], bits)
    captions_MD = unit_rows(pairs.paired_features_NP[positions_M], bits)
    for gain, place in cut_picks(
        torch.cat([images_MD, captions_MD], dim=1),
        pairs.terms_N[positions_M],
        min(budget, len(positions_M)),
        scale=1 / len(positions_M),
        # [v, t] as [t, v], whose product with another pair's [v, t] is a_ij.
        map_rows=lambda rows_B2D: rows_B2D.roll(rows_B2D.shape[-1] // 2, dims=-1),
    ):
        yield -gain, int(positions_M[place])


@built_in(
    summary="most like what is not selected of the same latent class",
    paper='Joshi & Mirzasoleiman 2023, "Data-Efficient Contrastive" (arXiv:2302.09195)',
    cost=Cost(Growth.ITERATIONS, "k N d"),
    is_random=True,
)
def sas(
    features: Features,
    budget: int,
    *,
    num_clusters: Annotated[int, Field(ge=0), "clusters of k-means; 0: the classes"] = 0,
    seed: int,
) -> Selection:
    """Share the budget among latent classes; examples most similar to unselected ones first.

    With s_ij the cosines, each latent class V_c gives the set S_c that greedily maximizes F(S_c) =
    sum_{i in V_c not in S_c} sum_{j in S_c} s_ij (the authors' code ranks static row sums). With
    1 + cos, which changes all gains alike, F is submodular.
    """
    latent_N = features.labels_N
    if num_clusters:
        latent_N = spherical_kmeans(
            features.features_ND, num_clusters, generator=derive_generator(seed, "sas")
        )
    chosen = []
    for _, positions, quota in class_shares(latent_N, budget):
        rows_MD = unit_rows(features.features_ND[positions], exact_bits(len(positions)))
        nothing_M = torch.zeros(len(positions), dtype=torch.float64, device=rows_MD.device)
        picks = cut_picks(rows_MD, nothing_M, quota, scale=1.0)
        chosen.append(positions[[place for _, place in picks]])
    return unweighted(torch.cat(chosen))
