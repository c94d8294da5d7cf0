"""Text of a guest: terminal sequences, prompts, LaTeX and Markdown."""

from __future__ import annotations

import re

_SAFE_CSI = re.compile(r"\x1b\[[0-9;:]{0,256}m")
_CONTROLS = "\x05\x0e\x0f\x80-\x9f"
# One terminal sequence: CSI; a string (OSC, DCS, SOS, PM, APC) of at most 4096 characters on one line with its end; or
# a short escape. The last alternative takes a lone escape character, so every escape character is part of a match.
_STRING = r"[\]PX^_][^\x07\x1b\x9b\x9c\n]{0,4096}"
_SEQUENCE = re.compile(
    rf"\x1b(?:\[[0-?]{{0,256}}[ -/]{{0,16}}[@-~]|{_STRING}(?:\x07|\x1b\\|\x9c)|[ -/]{{1,16}}[0-~]|[0-Z\\^-~])"
    rf"|\x9b[0-?]{{0,256}}[ -/]{{0,16}}[@-~]|[\x1b{_CONTROLS}]"
)
# What may still become a sequence when more text arrives.
_UNFINISHED = re.compile(
    rf"(?:\x1b(?:\[[0-?]{{0,256}}[ -/]{{0,16}}|{_STRING}\x1b?|[ -/]{{0,16}})|\x9b[0-?]{{0,256}}[ -/]{{0,16}})\Z"
)
_SPECIAL = re.compile(rf"[\x1b{_CONTROLS}]")


def _keep_colours(match: re.Match[str]) -> str:
    sequence = match.group()
    return sequence if _SAFE_CSI.fullmatch(sequence) else ""


def clean_text(text: str) -> str:
    """Return *text* with colours (SGR), ``\\r`` and ``\\b`` kept and every other terminal sequence removed.

    Cursor movement, window titles, links, clipboard access, device queries and character set switches are removed: a
    terminal front end would obey them. Text without such characters is returned unchanged at next to no cost.
    """
    plain = "\x1b" not in text and "\x05" not in text and "\x0e" not in text and "\x0f" not in text
    if plain and (text.isascii() or not _SPECIAL.search(text)):
        return text
    return _SEQUENCE.sub(_keep_colours, text)


MOST_CLEANED = 4 * 1024**2
"""Characters of one text, Markdown or formula that are searched at a time: the kernel does nothing else meanwhile."""
MOST_SIGNS = 100_000
"""Characters of one Markdown text or formula that a search stops at."""
_SIGNS = "<!\\:&"


