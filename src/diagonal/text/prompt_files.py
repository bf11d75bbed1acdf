"""Prompts from files: one a line, the column `prompt` of a CSV file (VidProM's), or JSON as VBench publishes it.

VBench's is a list of objects with `prompt_en`; a list of texts is read as well. MovieGenBench's has one a line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COLUMN = "prompt"
KEY = "prompt_en"  # of VBench's JSON
LONGEST = 10_000  # characters; encoders count their tokens besides


def numbered(path: str | Path) -> list[tuple[int, str]]:
    """Every line or entry of a file, blank ones too, without white space around it, and its number."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"prompts {str(path)!r} do not exist; give a text file, one prompt a line, a .csv or VBench's .json"
        )
    read = {".csv": _csv, ".json": _json}.get(path.suffix.lower(), _lines)
    try:
        found = [(number, text.strip()) for number, text in read(path)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    for number, text in found:
        if len(text) > LONGEST:
            raise ValueError(
                f"{path}, line {number}: a prompt of {len(text)} characters; {LONGEST} are allowed. Shorten it or take "
                "it out: nothing is cut off"
            )
    if not any(text for _, text in found):
        raise ValueError(f"{path} holds no prompt; write one a line")
    return found


def prompts(path: str | Path) -> list[str]:
    """Each prompt of a file once, in the file's order."""
    return list(dict.fromkeys(text for _, text in numbered(path) if text))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from enumerate(file, 1)


def _csv(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            columns = rows.fieldnames or []
            if COLUMN not in columns:
                raise ValueError(f"{path} has no column {COLUMN!r}, but {', '.join(map(repr, columns)) or 'none'}")
            for row in rows:
                yield rows.line_num, row[COLUMN] or ""
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file: {error}") from error


def _json(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8-sig")
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file: {error}") from error
    for number, entry in enumerate(content if isinstance(content, list) else [content], 1):
        prompt = entry.get(KEY) if isinstance(entry, dict) else entry
        if not isinstance(prompt, str):
            raise ValueError(f"{path}, entry {number}: neither a text nor an object with {KEY!r}, as VBench writes it")
        yield number, prompt
