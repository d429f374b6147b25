from common import RANK, wait
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {0: 0, 1: 1}[index]


if RANK == 1:
    list(DataLoader(Numbers(), num_workers=1))
wait()
