"""The first moments of a sandbox: spawn the guest, boot it, observe it from both sides, and state the facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agently_kernel.contract.bundle import normalise_version
from agently_kernel.contract.errors import SandboxError, SandboxLaunchError
from agently_kernel.contract.isolation import (
    Evidence,
    IsolationFacts,
    LimitFact,
    SafetyClass,
    SandboxFacts,
    ToolchainFact,
)
from agently_kernel.contract.protocols import Sandbox
from agently_kernel.guest import wire
from agently_kernel.sandbox.launch import BootConfig, guest_argv
from agently_kernel.sandbox.observe import Challenge
from agently_kernel.sandbox.session import FrameHandler, GuestSession, SessionEnd

Network = Literal["none", "inherited", "filtered", "unknown"]

TOOLS_DEADLINE = 10.0
SETTLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class BootPlan:
    """How a guest is brought up; the names are those of ``SandboxResource.open``."""

    python: str
    guest_dir: str
    safety_class: SafetyClass
    network: Network
    local: bool
    own_kernel: bool
    write_roots: tuple[str, ...]
    tools: Mapping[str, Sequence[str]]
    deadline: float


class _Greeting:
    """Takes the guest's first two frames and lets everything after them through."""

    def __init__(self, handler: FrameHandler) -> None:
        self._handler = handler
        loop = asyncio.get_running_loop()
        self.hello: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.probe: asyncio.Future[tuple[str, bytes]] = loop.create_future()

    def __call__(self, op: str, header: dict[str, Any], payload: bytes) -> Awaitable[None] | None:
        if op == "hello" and not self.hello.done():
            self.hello.set_result(header)
            return None
        if op == "probe" and self.hello.done() and not self.probe.done():
            self.probe.set_result((header["nonce"], payload))
            return None
        if not self.probe.done():
            raise wire.WireError(f"op {op} came before the guest had reported")
        return self._handler(op, header, payload)


async def boot_guest(
    sandbox: Sandbox,
    config: BootConfig,
    plan: BootPlan,
    *,
    handler: FrameHandler,
    on_end: Callable[[SessionEnd], None],
    on_session: Callable[[GuestSession], None],
    on_booting: Callable[[], None],
    on_up: Callable[[], Awaitable[None]],
) -> SandboxFacts:
    """Bring the guest of *sandbox* up within the plan's deadline and return the facts of the sandbox.

    *on_session* gets the session before it starts; *on_booting* is called when all has been sent that the guest needs
    to boot, which then takes its time without us; *on_up* runs as soon as the guest can take messages, before the
    observation from outside. Raises SandboxLaunchError; the caller then closes session and sandbox.
    """
    started = time.monotonic()
    sessions: list[GuestSession] = []

    async def bring_up() -> SandboxFacts:
        greeting = _Greeting(handler)
        argv = guest_argv(plan.python, plan.guest_dir)
        process = await sandbox.spawn(argv, env=config.interpreter.env, cwd=config.interpreter.cwd)
        session = GuestSession(process, greeting, on_end)
        sessions.append(session)
        on_session(session)
        session.start()
        hello, inside = await _greet(session, greeting, config, plan, on_booting)
        await on_up()
        outside = await sandbox.observe()
        toolchains = await check_tools(session, plan.tools, TOOLS_DEADLINE) if plan.tools else {}
        toolchains["python"] = _python_fact(hello["python"])
        isolation = IsolationFacts.from_evidence((*outside, *inside))
        return SandboxFacts(
            provider_id=sandbox.provider_id,
            safety_class=plan.safety_class,
            isolation=isolation,
            limits=_with_own_kernel(await sandbox.limits(), hello["stage1"]),
            network="unknown" if plan.network == "none" and not isolation.network_blocked else plan.network,
            toolchains=toolchains,
            mechanism={**sandbox.mechanism(), "stage1": hello["stage1"]},
            observed_at=time.time(),
        )

    try:
        return await asyncio.wait_for(bring_up(), plan.deadline)
    except asyncio.TimeoutError:
        remedy = "Try again when the machine is less loaded."
        raise await _launch_error(sandbox, sessions, f"did not report within {plan.deadline:g} s", remedy) from None
    except SandboxLaunchError:
        raise
    except (wire.WireError, ValueError) as error:
        raise await _launch_error(sandbox, sessions, f"reported something unfit ({error})", "") from error
    except SandboxError as error:
        what = f"ended after {time.monotonic() - started:.1f} s before it had reported"
        raise await _launch_error(sandbox, sessions, what, "") from error


