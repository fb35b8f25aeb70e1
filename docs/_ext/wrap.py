"""Wrap prose that is wider than 120 letters, and leave all else as it is: `python docs/_ext/wrap.py PAGE ...`."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

WIDTH = 120
ITEM = re.compile(r" *(?:[*+-] |\d+\. )?")


def blocks(text: str) -> Iterator[tuple[bool, list[str]]]:
    """(whether it is prose, lines): paragraphs and items of lists; and what is between them, such as tables."""
    fenced, block = False, list[str]()
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        other = fenced or fence or not line.strip() or line.startswith(("|", "#", "<", "!", "    "))
        if block and (other or re.match(r" *([*+-] |\d+\. )", line)):
            yield True, block
            block = []
        if other:
            yield False, [line]
        else:
            block.append(line)
        fenced ^= fence
    if block:
        yield True, block


def too_wide(text: str) -> list[str]:
    """Lines of prose that are wider than they may be."""
    return [line for prose, lines in blocks(text) for line in lines if prose and len(line) > WIDTH]


def wrapped(text: str) -> str:
    """The text with paragraphs wrapped that are too wide."""
    result = []
    for prose, lines in blocks(text):
        if prose and max(map(len, lines)) > WIDTH:
            first = ITEM.match(lines[0])[0]  # type: ignore[index]
            rest = " " * len(first)
            words = " ".join([lines[0][len(first) :], *map(str.strip, lines[1:])])
            lines = wrap(
                words,
                WIDTH,
                initial_indent=first,
                subsequent_indent=rest,
                break_on_hyphens=False,
                break_long_words=False,
            )
        result += lines
    return "\n".join(result)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(wrapped(path.read_text(encoding="utf-8")), encoding="utf-8")
