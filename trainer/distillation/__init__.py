"""Progressive distillation of image sets: few synthetic images, made in stages. Experimental.

Source: Chen et al. 2024, "Data Distillation Can Be Like Vodka: Distilling More Times For Better
Quality" (ICLR 2024, arXiv:2310.06982), with gradient matching (Zhao et al. 2021).
"""

from lipt.trainer.distillation.distillation import Distillation, distill
from lipt.trainer.distillation.synthetic import SyntheticSet

__all__ = ["Distillation", "SyntheticSet", "distill"]
