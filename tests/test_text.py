"""Text from outside reaches a log as one line that says what it is."""

from __future__ import annotations

import random
import unicodedata

import pytest

from penumbra.text import LONGEST_NAME, printable


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("/camera/image_raw", "/camera/image_raw"),
        ("Straße, 北京, élan", "Straße, 北京, élan"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),  # the eight-bit form of ESC [
        ("one\ntwo\r\tthree\x0b\x85\u2028\u2029", "one\\ntwo\\r\\tthree\\x0b\\x85\\u2028\\u2029"),
        ("\u202egnp.exe\u2066\u200f\u061c", "\\u202egnp.exe\\u2066\\u200f\\u061c"),
        ("zero\u200bwidth\ufeff\u00ad", "zero\\u200bwidth\\ufeff\\xad"),
        ("\x00\x7f\ud800\U000e0041", "\\x00\\x7f\\ud800\\U000e0041"),
        ("C:\\names", "C:\\names"),
    ],
)
def test_hostile_characters_are_escaped(hostile, shown):
    assert printable(hostile) == shown


def test_long_text_is_cut_and_marked():
    assert printable("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    assert printable("x" * 10**6) == "x" * (LONGEST_NAME - 1) + "…"
    assert printable("abc\x1bdef", limit=6) == "abc…"  # the escape is left out, not cut in two
    assert printable("\x1b", limit=1) == "…"


def test_an_error_is_shown_by_its_message():
    assert printable(ValueError("bad\nline")) == "bad\\nline"


def test_any_text_becomes_one_printable_line_of_the_limit_and_is_escaped_once():
    choose = random.Random(1)
    for _ in range(2000):
        text = "".join(chr(choose.randrange(0x110000)) for _ in range(choose.randrange(40)))
        limit = choose.randrange(1, 60)
        shown = printable(text, limit)
        assert len(shown) <= limit
        assert len(shown.splitlines()) <= 1
        assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
        assert printable(shown, limit) == shown
        shown.encode()  # no surrogate is left, which a log file could not take


def test_a_limit_without_room_is_refused():
    with pytest.raises(ValueError, match="limit is 0"):
        printable("x", limit=0)
