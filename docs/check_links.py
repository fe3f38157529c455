"""Checks every link inside of the built site, without the network: its file exists, and what follows # is in it."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the names that links to it may have after #."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element links to, and its names."""
        found = dict(attrs)
        self.links += [link for key in ("href", "src") if (link := found.get(key))]
        self.names |= {name for key in ("id", "name") if (name := found.get(key))}


def broken(site: Path) -> list[str]:
    """Return a line for each link of the site that leads nowhere."""
    pages = {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    lines = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                lines.append(f"{path.relative_to(site)}: {link}: no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                lines.append(f"{path.relative_to(site)}: {link}: no such heading")
    return lines


if __name__ == "__main__":
    sys.exit("\n".join(broken(Path(sys.argv[1]).resolve())) or 0)
