"""SYNTHETIC sandboxes for tests of the host side: a plain subprocess without any isolation, with the real guest or with
a scripted one that behaves as a test wants it to."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agently_kernel.contract.base import sha256_digest
from agently_kernel.contract.bundle import CodeExecutionBundle, CodeExecutionFile, CodeExecutionStep, ExecutionForm
from agently_kernel.contract.isolation import Evidence, LimitFact, SafetyClass
from agently_kernel.contract.outputs import OutputEvent, StreamOutput
from agently_kernel.contract.result import CodeExecutionResult, DeathCause
from agently_kernel.contract.workspace import (
    SANDBOX_PATHS,
    ManifestFile,
    MaterializationManifest,
    TaskWorkspaceAccessGrant,
    WorkspaceRoot,
)
from agently_kernel.guest import wire
from agently_kernel.sandbox.deaths import sandbox_death
from agently_kernel.sandbox.launch import BootConfig, InterpreterBoot, SeccompBoot
from agently_kernel.sandbox.process import PipedProcess, spawn_process
from agently_kernel.sandbox.resource import SandboxResource

SCRIPT_PRELUDE = """
import json, os, sys, time
sys.path.insert(0, {guest!r})
import wire
OUT = 1
decoder = wire.Decoder(wire.TO_GUEST)
pending = []
def raw(data):
    view = memoryview(data)
    while view:
        view = view[os.write(OUT, view):]
def send(op, payload=b"", **fields):
    raw(wire.encode(dict(fields, op=op), payload))
def receive():
    while True:
        while not pending:
            data = os.read(0, 65536)
            if not data:
                os._exit(0)
            pending.extend(decoder.feed(data))
        header, payload = pending.pop(0)
        if header["op"] != "ping":
            return header, payload
        send("pong", request=header["request"])
def boot(probe=b"[]"):
    header, _ = receive()
    assert header["op"] == "boot"
    send("hello", protocol=wire.PROTOCOL, nonce=header["nonce"], python="3.11.7", pid=1, stage1={{}})
    send("probe", probe, nonce=header["nonce"])
    return header
def start():
    header, _ = receive()
    assert header["op"] == "start", header
    g = header["generation"]
    send("interpreter", generation=g, state="started", pid=2)
    send("interpreter", generation=g, state="ready", mode="plain", info={{}})
    return g
def cell():
    header, _ = receive()
    while header["op"] == "give_up":  # a question that was not answered in time
        header, _ = receive()
    assert header["op"] == "execute", header
    return header
def done(cell, status="ok", **content):
    send("done", json.dumps(content).encode(), cell=cell, status=status)
"""


class PlainSandbox:
    """SYNTHETIC: no isolation at all. ``script`` replaces the guest's first program."""

    provider_id = "synthetic-plain"

    def __init__(self, folder: Path, guest: Path, script: str | None = None) -> None:
        self.folder = folder
        self.guest = guest
        self.script = script
        self.process: PipedProcess | None = None
        self.closed = 0
        self.explanation: DeathCause | None = None
        self.paths = {name: str(folder / Path(path).name) for name, path in SANDBOX_PATHS.items()}
        for path in self.paths.values():
            Path(path).mkdir(parents=True, exist_ok=True)

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> PipedProcess:
        if self.script is not None:
            program = self.folder / "scripted_guest.py"
            program.write_text(SCRIPT_PRELUDE.format(guest=str(self.guest)) + self.script)
            argv = [argv[0], "-I", "-S", "-u", str(program)]
        self.process = await spawn_process(argv, env=env, cwd=cwd)
        return self.process

    def open_directory(self, area: Literal["build", "output"]) -> int | None:
        return os.open(self.paths[area], os.O_PATH | os.O_DIRECTORY)

    async def observe(self) -> tuple[Evidence, ...]:
        return (
            Evidence(
                subject="process_contained", check="synthetic", value=False, source="outside", observed_at=time.time()
            ),
        )

    async def limits(self) -> tuple[LimitFact, ...]:
        return (LimitFact(name="memory", limit=None, mechanism="none"),)

    def mechanism(self) -> Mapping[str, Any]:
        return {"synthetic": True}

    async def explain_death(self, returncode: int | None) -> DeathCause:
        return self.explanation or sandbox_death(returncode)

    async def is_alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def close(self) -> None:
        self.closed += 1
        if self.process is not None:
            self.process.close()
            await self.process.wait()


