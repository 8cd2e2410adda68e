"""The page stands alone, shows what it is given, and runs nothing that a text holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from bertkit.errors import ConfigError
from bertkit.view.document import Explanation
from bertkit.view.explain import explain
from bertkit.view.page import FIGURES, FILES, MODULES, page, refuse_place, write_page

HOSTILE = (
    "a </script><script>alert(1)</script> <!-- & \" ' \u2028 \u2029 <img src=x onerror=alert(2)>"
)


@pytest.fixture(scope="module")
def found(bert: Path) -> Explanation:
    return explain(bert, "We sat on the bank, crossing the river.", "The bank lent us money.")


class Reader(HTMLParser):
    """Tags with their attributes, and what stands in scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[int, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))

    def handle_data(self, data: str) -> None:
        place = len(self.tags) - 1
        self.inside[place] = self.inside.get(place, "") + data

    def contents(self, tag: str) -> list[str]:
        return [self.inside.get(i, "") for i, (name, _) in enumerate(self.tags) if name == tag]


def test_the_page_needs_nothing_else(found: Explanation) -> None:
    read = Reader(page(found))
    for _, attributes in read.tags:
        assert "src" not in attributes
        assert str(attributes.get("href", "#")).startswith("#")
    for text in (*read.contents("style"), *read.contents("script")):
        assert not re.search(r"https?:|url\(|@import|\bimport\b[ (]|^export|fetch\(", text, re.M)


def test_the_numbers_are_in_the_page(found: Explanation) -> None:
    data, _ = Reader(page(found)).contents("script")
    assert msgspec.json.decode(data, type=Explanation) == found


def test_a_text_is_only_read(bert: Path) -> None:
    html = page(explain(bert, HOSTILE))
    read = Reader(html)
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert not any("onerror" in attributes for _, attributes in read.tags)
    data, _ = read.contents("script")
    assert "<" not in data
    assert json.loads(data)["text"] == HOSTILE
    assert read.contents("title")[0].startswith("a </script>")


def test_the_policy_lets_only_our_script_run(found: Explanation) -> None:
    read = Reader(page(found))
    policy = next(a["content"] for _, a in read.tags if a.get("http-equiv"))
    assert policy is not None
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["default-src"] == "'none'"
    for tag, text in (("style", read.contents("style")[0]), ("script", read.contents("script")[1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert allowed[f"{tag}-src"] == f"'sha256-{digest}'"


def test_modules_come_after_those_they_import_and_share_no_name() -> None:
    assert {*MODULES, *FIGURES} == {path.name for path in FILES.glob("*.js")}
    names: list[str] = []
    for place, name in enumerate(MODULES):
        text = (FILES / name).read_text(encoding="utf-8")
        imported = re.findall(r'from "\./(.*)"', text)
        assert set(imported) <= set(MODULES[:place]), name
        names += re.findall(
            r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", text, re.M
        )
        assert "innerHTML" not in text
    assert len(set(names)) == len(names)


def test_a_place_that_will_not_do_is_refused(tmp_path: Path, found: Explanation) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    write_page(tmp_path / "a.html", found)
    with pytest.raises(ConfigError, match="exists already"):
        write_page(tmp_path / "a.html", found)
    with pytest.raises(ConfigError, match=r"is a folder; name a file, such as .*page\.html"):
        refuse_place(empty)
    with pytest.raises(ConfigError, match="there is no folder"):
        refuse_place(tmp_path / "none" / "a.html")
