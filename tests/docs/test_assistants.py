"""Texts for coding assistants: the skill, and llms.txt, which the documentation site contains."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertkit.commands.table import COMMANDS

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "skills" / "bertkit" / "SKILL.md").read_text(encoding="utf-8")


def test_skill_is_short_and_describes_itself() -> None:
    assert SKILL.count("\n") <= 150
    assert re.match(r"---\nname: bertkit\ndescription: .{50,1000}\n---\n\n# bertkit\n", SKILL)


def test_skill_names_commands_that_exist() -> None:
    named = {name.strip() for name in re.findall(r"`bertkit ([a-z ]+)`", SKILL)}
    assert len(named) > 10
    assert named <= set(COMMANDS)


class Titles(dict[str, Any]):
    """Title nodes of Sphinx, with the first heading of each page."""

    def __missing__(self, page: str) -> Any:
        found = re.search("^# (.+)$", (ROOT / f"{page}.md").read_text(encoding="utf-8"), re.M)
        assert found is not None
        return SimpleNamespace(astext=lambda: found[1])


def test_llms_txt_lists_pages_by_caption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    site_pages = importlib.import_module("site_pages")
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("notes/*.md")]
    pages = {str(file.relative_to(ROOT).with_suffix("")) for file in files}
    app = SimpleNamespace(
        env=SimpleNamespace(found_docs=pages, titles=Titles()), outdir=str(tmp_path)
    )
    site_pages.write_list(app, error=None)
    text = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# bertkit\n\n> bertkit is .+\.\n\n## Get started\n\n- \[", text)
    links = dict(re.findall(r"^- \[(.+)\]\((.+)\.html\)$", text, re.M))
    assert links["Installation"] == "docs/get-started/installation"
    assert links["Security"] == "SECURITY"
    assert set(links.values()) <= pages
    captions = re.split("^## .+$", text, flags=re.M)[1:]
    assert len(captions) == len(site_pages.NAVIGATION["docs/index"])
    assert all("- [" in caption for caption in captions)


def test_failed_build_writes_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    site_pages = importlib.import_module("site_pages")
    site_pages.write_list(SimpleNamespace(outdir=str(tmp_path)), error=ValueError("no pages"))
    assert not any(tmp_path.iterdir())