def shortened(text: str, limit: int) -> str:
    """Return *text*, or its beginning and end with a line between them when it has more than *limit* characters."""
    if len(text) <= limit:
        return text
    half = max(1, limit // 2)
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def clean_display(text: str) -> str:
    """Return :func:`clean_text` of a text that is shown whole; of a large one that costs time, beginning and end."""
    if len(text) > MOST_CLEANED and not (text.isascii() and not any(sign in text for sign in "\x1b\x05\x0e\x0f")):
        text = shortened(text, MOST_CLEANED)
    return clean_text(text)


def too_costly(text: str) -> bool:
    """True for Markdown or LaTeX that would take the kernel long to clean, and a front end longer to typeset."""
    return len(text) > MOST_CLEANED or sum(map(text.count, _SIGNS)) > MOST_SIGNS


class StreamFilter:
    """:func:`clean_text` for text that arrives in pieces; one for each stream of each cell.

    A sequence cut by the end of a piece is held back (at most about 4 KiB) until the next piece or :meth:`flush`, so
    the result does not depend on where the text was cut.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Take the next piece and return what may be shown of it now."""
        if self._held:
            text, self._held = self._held + text, ""
        at = max(text.rfind("\x1b", -4400), text.rfind("\x9b", -4400))
        if at < 0:
            return clean_text(text)
        # A string's own terminator begins with an escape character: look from the one before it as well.
        start = text.rfind("\x1b", max(0, at - 4400), at) if text[at] == "\x1b" and at == len(text) - 1 else -1
        for begin in (start, at):
            if begin >= 0 and _UNFINISHED.match(text, begin):
                text, self._held = text[:begin], text[begin:]
                break
        return clean_text(text)

    def flush(self) -> str:
        """Return what was held back, cleaned; call when the cell ends."""
        held, self._held = self._held, ""
        return clean_text(held)


def commented(code: str) -> str:
    """Return *code* as Python comments, a line that says so first: run as it stands, it does nothing anywhere.

    Every character that any front end may take for a line break begins a new comment.
    """
    # Two lines of ours: only in the first two can a comment change how a file is decoded (PEP 263).
    lines = ["Written by a cell in the sandbox.", "Read it before you take the comment signs away.", *code.splitlines()]
    return "\n".join(f"# {line}".rstrip() for line in lines) + "\n"


def one_line(text: str, limit: int = 200) -> str:
    """Return *text* as a single line fit for a message of ours: no controls, no invisible or direction characters."""
    cleaned = "".join(c if c.isprintable() else " " for c in clean_text(text[: 4 * limit]))
    cleaned = " ".join(cleaned.split())
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def clean_prompt(text: str, limit: int) -> str:
    """Return an ``input()`` prompt of a guest: no terminal sequence at all, at most *limit* characters."""
    return re.sub(r"\x1b\[[0-9;:]*m", "", clean_text(text))[:limit]


# Macros that set links, attributes, styles or classes, load code, or build the name of another macro.
_MACRO = re.compile(
    r"\\(href|url|require|class|cssId|style|data|mmlToken|bbox|includegraphics|csname|html[A-Za-z]*)(?![A-Za-z])"
)
_PLAIN_HREF = re.compile(r"\\href\s{0,8}\{https?://[\w.~:/?#@!&+,;=%-]{1,2000}\}")
ZERO_WIDTH = "\u200b"


def _letter(letter: str) -> str:
    code = f"&#0*(?:{ord(letter)}|{ord(letter.upper())});?|&#x0*(?:{ord(letter):x}|{ord(letter.upper()):x});?"
    return f"(?:{letter}|{code})"


_JUNK = r"(?:[\x00-\x20]|&(?:tab|newline);|&#0*(?:9|10|13);?|&#x0*(?:9|a|d);?){0,8}"
_WORDS = "|".join(_JUNK.join(_letter(c) for c in scheme) for scheme in ("javascript", "vbscript", "data"))
_SCHEME = re.compile(
    rf"(?<![A-Za-z])((?:{_WORDS}){_JUNK})"
    r"(\\?:|&colon;|&#0*58;?|&#x0*3a;?)",
    re.IGNORECASE,
)
_IMAGE_DATA = re.compile(r"image/(?:png|jpe?g|gif|webp)[;,]", re.IGNORECASE)


def _defuse_scheme(match: re.Match[str]) -> str:
    after = match.string[match.end() : match.end() + 1]
    # A word "data:" in prose or code is followed by a blank; a link is not.
    harmless = not after or after.isspace() or _IMAGE_DATA.match(match.string, match.end()) is not None
    if match[1].lower() == "data" and match[2] == ":" and harmless:
        return match.group()
    return match[1] + ZERO_WIDTH + match[2]


def _defuse_macro(match: re.Match[str]) -> str:
    if match[1] == "href" and _PLAIN_HREF.match(match.string, match.start()):
        return match.group()
    return "\\" + ZERO_WIDTH + match[1]


def defuse_schemes(text: str) -> str:
    """Return *text* in which no ``javascript:``, ``vbscript:`` or ``data:`` can be the start of a link.

    An invisible zero-width space before the colon takes their meaning; entities and white space inside the word are
    seen through. ``data:`` of a bitmap is kept.
    """
    return _SCHEME.sub(_defuse_scheme, text)


def defuse_macros(text: str) -> str:
    """Return *text* in which no TeX macro sets links (other than plain http ones), attributes or styles, or loads code.

    Front ends typeset formulas in HTML and labels too. The name of such a macro is cut off from its backslash.
    """
    return _MACRO.sub(_defuse_macro, text) if "\\" in text else text


def clean_latex(text: str) -> str:
    """Return LaTeX without links to anything but plain http(s) and without macros that set attributes or load code."""
    text = defuse_macros(text)
    # Some front ends put the source into HTML as it is; a blank after "<" means nothing in TeX.
    return defuse_schemes(re.sub(r"<(?=[A-Za-z/!?])", "< ", text))


_INERT_TAG = re.compile(
    r"<(?=[A-Za-z/!?])(?!/?(?:b|i|u|s|em|strong|code|kbd|samp|var|mark|small|sub|sup|del|ins|br|hr|p|div|span|pre|blockquote|"
    r"ul|ol|li|dl|dt|dd|h[1-6]|table|thead|tbody|tfoot|tr|th|td|caption|details|summary)\s{0,4}/?>)",
    re.IGNORECASE,
)
_HANDLER = re.compile(r"\b(on[a-z]{3,30})(?=\s*=)", re.IGNORECASE)
_IMAGE = re.compile(r"!(?=\[)(?!\[[^\[\]]{0,1000}\]\(data:image/(?:png|jpe?g|gif|webp);base64,[A-Za-z0-9+/=]*[)\s])")


def clean_markdown(text: str, *, network_allowed: bool = False) -> str:
    """Return Markdown that renders the same but can carry no active HTML, script link or (without network) remote
    image.

    Tags without attributes such as ``<b>`` or ``<br>`` stay; any other ``<`` before a letter gets an invisible
    zero-width space behind it and shows as text, in code as well. The result does not depend on how a renderer parses
    Markdown.
    """
    text, tags = _INERT_TAG.subn("<" + ZERO_WIDTH, text)
    if tags:  # a second lock, should a renderer drop the character that is the first
        text = _HANDLER.sub(rf"\1{ZERO_WIDTH}", text)
    if not network_allowed and "![" in text and ("](" in text or "]:" in text):
        text = _IMAGE.sub("!" + ZERO_WIDTH, text)
    return defuse_schemes(defuse_macros(text))
