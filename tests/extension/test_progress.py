"""The line below a program that shows nothing: when it appears, what it says, how it ends."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from kernel_session import KernelSession
from magic_homes import answering, environment

from agently_exec import progress
from agently_exec.progress import Progress
from agently_kernel.contract.events import ExecutionResourceEvent
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.policy_text import build_request


class Page:
    """What a front end shows of a cell's displays."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str]] = []

    def send(self, kind: str, content: dict[str, Any]) -> None:
        self.sent.append((kind, content["transient"]["display_id"], content["data"]["text/plain"]))

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.sent]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.02)


def event(kind: Any, phase: str = "") -> ExecutionResourceEvent:
    return ExecutionResourceEvent(event_id="1", event_type=kind, timestamp=0.0, provider_id="docker", phase=phase)


def result(status: ExecutionStatus) -> CodeExecutionResult:
    return CodeExecutionResult(status=status, bundle_id="b", bundle_digest="sha256:0", started_at=0.0, seconds=1.0)


async def test_a_quick_program_has_no_line() -> None:
    page = Page()
    async with Progress(page.send) as line:
        line.ended(result(ExecutionStatus.SUCCESS))
    assert page.sent == []


async def test_a_program_that_shows_something_has_no_line() -> None:
    page = Page()
    async with Progress(page.send) as line:
        line.output()
        await asyncio.sleep(0.15)
    assert page.sent == []


async def test_one_display_tells_what_goes_on_and_how_it_ended() -> None:
    page, asked = Page(), build_request("network", "data.example.org")
    attached = True
    async with Progress(page.send, attached=lambda: attached) as line:
        line.question("opened", asked, None, "")
        await asyncio.sleep(0.12)
        attached = False
        await asyncio.sleep(0.06)
        line.question("closed", asked, None, "panel")
        phases = (("ensuring", "provider_probe"), ("progress", "image_pull_started"), ("progress", "booting"))
        for kind, phase in phases:
            line.event(event(f"execution_resource.{kind}", phase))
            await asyncio.sleep(0.06)
        line.event(event("execution_resource.ready"))
        await asyncio.sleep(0.06)
        line.ended(result(ExecutionStatus.TIMED_OUT))
    assert [kind for kind, _, _ in page.sent] == ["display_data"] + ["update_display_data"] * (len(page.sent) - 1)
    assert len({display for _, display, _ in page.sent}) == 1
    said = list(dict.fromkeys(text.split(" · ")[0] for text in page.texts))
    assert said == [
        "… waiting for your answer in the sandbox panel", "… waiting for your answer in the input box",
        "… choosing a provider", "… downloading a container image", "… opening a sandbox (docker)",
        "… the program runs", "✗ timed out",
    ]


async def test_what_could_not_be_run_says_so_and_leaves_no_task() -> None:
    page = Page()
    with pytest.raises(ValueError, match="no"):
        async with Progress(page.send):
            await asyncio.sleep(0.1)
            raise ValueError("no")
    assert page.texts[-1].startswith("✗ not run · ")
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_in_an_ordinary_kernel_the_line_is_live(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    far = tmp_path_factory.mktemp("far") / "far.txt"
    far.write_text("from far")
    with KernelSession(tmp_path, kernel="python3", env=environment(tmp_path_factory.getbasetemp())) as session:
        session.run("%load_ext agently_exec")
        quick = session.run("%%agently_exec\nprint(1)\nimport time; time.sleep(3)")
        assert not [m for m in quick.messages if "display_data" in m["msg_type"]]
        say = answering(session, "allow")

        def late(run: Any) -> None:
            if run.prompts and time.monotonic() - began > 4:
                say(run)

        began = time.monotonic()
        program = f"%%agently_exec --input {far}\nimport time; time.sleep(3)\nprint(2)"
        slow = session.run(program, during=late, allow_stdin=True)
        shown = [m for m in slow.messages if "display_data" in m["msg_type"]]
        texts = [m["content"]["data"]["text/plain"] for m in shown]
        assert texts[0].startswith("… waiting for your answer in the input box · ")
        assert any(text.startswith("… the program runs · ") for text in texts)
        assert re.fullmatch(r"✓ success in bubblewrap · \d+\.\d s", texts[-1])
        assert [m["msg_type"] for m in shown] == ["display_data"] + ["update_display_data"] * (len(shown) - 1)
        assert slow.text() == "2\n"
