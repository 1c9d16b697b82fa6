"""Reconstruct images from few linear measurements, with an error bar on every pixel.

`reconstruct` is the front door. Its steps are public too: `deep_image_prior`, `linearise`, `tune` and the prior's
`posterior`. Anything with `forward` and `adjoint` is a measurement: X-ray projections, inpainting, blur, downsampling,
Fourier samples, a matrix.
"""

from __future__ import annotations

from marquis.tomography.analytic import fbp, total_variation, tv
from marquis.tomography.baselines import constant, dropout, ensemble
from marquis.tomography.design import next_angles
from marquis.tomography.evidence import TunedPrior
from marquis.tomography.geometry import FanBeam, ParallelBeam
from marquis.tomography.operators import Measurement, as_layer, check_measurement, simulate
from marquis.tomography.posterior import ExactPrior, IterativePrior, linearise, tune
from marquis.tomography.problems import Blur, Dense, Downsampling, Fourier, Inpainting
from marquis.tomography.reconstruction import reconstruct
from marquis.tomography.result import UncertainImage
from marquis.tomography.scores import psnr, scores
from marquis.tomography.training import TrainedImage, deep_image_prior
from marquis.tomography.unet import UNet

__all__ = [
    "Blur",
    "Dense",
    "Downsampling",
    "ExactPrior",
    "FanBeam",
    "Fourier",
    "Inpainting",
    "IterativePrior",
    "Measurement",
    "ParallelBeam",
    "TrainedImage",
    "TunedPrior",
    "UNet",
    "UncertainImage",
    "as_layer",
    "check_measurement",
    "constant",
    "deep_image_prior",
    "dropout",
    "ensemble",
    "fbp",
    "linearise",
    "next_angles",
    "psnr",
    "reconstruct",
    "scores",
    "simulate",
    "total_variation",
    "tune",
    "tv",
]
