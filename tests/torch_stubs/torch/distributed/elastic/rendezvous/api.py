from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import VERSION


class RendezvousError(Exception): ...


class RendezvousClosedError(RendezvousError): ...


class RendezvousTimeoutError(RendezvousError): ...


class RendezvousConnectionError(RendezvousError): ...


class RendezvousParameters:
    def __init__(self, backend, endpoint, run_id, min_nodes, max_nodes, local_addr=None, **kwargs):
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = kwargs


class RendezvousHandler(ABC):
    @abstractmethod
    def get_backend(self): ...

    @abstractmethod
    def next_rendezvous(self): ...

    @abstractmethod
    def is_closed(self): ...

    @abstractmethod
    def set_closed(self): ...

    @abstractmethod
    def num_nodes_waiting(self): ...

    @abstractmethod
    def get_run_id(self): ...

    @abstractmethod
    def shutdown(self): ...


if VERSION >= (2, 4):

    @dataclass
    class RendezvousStoreInfo:
        master_addr: str
        master_port: int

    class RendezvousInfo:
        def __init__(self, store, rank, world_size, bootstrap_store_info):
            self.store = store
            self.rank = rank
            self.world_size = world_size
            self.bootstrap_store_info = bootstrap_store_info