class Harness:
    """One plain sandbox with its resource, and short forms to run code in it."""

    def __init__(self, folder: Path, guest: Path) -> None:
        self.folder = folder
        self.guest = guest
        self.sandbox: PlainSandbox
        self.resource: SandboxResource
        self.events: list[OutputEvent] = []
        self.background: list[OutputEvent] = []
        self._count = 0
        self.grant = TaskWorkspaceAccessGrant(
            grant_id="grant-1",
            task_workspace_id="ws-1",
            execution_id="x",
            mode="snapshot",
            issued_at=1.0,
            roots=(
                WorkspaceRoot(name="build", sandbox_path=SANDBOX_PATHS["build"], access="read_write", backing="tmpfs"),
            ),
        )

    async def open(self, script: str | None = None, **options: Any) -> SandboxResource:
        """Open a resource; ``script`` is the body of a scripted guest."""
        self.sandbox = PlainSandbox(self.folder, self.guest, script)
        mode = options.pop("mode", "auto")
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        boot = BootConfig(
            seccomp=SeccompBoot(enabled=False),
            interpreter=InterpreterBoot(env=env, mode=mode, cwd=self.sandbox.paths["build"], roots=self.sandbox.paths),
        )
        self.resource = await SandboxResource.open(
            self.sandbox,
            safety_class=SafetyClass.TRUSTED_LOCAL,
            python=sys.executable,
            boot=boot,
            network="unknown",
            guest_dir=str(self.guest),
            paths=self.sandbox.paths,
            **options,
        )
        self.resource.background_sink = self.background.append
        return self.resource

    def bundle(self, code: str, **fields: Any) -> tuple[CodeExecutionBundle, MaterializationManifest]:
        """Make a bundle of one file and write it where the sandbox sees it."""
        self._count += 1
        name = fields.pop("entrypoint", "cell.py")
        data = code.encode()
        fields.setdefault("form", ExecutionForm.SESSION)
        bundle = CodeExecutionBundle.create(
            language="python", files=(CodeExecutionFile(path=name, content=data),), entrypoint=name, **fields
        )
        folder = Path(self.sandbox.paths["source"]) / bundle.bundle_id
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
        inside = f"{SANDBOX_PATHS['source']}/{bundle.bundle_id}"
        manifest = MaterializationManifest(
            grant_id="grant-1",
            execution_id=f"run{self._count}",
            task_workspace_id="ws-1",
            bundle_id=bundle.bundle_id,
            bundle_digest=bundle.bundle_digest,
            source_dir=inside,
            entrypoint=f"{inside}/{name}",
            files=(
                ManifestFile(
                    path=name,
                    sandbox_path=f"{inside}/{name}",
                    role="source",
                    sha256=sha256_digest(data),
                    size=len(data),
                ),
            ),
        )
        return bundle, manifest

    async def run(
        self, code: str = "", *, timeout: float | None = None, cell: str = "", **fields: Any
    ) -> CodeExecutionResult:
        """Run a session cell."""
        handler = fields.pop("input_handler", None)
        sink = fields.pop("sink", self.events.append)
        bundle, manifest = self.bundle(code, **fields)
        return await self.resource.async_execute_code(
            bundle, manifest, self.grant, timeout, sink=sink, cell=cell, input_handler=handler
        )

    async def plan(
        self, code: str, steps: Sequence[CodeExecutionStep], timeout: float | None = None, **fields: Any
    ) -> CodeExecutionResult:
        """Run an argv plan: all steps but the last are build steps."""
        bundle, manifest = self.bundle(
            code, form=ExecutionForm.ONE_SHOT, build_steps=tuple(steps[:-1]), run_step=steps[-1], **fields
        )
        return await self.resource.async_execute_code(bundle, manifest, self.grant, timeout, sink=self.events.append)

    def text(self, name: str = "stdout") -> str:
        """Return the text of one stream as the sink got it."""
        return "".join(e.text for e in self.events if isinstance(e, StreamOutput) and e.name == name)

    async def close(self) -> None:
        if hasattr(self, "resource"):
            await self.resource.aclose(grace=0.5)


async def until(condition: Any, seconds: float = 5.0) -> None:
    """Wait until *condition* () holds; fail after *seconds*."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        await asyncio.sleep(0.005)


def frame(op: str, payload: bytes = b"", **fields: Any) -> bytes:
    """Return an encoded frame."""
    return wire.encode({"op": op, **fields}, payload)


def token() -> str:
    """Return a random word."""
    return secrets.token_hex(4)
