"""Text that workers wrote is shown without a way to control the terminal."""

from __future__ import annotations

import unicodedata

import pytest

from hpc_elastic.printable import printable, printable_line, printable_output, without_colours

HOSTILE = {
    "escape": ("\x1b[2J", "\\x1b[2J"),
    "NUL": ("a\0b", "a\\x00b"),
    "carriage return": ("failed\rfine", "failed\\rfine"),
    "bell": ("\x07", "\\x07"),
    "backspace": ("\b", "\\x08"),
    "control sequence of one byte": ("\x9b31m", "\\x9b31m"),
    "next line": ("\x85", "\\x85"),
    "direction": ("\u202egnp.exe", "\\u202egnp.exe"),
    "isolate": ("\u2066x\u2069", "\\u2066x\\u2069"),
    "line separator": ("a\u2028b", "a\\u2028b"),
    "lone surrogate": ("\udcff", "\\udcff"),
    "tab": ("a\tb", "a\\tb"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_controls_a_terminal_is_escaped(kind: str) -> None:
    text, shown = HOSTILE[kind]
    assert printable(text) == printable_line(text) == shown


@pytest.mark.long
def test_no_character_that_controls_is_left() -> None:
    every = "".join(map(chr, range(0x110000)))
    left = {char for char in printable_line(every) if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp", "Cf")}
    assert left == {"\u200c", "\u200d"}  # these join letters and emoji, and move nothing
    assert printable(every).count("\n") == 1


@pytest.mark.parametrize("text", ["Grüße, 東京, Ελλάδα", "\U0001f469\u200d\U0001f680", "a\u00a0b", "C:\\x1b"])
def test_words_of_any_language_stay(text: str) -> None:
    assert printable(text) == printable_line(text) == printable_output(text) == text


def test_line_breaks_stay_in_a_text_and_not_in_a_line() -> None:
    assert printable("a\nb\x07") == "a\nb\\x07"
    assert printable_line("a\n[hpc-elastic] SUCCEEDED") == "a\\n[hpc-elastic] SUCCEEDED"


def test_output_keeps_its_colours_and_nothing_else() -> None:
    assert printable_output("\x1b[31mred\x1b[0m \x1b[2A up\x1b]0;title\x07") == (
        "\x1b[31mred\x1b[0m \\x1b[2A up\\x1b]0;title\\x07\x1b[0m"
    )
    assert printable_output("10 %\r50 %\r100 %\r") == "100 %"
    assert printable_output("a\tb") == "a       b"
    assert without_colours("\x1b[1;31mred\x1b[0m") == "red"


def test_output_that_is_one_long_escape_takes_no_long_time() -> None:
    assert printable_output("\x1b[" + "1;" * 500_000).startswith("\\x1b[1;1;")
