"""Configuration of the documentation site, which `make docs` builds with Sphinx.

Pages are plain Markdown that also works without Sphinx: navigation, generated tables and links to
files outside the site are added in memory when a page is read.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import site_pages
from bertkit import __version__

project = "bertkit"
release = version = __version__
copyright = "The bertkit authors. Apache License 2.0"
html_title = f"bertkit {release}"

# The source directory is the repository, so that pages can link to pages outside docs/.
root_doc = "docs/index"
include_patterns = ["docs/**", *site_pages.OUTSIDE]
exclude_patterns = [".*", "**/_*", *site_pages.EXCLUDED]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages"]

nb_execution_mode = "off"
myst_heading_anchors = 4
smartquotes = False

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autoclass_content = "both"
suppress_warnings = ["ref.python"]  # Attributes of several classes have the same name.
python_use_unqualified_type_names = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 80

html_theme = "furo"
pygments_dark_style = "github-dark"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
MOVED = {"index": "docs/index.html", "docs/guide/words": "window.html#one-word"}
"""New addresses of moved pages, relative to their directories."""
html_additional_pages = dict.fromkeys(MOVED, "redirect.html")
html_context = {"moved": MOVED}
templates_path = ["_templates"]
