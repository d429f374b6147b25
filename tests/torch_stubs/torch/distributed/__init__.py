from datetime import timedelta

from torch import VERSION


class DistError(RuntimeError): ...


class Store:
    timeout = timedelta(minutes=5)

    def set_timeout(self, timeout): ...

    def set(self, key, value): ...

    def get(self, key): ...

    def add(self, key, amount): ...

    def wait(self, keys, timeout=None): ...

    def multi_get(self, keys): ...

    def multi_set(self, keys, values): ...


class TCPStore(Store):
    def __init__(
        self,
        host_name,
        port,
        world_size=None,
        is_master=False,
        timeout=timedelta(minutes=5),
        wait_for_workers=True,
        multi_tenant=False,
        master_listen_fd=None,
        use_libuv=VERSION >= (2, 4),
    ):
        if use_libuv and master_listen_fd is not None and VERSION < (2, 8):  # 2.2 and 2.3 hang
            raise NotImplementedError("The libuv TCPStore backend does not support initialization with an listen fd.")
