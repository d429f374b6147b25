"""The programs inside and beside every rank: the only part of the package that may import torch."""
