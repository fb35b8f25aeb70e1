"""Check every link, picture and anchor inside a built site: `python docs/_ext/links.py build/docs`."""

import os
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and where links may land on it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value and tag != "base":
                self.links.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def broken(site: Path) -> list[str]:
    """Links of a site that lead nowhere on it; addresses elsewhere are not asked."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
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
    print("\n".join(found) or "every link inside the site leads somewhere")
    sys.exit(1 if found else 0)
