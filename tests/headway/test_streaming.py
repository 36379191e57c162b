"""Cells of files that spreadsheets open."""

import pytest

from headway.streaming import as_text


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_what_a_spreadsheet_would_run_as_a_formula_is_text(begins: str) -> None:
    assert as_text(f'{begins}HYPERLINK("https://evil.example")').startswith(f"'{begins}")


@pytest.mark.parametrize("value", ["", "acme", "a=b", "1-2", "'=1", " =1", "org/model"])
def test_everything_else_stays_as_it_is(value: str) -> None:
    assert as_text(value) == value
