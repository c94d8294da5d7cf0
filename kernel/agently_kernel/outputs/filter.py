"""The filter that everything a guest shows passes on its way to a front end; one object for each kernel session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from agently_kernel.contract.outputs import CommOutput
from agently_kernel.outputs import text
from agently_kernel.outputs.bundle import BundleFilter
from agently_kernel.outputs.policy import (
    METADATA_KEYS,
    FilteredBundle,
    FilteredComm,
    FilteredError,
    FilteredPayloads,
    OutputLimits,
    OutputPolicy,
    Withheld,
    withheld,
)
from agently_kernel.outputs.widgets import WidgetFilter

_MAX_CELLS = 1024
_MOST_PAGE = 1024**2
RESERVED_DISPLAY_PREFIX = "agently:"


class _Cell:
    """What one cell has shown: outputs since the last clear, their size, and the kinds that were announced."""

    __slots__ = ("announced", "chars", "full", "outputs")

    def __init__(self) -> None:
        self.outputs = 0
        self.chars = 0
        self.full = False
        self.announced: set[str] = set()


class OutputFilter:
    """Turns untrusted output of one guest into output that may be published. Pure: nothing is read, written or sent.

    Not thread-safe; call it on the kernel's loop. Counts are kept for the last 1024 cells.
    """

    def __init__(
        self,
        policy: OutputPolicy = OutputPolicy.FRAMED,
        *,
        network_allowed: bool = False,
        limits: OutputLimits | None = None,
    ) -> None:
        self.policy = OutputPolicy(policy)
        self.limits = limits or OutputLimits()
        self._granted: set[str] = set()
        self._cells: OrderedDict[str, _Cell] = OrderedDict()
        self._widgets = WidgetFilter(self.policy, self._granted, self.limits, self._widget_html, self._widget_output)
        self._bundles = BundleFilter(
            self.policy, network_allowed, self._granted, self._widgets.is_shown, self.limits.bundle_chars
        )

    # -- approvals -------------------------------------------------------------------------------------------------
    def allow(self, kind: str) -> None:
        """Remember for this session that *kind* (``Withheld.kind``) was approved."""
        if kind:
            self._granted.add(kind)

    def disallow(self, kind: str) -> list[str]:
        """Take an approval of *kind* back; return the ids of comms that are open by it, which are forgotten."""
        if kind not in self._granted:
            return []
        self._granted.discard(kind)
        return self._widgets.withdraw(kind)

    @property
    def granted(self) -> frozenset[str]:
        """The kinds that were approved in this session."""
        return frozenset(self._granted)

    # -- displays --------------------------------------------------------------------------------------------------
    def bundle(self, data: Mapping[str, Any], metadata: Mapping[str, Any], *, kind: str, cell: str) -> FilteredBundle:
        """Return what of a MIME bundle may be shown.

        *kind* is display_data, execute_result or update_display_data; updates replace an output and are not counted.
        When the cell has shown too much, ``data`` is empty and the first such bundle carries a notice.
        """
        state = self._cell(cell)
        loss, chars = self._too_much(data)
        if kind in ("display_data", "execute_result"):
            state.outputs += 1
            state.chars += chars
            if state.outputs > self.limits.cell_outputs or state.chars > self.limits.cell_chars:
                first, state.full = not state.full, True
                reason = f"Further outputs of this cell were withheld after {state.outputs - 1}. Use clear_output()."
                rest = Withheld("", "", reason)
                return FilteredBundle({}, {}, (rest,), rest.line if first else "")
        if loss is not None:
            return FilteredBundle({"text/plain": loss.line}, {}, (loss,))
        shown, lost = self._bundles.filter(data)
        notice = self._notice(state, lost)
        if not shown and lost:
            shown, notice = {"text/plain": lost[0].line}, ""
        return FilteredBundle(shown, _metadata(metadata, shown), tuple(lost), notice)

    def _too_much(self, data: Mapping[str, Any]) -> tuple[Withheld | None, int]:
        """Return why a bundle is not even looked at, and how many characters the one that is shown counts for."""
        if len(data) > self.limits.bundle_kinds:
            most = self.limits.bundle_kinds
            loss = Withheld("", "", f"An output of {len(data)} MIME types was withheld: {most} are the most.")
            return loss, len(loss.line)
        chars = _size(data)
        if chars > self.limits.bundle_chars:
            most = self.limits.bundle_chars // 1024**2
            reason = (
                f"An output of {chars // 1024**2} MiB was withheld: {most} MiB is the most. Write it below output/."
            )
            loss = Withheld("", "", reason)
            return loss, len(loss.line)
        return None, chars

    def display_id(self, guest_id: str | None) -> str | None:
        """Return the id under which a display may be updated, or None: ids of the kernel's own displays are refused."""
        if not guest_id or guest_id.startswith(RESERVED_DISPLAY_PREFIX) or len(guest_id) > 256:
            return None
        return guest_id if guest_id.isprintable() else None

    def clear(self, cell: str) -> None:
        """Note that the cell's outputs were cleared: its count starts again."""
        state = self._cell(cell)
        state.outputs = state.chars = 0
        state.full = False

    # -- text ------------------------------------------------------------------------------------------------------
    def error(self, ename: str, evalue: str, traceback: Sequence[str]) -> FilteredError:
        """Return an exception's fields cleaned and bounded; of a long traceback the beginning and the end are kept."""
        limit = self.limits.error_chars
        lines = list(map(str, traceback))
        if sum(map(len, lines)) > limit or len(lines) > 1000:
            if len(lines) > 41:
                lines = [*lines[:20], "… part of the traceback was left out …", *lines[-20:]]
            lines = [text.shortened(line, limit // len(lines)) for line in lines]
        # shortened before it is cleaned: what is not shown costs nothing
        evalue = text.clean_text(text.shortened(str(evalue), limit))
        return FilteredError(text.one_line(str(ename)), evalue, list(map(text.clean_text, lines)))

    def prompt(self, prompt: str) -> str:
        """Return the prompt of an ``input()`` without terminal sequences; at most as long as the limit."""
        return text.clean_prompt(prompt[: 16 * self.limits.prompt_chars], self.limits.prompt_chars)

    # -- replies ---------------------------------------------------------------------------------------------------
    def payloads(self, payloads: Sequence[Any], *, cell: str = "") -> FilteredPayloads:
        """Return the payloads that may go into an execute_reply: pages as text, next inputs as new cells.

        A next input never replaces the cell that runs, and before its approval it is a comment from the first line to
        the last; ``ask_exit``, editors and unknown payloads are dropped.
        """
        kept: list[dict[str, Any]] = []
        lost: list[Withheld] = []
        for payload in payloads[:64]:
            source = payload.get("source") if isinstance(payload, dict) else None
            if source == "page":
                page = payload.get("data")
                plain = _page(page if isinstance(page, dict) else {})
                start = payload.get("start", 0)
                start = start if isinstance(start, int) and 0 <= start < 10**6 else 0
                kept.append({"source": "page", "data": {"text/plain": plain}, "start": start})
            elif source == "set_next_input":
                if not isinstance(payload.get("text"), str):
                    continue
                code = text.clean_text(payload["text"][: self.limits.error_chars])
                if self.policy is not OutputPolicy.TRUSTED and "set_next_input" not in self._granted:
                    code = text.commented(code)
                    reason = "The code that the cell wrote into a new cell is commented out."
                    lost.append(withheld("set_next_input", "", reason))
                kept.append({"source": "set_next_input", "text": code, "replace": False})
        return FilteredPayloads(kept, tuple(lost), self._notice(self._cell(cell), lost) if cell else "")

    def user_expressions(self, expressions: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answers to ``user_expressions`` with their bundles filtered; nothing is framed there.

        All answers together may have a quarter of what one output may have.
        """
        result: dict[str, Any] = {}
        left = self.limits.bundle_chars // 4
        for name, answer in list(expressions.items())[:256]:
            if not isinstance(answer, dict):
                continue
            left -= _size(answer)
            if left < 0:
                answer = {"ename": "OutputTooLarge", "evalue": "The answers are larger than this kernel passes on."}
            if answer.get("status") == "ok" and isinstance(answer.get("data"), dict):
                shown, _ = self._bundles.filter(answer["data"], framing=False)
                result[name] = {"status": "ok", "data": shown, "metadata": {}}
            else:
                traceback = answer.get("traceback")
                error = self.error(
                    str(answer.get("ename", "")),
                    str(answer.get("evalue", "")),
                    traceback if isinstance(traceback, list) else [],
                )
                result[name] = {
                    "status": "error",
                    "ename": error.ename,
                    "evalue": error.evalue,
                    "traceback": error.traceback,
                }
        return result

    def inspection(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the bundle of an inspect_reply: front ends show it in a tooltip, so text alone is kept, and of more
        than 1 MiB its beginning and end."""
        plain = _page(data)
        return {"text/plain": plain} if plain else {}

    # -- comms -----------------------------------------------------------------------------------------------------
    def comm_from_guest(self, event: CommOutput) -> FilteredComm:
        """Return what of a guest's comm_open, comm_msg or comm_close may go to the front end."""
        if sum(map(len, event.buffers)) > self.limits.buffer_bytes:
            reason = f"A widget message was dropped: its binary data exceed {self.limits.buffer_bytes // 1024**2} MiB."
            result = FilteredComm(None, (Withheld("", "", reason),))
        else:
            result = self._widgets.from_guest(event)
        notice = self._notice(self._cell(event.cell), list(result.withheld)) if result.withheld else ""
        return FilteredComm(result.message, result.withheld, notice)

    def comm_from_front_end(self, event: CommOutput) -> CommOutput | None:
        """Return a front end's comm message if it may go to the guest, else None."""
        return self._widgets.from_front_end(event)

    def open_comms(self) -> dict[str, str]:
        """Return the ids and targets of the guest's open comms, for comm_info_reply."""
        return self._widgets.targets()

    def new_guest(self) -> list[str]:
        """Forget cells and comms of a guest that ended; approvals stay. Returns the ids of the comms to close."""
        self._cells.clear()
        return self._widgets.reset()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _cell(self, cell: str) -> _Cell:
        state = self._cells.get(cell)
        if state is None:
            state = self._cells[cell] = _Cell()
            while len(self._cells) > _MAX_CELLS:
                self._cells.popitem(last=False)
        return state

    def _notice(self, state: _Cell, lost: Sequence[Withheld]) -> str:
        """Return one line about the first loss that this cell has not announced yet."""
        for loss in lost:
            name = loss.kind or loss.reason
            if name not in state.announced and len(state.announced) < self.limits.announced_kinds:
                # the guest chooses the names: what is remembered of them, and said about them, has an end
                state.announced.update(entry.kind or entry.reason for entry in lost)
                return loss.line
        return ""

    def _widget_html(self, source: str) -> str:
        return self._bundles.html(source)[0]

    def _widget_output(self, output: dict[str, Any]) -> dict[str, Any] | None:
        """Filter one entry of an Output widget, which has the form of a notebook's output."""
        kind = output.get("output_type")
        if kind == "stream":
            name = "stderr" if output.get("name") == "stderr" else "stdout"
            return {"output_type": "stream", "name": name, "text": text.clean_display(str(output.get("text", "")))}
        if kind == "error":
            traceback = output.get("traceback")
            error = self.error(
                str(output.get("ename", "")),
                str(output.get("evalue", "")),
                traceback if isinstance(traceback, list) else [],
            )
            return {"output_type": "error", "ename": error.ename, "evalue": error.evalue, "traceback": error.traceback}
        if kind in ("display_data", "execute_result") and isinstance(output.get("data"), dict):
            shown, lost = self._bundles.filter(output["data"])
            if not shown and lost:
                shown = {"text/plain": lost[0].line}
            given = output.get("metadata")
            result = {
                "output_type": kind,
                "data": shown,
                "metadata": _metadata(given if isinstance(given, dict) else {}, shown),
            }
            if kind == "execute_result":
                count = output.get("execution_count")
                result["execution_count"] = count if isinstance(count, int) else None
            return result
        return None


def _page(data: Mapping[str, Any]) -> str:
    """Return the text of a page or tooltip, cleaned; of a long one its beginning and end."""
    plain = data.get("text/plain", "")
    return text.clean_text(text.shortened(plain if isinstance(plain, str) else repr(plain)[:_MOST_PAGE], _MOST_PAGE))


def _metadata(metadata: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes and background hints, of the bundle and of each MIME type that is shown."""
    result: dict[str, Any] = _plain_metadata(metadata)
    for mime in shown:
        own = metadata.get(mime)
        if isinstance(own, dict) and (kept := _plain_metadata(own)):
            result[mime] = kept
    return result


def _plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key in METADATA_KEYS & metadata.keys():
        value = metadata[key]
        if key in ("width", "height"):
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 100_000:
                result[key] = value
        elif isinstance(value, bool) or value in ("light", "dark"):
            result[key] = value
    return result


def _size(data: Mapping[str, Any]) -> int:
    """Return about how many characters a bundle has: keys and strings in full, other values by their parts. A
    container counts for 64, because time and memory go with the number of them."""
    total = sum(map(len, data))
    stack: list[Any] = list(data.values())
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, dict):
            total += 64 + len(value) * 8 + sum(map(len, value))
            stack.extend(value.values())
        elif isinstance(value, list):
            total += 64 + len(value) * 8
            if value and not isinstance(value[0], int | float):
                stack.extend(value)
    return total

