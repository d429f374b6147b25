"""What runs inside every rank, and beside it: the only part of the package that may import torch."""
