"""Copies tensors of CUDA devices into a rank's memory beside the training, on a stream of their own.

Theory of operation. A copy from a device runs beside the program only if the memory that it goes to is pinned. A rank's
memory is mapped already, and is pinned where it lies (`cudaHostRegister`), as torch's distributed checkpoints do with
memory that processes share. The copy waits for what the current stream of the device has been given before, and what
that stream is given afterwards waits for the copy. So the next step may change the tensors as soon as `begin` has
returned, and the program itself waits for nothing; whoever needs the bytes waits for an event.

ROCm's torch has all of this under the same names. It is of the torch that is imported already: only then there are
tensors on a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device of the process

DeviceCopy = tuple[int, Any]  # the address that a tensor goes to, and the tensor


class DeviceCopies:
    """The streams for copies, by device, and what is pinned for them, by address.

    Args:
        torch: the module; a stand-in where there is no device.
    """

    __slots__ = ("_cannot_pin", "_pinned", "_streams", "_torch")

    def __init__(self, torch: Any = None) -> None:
        self._torch: Any = torch or sys.modules.get("torch")
        self._streams: dict[Any, Any] = {}
        self._pinned: dict[int, int] = {}
        self._cannot_pin = False

    def pin(self, address: int, size: int) -> bool:
        """Pin mapped memory, and return whether it is pinned now; where it cannot be, no other is tried again.

        Args:
            address: where it begins.
            size: in bytes, to its end.
        """
        if self._pinned.get(address) == size:
            return True
        self.unpin(address)
        if self._cannot_pin:
            return False
        if int(self._torch.cuda.cudart().cudaHostRegister(address, size, PORTABLE)) != 0:
            self._cannot_pin = True
            with contextlib.suppress(RuntimeError):  # CUDA tells whoever looks next of the error, which is not theirs
                self._torch.zeros(1, device="cuda")
            return False
        self._pinned[address] = size
        return True

    def unpin(self, address: int) -> None:
        """Pin the memory at this address no longer; without effect if it is not pinned. No copy may be under way."""
        if self._pinned.pop(address, None) is not None:
            self._torch.cuda.cudart().cudaHostUnregister(address)

    def begin(self, copies: Sequence[DeviceCopy]) -> Callable[[], None]:
        """Begin to copy tensors to addresses in pinned memory, and return what waits until they are there.

        That raises a RuntimeError if a device has failed: then the bytes are not.
        """
        cuda, events = self._torch.cuda, []
        for device in dict.fromkeys(tensor.device for _, tensor in copies):
            current = cuda.current_stream(device)
            if (stream := self._streams.get(device)) is None:
                stream = self._streams[device] = cuda.Stream(device)
            stream.wait_stream(current)
            with cuda.stream(stream):
                for address, tensor in copies:
                    if tensor.device == device:
                        host_tensor(self._torch, address, tensor).copy_(tensor, non_blocking=True)
                        tensor.record_stream(stream)  # or its memory could be given away while it is read
                event = cuda.Event(blocking=True)  # who waits for it sleeps
                event.record(stream)
            current.wait_event(event)
            events.append(event)

        def wait() -> None:
            for each in events:
                each.synchronize()

        return wait


def host_tensor(torch: Any, address: int, like: Any) -> Any:
    """Return a tensor of this shape and type whose numbers are the bytes at an address; there must be some."""
    buffer = (ctypes.c_char * (like.numel() * like.element_size())).from_address(address)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(like.dtype).view(like.shape)
