"""Check a built site, `python docs/_ext/links.py build/docs`: its links, pictures and anchors, and raw formulas."""

import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Formulas are written in Unicode, which needs no script on the site; LaTeX would be shown as it stands
RAW = re.compile(r"\$\$|\$[^$\n]*[\\^_][^$\n]*\$|\\(?:mu|lambda|sum|frac|bar|mathbf|times|le|quad)\b")
CODE = ("code", "pre", "script", "style")


class Page(HTMLParser):
    """What a page links to, where links may land on it, and its text outside of code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.text = ""
        self._code = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value and tag != "base":
                self.links.append(value)
            elif name == "id" and value:
                self.anchors.add(value)
        self._code += tag in CODE

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in CODE

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text += data


def broken(site: Path) -> list[str]:
    """What is wrong with a site: links that lead nowhere on it (addresses elsewhere are not asked), and raw LaTeX."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        wrong += [f"{path.relative_to(site)}: LaTeX that nothing renders: {one}" for one in RAW.findall(page.text)]
        for link in page.links:
            address = urlsplit(link)
            if address.scheme or address.netloc or link == "#":
                continue
            target = Path(os.path.normpath(path.parent / unquote(address.path))) if address.path else path
            anchor = unquote(address.fragment)
            if not target.is_file():
                wrong.append(f"{path.relative_to(site)}: no file {link}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                wrong.append(f"{path.relative_to(site)}: no anchor {link}")
    return wrong


if __name__ == "__main__":
    found = broken(Path(sys.argv[1]))
    print("\n".join(found) or "every link inside the site leads somewhere, and no formula is left raw")
    sys.exit(1 if found else 0)
