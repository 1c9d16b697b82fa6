"""Tomography: images from few X-ray angles, with an error bar on every pixel."""
