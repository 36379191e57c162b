"""Tables a person can read, for commands."""

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell, two blanks between; None is shown as "-"."""
    cells = [[column.upper() for column in columns], *([_text(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)


def _text(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
