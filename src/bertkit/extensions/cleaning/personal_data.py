"""Personal data in running text, replaced by examples of its kind.

The patterns and examples are those of datatrove's `PIIFormatter`, which made FineWeb, with four
deviations: each part of a mail address is as long as the standard allows at most, so that the time
stays linear in any text; an address of four numbers has no digit beside it, nor a fifth number;
letters of Latin scripts beyond ASCII may stand in an address, and any others beside it; and the
example is always the same one, so that a document's text does not depend on those before it.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address

MAIL, IP = "email@example.com", "22.214.171.124"

_LETTER = r"A-Za-z0-9\u00c0-\u024f"
_ATOM = rf"[{_LETTER}!#$%&'*+/=?^_`{{|}}~-]{{1,64}}"
_LABEL = rf"[{_LETTER}](?:[{_LETTER}-]{{0,61}}[{_LETTER}])?"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
_IP = rf"(?:{_BYTE}\.){{3}}{_BYTE}"

# RFC 5321, 4.5.3.1: at most 64 characters before the @
_BEGIN = rf"(?<![{_LETTER}_])(?=[{_LETTER}_])"  # \b, where Chinese beside it is no word
_MAIL = re.compile(
    rf"{_BEGIN}{_ATOM}(?:\.{_ATOM}){{0,31}}@(?:(?:{_LABEL}\.){{1,126}}{_LABEL}|\[{_IP}\])"
)
_ADDRESS = re.compile(rf"(?<![\d.]){_IP}(?!\.?\d)")


def mask(text: str) -> tuple[str, int, int]:
    """The text with mail addresses and public IPv4 addresses replaced, and how many of each.

    Addresses of private networks say nothing of anybody, and stay.
    """
    public = 0

    def example(place: re.Match[str]) -> str:
        nonlocal public
        if not _is_public(place[0]):
            return place[0]
        public += 1
        return IP

    text, mails = _MAIL.subn(MAIL, text) if "@" in text else (text, 0)
    return _ADDRESS.sub(example, text), mails, public


def _is_public(address: str) -> bool:
    try:
        return IPv4Address(address).is_global
    except ValueError:  # a number with a leading zero
        return False
