"""Who says a last word is known from the kernel, and what is no last word is passed over."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.last_word import name_of, open_receiver, send_last_word
from tests.last_words import last_words


def test_words_come_with_the_process_id_of_their_sender() -> None:
    with open_receiver() as receiver:
        source = f"from hpc_elastic.last_word import send_last_word; send_last_word({name_of(receiver)!r}, 7)"
        with subprocess.Popen([sys.executable, "-c", source]) as child:
            pass
        send_last_word(name_of(receiver), 3)
        assert last_words(receiver) == [(child.pid, 7), (os.getpid(), 3)]
        assert last_words(receiver) == []


def test_what_is_no_last_word_is_passed_over() -> None:
    with open_receiver() as receiver, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        address = b"\0" + name_of(receiver).encode()
        for word in (b"", b"x", b"-1", b"1" * 10_000, b"\xff"):
            stranger.sendto(word, address)
        send_last_word(name_of(receiver), 1)
        assert [attempt for _, attempt in last_words(receiver)][-1:] == [1]


@pytest.mark.long
def test_a_full_queue_does_not_hold_a_worker_up() -> None:
    most = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    if most > 1000:
        pytest.skip(f"the queue holds {most}")
    with open_receiver() as receiver:
        for attempt in range(most + 2):
            send_last_word(name_of(receiver), attempt)  # returns
        assert [attempt for _, attempt in last_words(receiver)] == list(range(most + 1))


def test_each_receiver_has_a_name_of_its_own() -> None:
    with open_receiver() as one, open_receiver() as other:
        assert name_of(one) != name_of(other)
