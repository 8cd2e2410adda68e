"""Links between pages are valid, and the index leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def links(page: Path) -> list[Path]:
    """Return the files of the repository that a page links to."""
    code = re.compile(r"```.*?```|`[^`\n]*`", re.S)
    found = LINK.findall(code.sub("", page.read_text(encoding="utf-8")))
    return [(page.parent / link).resolve() for link in found if "://" not in link]


def pages() -> list[Path]:
    folders = (DOCS, ROOT / "notes")
    found = [page for folder in folders for page in sorted(folder.rglob("*.md"))]
    return [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")), *found]


def test_links_are_valid() -> None:
    broken = [f"{page.name}: {link}" for page in pages() for link in links(page)]
    broken = [text for text in broken if not Path(text.split(": ", 1)[1]).exists()]
    assert not broken, "\n".join(broken)


def test_index_leads_to_every_page() -> None:
    reached, ahead = set(), [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            ahead += links(page)
    assert sorted(set(DOCS.rglob("*.md")) - reached) == []