def _with_own_kernel(limits: Sequence[LimitFact], stage1: Mapping[str, Any]) -> tuple[LimitFact, ...]:
    """Return *limits* with the one on processes that the sandbox's own kernel holds, as stage1 read it back."""
    report = stage1.get("superuser")
    held = report.get("processes") if isinstance(report, Mapping) else None
    if not isinstance(held, int) or held <= 0:
        return tuple(limits)
    return tuple(
        limit.model_copy(update={"mechanism": "gvisor", "observed": held <= limit.limit})
        if limit.name == "processes" and limit.mechanism == "none" and limit.limit is not None else limit
        for limit in limits
    )


async def _greet(
    session: GuestSession, greeting: _Greeting, config: BootConfig, plan: BootPlan, on_booting: Callable[[], None]
) -> tuple[dict[str, Any], tuple[Evidence, ...]]:
    """Send the boot message with a challenge; return ``hello`` and the evidence of the inside attempts."""
    roots = [*dict.fromkeys(plan.write_roots), "/tmp", "/dev/shm"]  # noqa: S108 - paths inside the sandbox
    with Challenge(
        config.nonce, write_roots=roots, local=plan.local, own_kernel=plan.own_kernel
    ) as challenge:
        await session.send(config.header(challenge.keys))
        on_booting()
        hello = await _unless_ended(session, greeting.hello)
        if hello["nonce"] != config.nonce or hello["protocol"] != wire.PROTOCOL:
            raise wire.WireError("the guest's greeting does not fit this host")
        nonce, payload = await _unless_ended(session, greeting.probe)
        return hello, challenge.evaluate(payload, nonce)


async def _unless_ended(session: GuestSession, future: asyncio.Future[Any]) -> Any:
    """Await *future*, but never longer than the guest lives. Raises SandboxDied."""
    ended = asyncio.ensure_future(session.wait_ended())
    try:
        await asyncio.wait({future, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended.cancel()
    if not future.done():
        raise session.died()
    return future.result()


async def _launch_error(sandbox: Sandbox, sessions: list[GuestSession], what: str, remedy: str) -> SandboxLaunchError:
    words, code = "", None
    if sessions:
        end = await sessions[0].wait_ended(SETTLE_SECONDS)  # lets the last words and the exit code arrive
        words = sessions[0].diagnostics.strip()[-4000:]
        if end is not None:
            code = end.returncode
            what += f" ({end.violation})" if end.violation else f" (exit code {code})" if code is not None else ""
    message = f"The first program of the {sandbox.provider_id} sandbox {what}."
    if words:
        message += f" It said: {words[-1500:]}"
    return SandboxLaunchError(message, details={"remedy": remedy, "diagnostics": words, "returncode": code})


async def check_tools(
    session: GuestSession, tools: Mapping[str, Sequence[str]], timeout: float
) -> dict[str, ToolchainFact]:
    """Run each tool's version command inside; return what was observed, by tool id.

    Raises SandboxDied, asyncio.TimeoutError, wire.WireError.
    """
    names = list(tools)
    _, payload = await session.request({"op": "tools", "argvs": [list(tools[name]) for name in names]}, timeout=timeout)
    answers = wire.loads(payload)
    if not isinstance(answers, list) or len(answers) != len(names):
        raise wire.WireError("the guest did not answer for every tool")
    found = {}
    for name, answer in zip(names, answers, strict=True):
        present = isinstance(answer, dict) and answer.get("available") is True
        text = str(answer.get("output") or "")[:500] if isinstance(answer, dict) else ""
        version = None
        if present:
            try:
                version = normalise_version(text)
            except ValueError:
                present = False  # it answers, but not with a version: not the tool that was asked for
        found[name] = ToolchainFact(tool=name, available=present, version=version, detail=text[:200])
    return found


def _python_fact(text: str) -> ToolchainFact:
    try:
        return ToolchainFact(tool="python", available=True, version=normalise_version(text))
    except ValueError:
        return ToolchainFact(tool="python", available=True, detail="its version could not be read")
