"""The 1,797 handwritten digits of SOURCE.md, split once and for all into training and held-out images."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass

import torch
from torch import Tensor

HELD_OUT = 360
PIXEL_MAX = 16


@dataclass(frozen=True)
class Images:
    """Pixels of shape (N, 1, 8, 8) from 0 to 1, and digits of shape (N,)."""

    pixels: Tensor
    digits: Tensor

    def __len__(self) -> int:
        return len(self.digits)

    def take(self, indices: Tensor) -> Images:
        return Images(self.pixels[indices], self.digits[indices])


def load_digits(device: torch.device) -> tuple[Images, Images]:
    """Training images and held-out images, the same on every rank."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.csv.gz")
    with gzip.open(path, "rt", encoding="ascii") as file:
        rows = torch.tensor([[int(field) for field in line.split(",")] for line in file])
    pixels = (rows[:, :64].float() / PIXEL_MAX).reshape(-1, 1, 8, 8)
    images = Images(pixels.to(device), rows[:, 64].to(device))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(device)
    return images.take(order[HELD_OUT:]), images.take(order[:HELD_OUT])
