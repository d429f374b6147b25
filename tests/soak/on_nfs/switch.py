"""The Ethernet between the virtual machines: frames from each to each, unless the way between two is cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

_FRAME_BYTES = 70000
_WAIT_S = 0.05  # for a machine whose queue is full; then the frame is lost, as on a real one
_BROADCAST_BIT = 1


class Switch:
    """A switch whose thread carries the frames until `close`."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._cuts: frozenset[tuple[str, str]] = frozenset()
        self._ports: dict[int, tuple[str, socket.socket]] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def plug_in(self, name: str, address: str) -> socket.socket:
        """Return the machine's end of a new cable; `address` is its Ethernet address."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.setblocking(False)
        with self._lock:
            self._names[bytes.fromhex(address.replace(":", ""))] = name
            self._sockets[name] = ours
            self._ports[ours.fileno()] = (name, ours)
        return theirs

    def remove(self, name: str) -> None:
        """Take a machine's cable out."""
        with self._lock:
            port = self._sockets.pop(name)
            self._ports.pop(port.fileno(), None)
            port.close()

    def cut(self, one: str, other: str) -> None:
        """Drop what two machines send to each other, silently, until `mend`."""
        self._cuts |= {(one, other), (other, one)}

    def mend(self) -> None:
        """Let every machine reach every other one."""
        self._cuts = frozenset()

    def close(self) -> None:
        """End the thread, and take all cables out."""
        self._is_closed = True
        self._thread.join()
        for name in list(self._sockets):
            self.remove(name)

    def _forward(self) -> None:
        while not self._is_closed:
            with self._lock:
                ports = list(self._ports)
            try:
                readable, _, _ = select.select(ports, [], [], 0.1)
            except OSError:  # a cable was taken out meanwhile
                continue
            with self._lock:
                for descriptor in readable:
                    if descriptor in self._ports:
                        self._drain(*self._ports[descriptor])

    def _drain(self, sender: str, port: socket.socket) -> None:
        try:
            for _ in range(64):
                if not (frame := port.recv(_FRAME_BYTES)):  # its kernel has ended
                    del self._ports[port.fileno()]
                    return
                self._send_on(sender, frame)
        except OSError:
            pass

    def _send_on(self, sender: str, frame: bytes) -> None:
        to = self._names.get(frame[:6])
        if to is not None:
            self._send(sender, to, frame)
        elif frame[0] & _BROADCAST_BIT:
            for name in self._sockets:
                self._send(sender, name, frame)

    def _send(self, sender: str, to: str, frame: bytes) -> None:
        port = self._sockets.get(to)
        if port is None or sender == to or (sender, to) in self._cuts:
            return
        try:
            port.send(frame)
        except BlockingIOError:
            select.select([], [port], [], _WAIT_S)
            with contextlib.suppress(OSError):
                port.send(frame)
        except OSError:  # it is off
            pass
