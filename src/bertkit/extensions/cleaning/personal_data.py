"""Replacement of email and IP addresses with example addresses.

The patterns and example addresses follow `PIIFormatter` of datatrove, with which FineWeb was
created, except for four differences:

- The length of each part of an email address is limited to the maximum in the standard, so that the
  time is linear in the length of any text.
- An IP address must have exactly four numbers, and no digit directly before or after it.
- Email addresses may contain Latin letters beyond ASCII. Letters of other scripts may directly
  precede or follow an address.
- The example address is always the same, so that the text of a document does not depend on previous
  documents.
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

# This is like \b, except that a letter of another script, such as Chinese, can precede an address.
_BEGIN = rf"(?<![{_LETTER}_])(?=[{_LETTER}_])"
# RFC 5321, section 4.5.3.1 permits at most 64 characters before the @.
_MAIL = re.compile(
    rf"{_BEGIN}{_ATOM}(?:\.{_ATOM}){{0,31}}@(?:(?:{_LABEL}\.){{1,126}}{_LABEL}|\[{_IP}\])"
)
_ADDRESS = re.compile(rf"(?<![\d.]){_IP}(?!\.?\d)")


def mask(text: str) -> tuple[str, int, int]:
    """Replace email addresses and public IPv4 addresses with example addresses.

    Addresses in private networks are not personal data, so they are not replaced.

    Returns:
        The new text, the number of replaced email addresses, and the number of replaced IP
        addresses.
    """
    public = 0

    def example(match: re.Match[str]) -> str:
        nonlocal public
        if not _is_public(match[0]):
            return match[0]
        public += 1
        return IP

    text, mails = _MAIL.subn(MAIL, text) if "@" in text else (text, 0)
    return _ADDRESS.sub(example, text), mails, public


def _is_public(address: str) -> bool:
    try:
        return IPv4Address(address).is_global
    except ValueError:
        # The error means that a number has a leading zero.
        return False
