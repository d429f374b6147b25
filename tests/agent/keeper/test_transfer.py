"""States on their way from one keeper to another: their checksums, and what becomes of them if something is wrong."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hpc_elastic.agent.keeper.channel import PIECE, STALLS_S, Channel, ChannelError, dial_keeper
from hpc_elastic.agent.keeper.transfer import (
    OvertakenError,
    SendingRate,
    TransferError,
    offer_of,
    parse_offer,
    receive_states,
    send_states,
)
from hpc_elastic.membership.authentication import Side
from hpc_elastic.state_memory import map_control, read_slots, slot_header, slot_offset
from tests.agent.keeper.scene import PART, SCOPE, SECRET, a_memory, content_of, source_of, state_in


def both_ends(secret: bytes = SECRET) -> tuple[Channel, Channel]:
    ends: list[Channel] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            accepted, _ = listener.accept()
            with contextlib.suppress(ChannelError):
                ends.append(Channel(accepted, Side.LISTENING, secret=SECRET, scope=SCOPE))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            port = listener.getsockname()[1]
            dialling = dial_keeper("127.0.0.1", port, secret=secret, scope=SCOPE)
        finally:
            thread.join()
    return dialling, ends[0]


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    made = both_ends()
    yield made
    for end in made:
        end.close()


def in_a_thread(function: Callable[[], object]) -> Callable[[], BaseException | None]:
    """Run a function in a thread; the result waits for its end and returns its exception."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> BaseException | None:
        thread.join()
        return caught[0] if caught else None

    return wait


def test_states_arrive_as_they_were_with_their_checksums(ends: tuple[Channel, Channel]) -> None:
    contents = [os.urandom(3 * PIECE + 17), b"x"]
    memories, copies = [a_memory(), a_memory()], [a_memory(), a_memory()]
    sources = [
        source_of(memory, state_in(memory, 2, 7, content)) for memory, content in zip(memories, contents, strict=True)
    ]
    sending = in_a_thread(lambda: send_states(ends[0], sources))
    offer = parse_offer(offer_of(PART, sources).to_message())
    receive_states(ends[1], offer, copies, slot=1)
    assert sending() is None
    assert [content_of(copy, 7) for copy in copies] == contents
    assert [read_slots(map_control(copy))[0].crc for copy in copies] == [source.state.crc for source in sources]


def test_a_state_that_was_damaged_in_memory_is_not_taken(ends: tuple[Channel, Channel]) -> None:
    memories, copies = [a_memory(), a_memory()], [a_memory(), a_memory()]
    sources = [source_of(memory, state_in(memory, 0, 7, b"abc" * 1000)) for memory in memories]
    os.pwrite(memories[0], b"X", slot_offset(0) + 5)
    sending = in_a_thread(lambda: send_states(ends[0], sources))
    with pytest.raises(TransferError, match="damaged"):
        receive_states(ends[1], offer_of(PART, sources), copies, slot=0)
    assert sending() is None
    assert content_of(copies[0], 7) is None
    ends[0].send({"and": "the connection is in order"})
    assert ends[1].receive() == {"and": "the connection is in order"}


def test_a_state_that_is_overwritten_on_its_way_is_broken_off(ends: tuple[Channel, Channel]) -> None:
    memory = a_memory()
    source = source_of(memory, state_in(memory, 0, 7, bytes(3 * PIECE)))

    def overwrite(_: int) -> None:
        slot_header(map_control(memory), 0)[0] = 0

    sending = in_a_thread(lambda: send_states(ends[0], [source], overwrite))
    ends[1].receive_piece(memoryview(bytearray(PIECE)))
    assert isinstance(sending(), OvertakenError)


def test_a_piece_that_is_changed_on_its_way_ends_the_connection(ends: tuple[Channel, Channel]) -> None:
    header = ends[0]._session.seal_piece(b"abc")
    ends[0]._socket.sendall(header + b"abd")
    with pytest.raises(ChannelError, match="changed, dropped or repeated"):
        ends[1].receive_piece(memoryview(bytearray(3)))
    ends[0].send_piece(b"abc")
    with pytest.raises(ChannelError):
        ends[1].receive_piece(memoryview(bytearray(3)))


def test_a_piece_that_is_sent_twice_ends_the_connection(ends: tuple[Channel, Channel]) -> None:
    frame = ends[0]._session.seal_piece(b"abc") + b"abc"
    ends[0]._socket.sendall(2 * frame)
    assert bytes(ends[1].receive_piece(memoryview(bytearray(3)))) == b"abc"
    with pytest.raises(ChannelError, match="changed, dropped or repeated"):
        ends[1].receive_piece(memoryview(bytearray(3)))


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"part": "p", "attempt": 1, "step": 1, "lengths": [], "is_replicated": False},
        {"part": "p", "attempt": 1, "step": 1, "lengths": [0], "is_replicated": False},
        {"part": "p", "attempt": 1, "step": 1, "lengths": [1 << 41], "is_replicated": False},
        {"part": "p", "attempt": 1, "step": 1 << 62, "lengths": [1], "is_replicated": False},
        {"part": "p", "attempt": -1, "step": 1, "lengths": [1], "is_replicated": False},
        {"part": "p", "attempt": 1, "step": 1, "lengths": ["x"], "is_replicated": False},
        {"part": "p", "attempt": 1, "step": 1, "lengths": [1] * 5000, "is_replicated": False},
    ],
)
def test_an_offer_with_impossible_numbers_is_refused(message: dict[str, object]) -> None:
    with pytest.raises(TransferError):
        parse_offer(message)


def test_who_does_not_know_the_secret_is_refused() -> None:
    with pytest.raises(ChannelError):
        both_ends(secret=bytes(32))


def test_a_side_that_says_nothing_is_given_up(ends: tuple[Channel, Channel]) -> None:
    """Its time is shortened here, for a shorter one from the beginning would bound the handshake, too."""
    silent = ends[1]._socket
    assert silent.gettimeout() == STALLS_S
    silent.settimeout(0.05)
    with pytest.raises(ChannelError, match="no answer in time"):
        ends[1].receive()


def test_who_sends_a_handshake_byte_by_byte_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        slow = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    ended = in_a_thread(lambda: Channel(accepted, Side.LISTENING, secret=SECRET, scope=SCOPE, stalls_s=0.3))
    with slow, contextlib.suppress(OSError):
        for _ in range(30):
            slow.send(b"\0")
            time.sleep(0.05)  # each byte comes in time
    error = ended()
    assert isinstance(error, ChannelError), error
    assert "no answer in time" in str(error)


def test_nobody_at_an_address_is_told_with_it() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens there
        port = deaf.getsockname()[1]
        with pytest.raises(ChannelError, match=f"127.0.0.1:{port}: Connection refused"):
            dial_keeper("127.0.0.1", port, secret=SECRET, scope=SCOPE)


def test_what_is_sent_stays_below_the_rate() -> None:
    now = [100.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    pace = SendingRate(1000.0, pause=pause, clock=lambda: now[0])
    for _ in range(10):
        pace.wait(500)
    assert now[0] == pytest.approx(105.0)
    now[0] += 60  # what was not sent meanwhile is not sent faster later
    pace.wait(500)
    assert now[0] == pytest.approx(165.5)
