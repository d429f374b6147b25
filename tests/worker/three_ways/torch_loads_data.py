import torch
import torch.utils.data


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        return torch.tensor([index, info.id, info.num_workers, len(str(info.seed)) > 0])


if __name__ == "__main__":
    torch.manual_seed(3)
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Numbers(), 2, num_workers=2, shuffle=True, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in loader])
