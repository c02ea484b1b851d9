"""Sizes read exactly, and print as people read them."""

import pytest

from vrambudget.errors import VramBudgetError
from vrambudget.units import bytes_in, format_bytes, parse_bytes, unit_for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("512B", 512, id="bytes"),
        pytest.param("12GB", 12 * 10**9, id="decimal"),
        pytest.param("12 gib", 12 * 2**30, id="binary-any-case-and-a-blank"),
        pytest.param(".5MiB", 2**19, id="no-leading-zero"),
        pytest.param("11.69GiB", 12552041922, id="rounded-down"),  # 11.69 * 2**30 = ...922.56
        pytest.param("9007199254740993B", 2**53 + 1, id="exact-beyond-a-float"),
    ],
)
def test_a_size_reads_to_the_byte(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "12", "GB", ".GB", "1.GiB", "-1GB", "nanGB", "infGB", "1e9GB", "12XB", "9" * 400 + "B"],
)
def test_what_is_no_size_is_named(text):
    with pytest.raises(VramBudgetError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        pytest.param(0, "0 B", id="zero"),
        pytest.param(1023, "1,023 B", id="last-byte-row"),
        pytest.param(1024, "1.00 KiB", id="first-kib"),
        pytest.param(1024**2 - 1, "1.00 MiB", id="never-1024-KiB"),  # 1023.999 KiB
        pytest.param(1024**2 - 6 * 1024, "1,018.00 KiB", id="still-kib"),
        pytest.param(12552044544, "11.69 GiB", id="a-card"),
        pytest.param(-3 * 2**19, "-1.50 MiB", id="negative"),
        pytest.param(5000 * 2**40, "5,000.00 TiB", id="beyond-the-last-unit"),
    ],
)
def test_bytes_print_in_the_unit_that_fits(n, expected):
    assert format_bytes(n) == expected


def test_a_given_unit_is_kept():
    assert format_bytes(512 * 2**20, "GiB") == "0.50 GiB"
    assert format_bytes(2**40, "B") == "1,099,511,627,776 B"


def test_a_unit_has_its_bytes():
    assert [bytes_in(unit) for unit in ("B", "KiB", "GiB")] == [1, 1024, 2**30]


def test_a_printed_size_reads_back_within_its_last_digit():
    for n in (1, 999, 2**20 + 1, 85_097_971_712):
        step = {"B": 1, "MiB": 2**20 / 100, "GiB": 2**30 / 100}[unit_for(n)]
        assert abs(parse_bytes(format_bytes(n).replace(",", "")) - n) <= step
