"""The shape of HTML: may it be handed to a parser, or was it made to cost more time and memory than it is worth?

An HTML parser opens formatting elements such as ``<b>`` again in every paragraph until they are closed, looks through
all open elements at every new one, and compares each attribute of a tag with those before it: a few kilobytes can
become gigabytes. Markup that closes what it opens, in order, has none of this.
"""

from __future__ import annotations

import re

SMALL = 64 * 1024
_LARGEST = 16 * 1024 * 1024
_MOST_TAGS = 250_000
"""Tags of one document that is parsed: about half a second, in which the kernel does nothing else."""
_DEPTH = 256
_OPEN_FORMATS = 8
_AMPLIFIED = 500_000
_COSTLY_CHARACTERS = 250_000
_FORMATS = frozenset(["a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"])
_VOID_NAMES = "area base br col embed hr img input link meta param source track wbr"
_VOID = frozenset(_VOID_NAMES.split())
_OPTIONAL_END = frozenset(["p", "li", "dd", "dt", "option"])
_FORMAT_TAG = re.compile(r"<(?:a|b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u)[\s/>]", re.IGNORECASE)
_ATTRIBUTE = r"\s+[\w:@.-]{1,100}(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'<>=]+))?"
_TAG = re.compile(
    rf"<(?:(/?)([A-Za-z][\w:-]{{0,40}})(?:{_ATTRIBUTE}){{0,60}}\s*(/?)>"
    r"|(!DOCTYPE\s[^<>]{0,200}>|!--[^<>]{0,2000}-->)|(?=[A-Za-z/!?]))",
    re.IGNORECASE,
)
_LATIN_SIGN = re.compile("[\x80-\xbf]")


def is_too_large(markup: str) -> bool:
    """True when *markup* is not handed to a parser whatever its shape: it is too long or has too many tags."""
    return len(markup) > _LARGEST or markup.count("<") > _MOST_TAGS


def can_be_parsed(markup: str) -> bool:
    """True when parsing *markup* takes time and memory in proportion to its length.

    Small markup may be careless as long as it cannot grow much. Large markup must consist of complete, ordinary tags,
    nested in order and not too deep, with a bounded number of the characters that serialisation is slow for.
    """
    if len(markup) <= SMALL:
        formats = sum(1 for _ in _FORMAT_TAG.finditer(markup))
        if formats * markup.count("<") <= _AMPLIFIED:
            return True
    if is_too_large(markup):
        return False
    costly = markup.count("&")
    if not markup.isascii():
        costly += sum(1 for _ in _LATIN_SIGN.finditer(markup))
    return costly <= _COSTLY_CHARACTERS and _well_nested(markup)


def _well_nested(markup: str) -> bool:
    stack: list[str] = []
    formats = drawings = 0
    for match in _TAG.finditer(markup):
        closing, name, empty = match[1], match[2], match[3]
        if name is None:
            if match[4]:
                continue
            return False  # a tag that is not ordinary
        name = name.lower()
        if name in _VOID or name in _OPTIONAL_END:
            continue
        if not closing:
            if empty and drawings:
                continue
            stack.append(name)
            formats += name in _FORMATS
            drawings += name == "svg"
            if len(stack) > _DEPTH or formats > _OPEN_FORMATS:
                return False
        elif not stack or stack.pop() != name:
            return False
        else:
            formats -= name in _FORMATS
            drawings -= name == "svg"
    return True
