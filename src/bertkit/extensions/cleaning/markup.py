"""Conversion of HTML in documents to plain text."""

from __future__ import annotations

import html
import re

BREAKS = "br dd div dt figcaption hr label legend li option summary td th title tr"
"""HTML elements whose tags become a line break."""

PARAGRAPHS = (
    "address article aside blockquote body center details dl fieldset figure footer form h1 h2 h3 "
    "h4 h5 h6 head header html main nav ol p pre section select table tbody tfoot thead ul"
)
"""HTML elements whose tags become an empty line."""

INLINE = (
    "a abbr acronym audio b bdi bdo big button canvas caption cite code col colgroup data del dfn "
    "em embed font i iframe img input ins kbd link map mark meta meter noscript object output "
    "picture q rp rt ruby s samp small source span strike strong sub sup svg textarea time track "
    "tt u var video wbr"
)
"""HTML elements whose tags are removed without a replacement."""

_NAMES = dict.fromkeys(BREAKS.split(), "\n")
_NAMES |= dict.fromkeys(PARAGRAPHS.split(), "\n\n") | dict.fromkeys(INLINE.split(), "")

# Each alternative stops at the next opening tag of its kind, so that the time is linear in the
# length of the text.
_HIDDEN = re.compile(
    r"<!--(?:(?!<!--).)*?-->|<!doctype\b[^<>]*>"
    r"|<script\b[^<>]*>(?:(?!<script\b).)*?</script\s{0,9}>"
    r"|<style\b[^<>]*>(?:(?!<style\b).)*?</style\s{0,9}>",
    re.DOTALL | re.IGNORECASE,
)
_TAG = re.compile(rf"</?({'|'.join(_NAMES)})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,31});", re.IGNORECASE)
_SPACES = re.compile(r"(?<![ \t])[ \t]*\ue000(?:[ \t\n]|\ue000)*")
_BREAK = "\ue000\n"
"""Line break that replaces a tag. The private-use character distinguishes it from other line
breaks, which stay unchanged."""


def plain_text(text: str) -> str:
    """Convert HTML in a text to plain text.

    Tags of HTML elements become line breaks or are removed. Comments, scripts and styles are
    removed, and character references such as `&amp;` are replaced. Other text between angle
    brackets, such as `a < b` or `List<int>`, is unchanged.
    """
    if "<" in text:
        text = _HIDDEN.sub("", text.replace("\ue000", " "))
        text, count = _TAG.subn(_without_tag, text)
        text = _SPACES.sub(_line_breaks, text).strip() if count else text
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return text


def _without_tag(match: re.Match[str]) -> str:
    return _NAMES[match[1].lower()].replace("\n", _BREAK)


def _line_breaks(match: re.Match[str]) -> str:
    return "\n" * min(2, match[0].count("\n"))
