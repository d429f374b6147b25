from common import RANK, here, wait
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        held = []
        while index == 2:
            held.append(b"\1" * (1 << 22))
        return index


if RANK == 3:
    here()
    for batch in DataLoader(Numbers(), num_workers=1):
        print(batch)
wait()
