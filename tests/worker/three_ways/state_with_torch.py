import state
import torch

state.note("torch")
torch.manual_seed(5)
print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.initial_seed(), torch.rand(4).tolist())
print(torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())
print(torch.distributed.is_initialized(), torch.multiprocessing.get_start_method(), torch.get_rng_state().sum())
print(torch.backends.mkldnn.is_available(), torch.get_float32_matmul_precision(), torch.set_flush_denormal(False))
layer = torch.nn.Linear(64, 64)
layer(torch.ones(256, 64)).sum().backward()
print(round(layer.weight.grad.abs().sum().item(), 3))
