import torch
from common import RANK, wait
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.ones(1 << 18)


if RANK == 2:
    for batch in DataLoader(Images(), num_workers=2, batch_size=8):
        print(batch.sum())
wait()
