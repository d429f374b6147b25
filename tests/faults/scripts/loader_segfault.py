import ctypes

from common import RANK, wait
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            ctypes.string_at(0)
        return index


if RANK == 3:
    list(DataLoader(Numbers(), num_workers=1))
wait()
