import torch
from common import RANK, wait
from torch.utils.data import DataLoader, Dataset


class Shards(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 3:
            raise RuntimeError("Read timeout on endpoint URL s3://bucket/12.tar")
        return torch.ones(1)


if RANK != 2:
    wait()
for _ in DataLoader(Shards(), num_workers=1):
    pass
