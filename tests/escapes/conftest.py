"""The planted things, and the one run of all attempts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "mechanism")]

from planted import AREA_MIB, FILE_MIB, MEMORY_MIB, PROCESSES, Outcome, Planted  # noqa: E402

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(scope="package")
def planted() -> Iterator[Planted]:
    folder = Path(tempfile.mkdtemp(prefix="agently-planted-"))
    folder.chmod(0o755)
    things = Planted(folder)
    try:
        yield things
    finally:
        things.close()
        shutil.rmtree(folder)


@pytest.fixture(scope="package")
def outcome(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Run all attempts once in one real sandbox, while a second session is open beside it."""
    from bubblewrap_session import opened

    from agently_kernel.contract.isolation import ResourceLimits

    limits = ResourceLimits(
        memory_bytes=MEMORY_MIB << 20, processes=PROCESSES, file_size_bytes=FILE_MIB << 20, open_files=256,
        scratch_bytes=AREA_MIB << 20, output_bytes=AREA_MIB << 20,
    )
    store = tmp_path_factory.mktemp("store")

    async def run() -> Outcome:
        async with opened(store / "other") as other, opened(
            store / "own", limits=limits, config={"extra_read_only": [str(planted.programs)]}
        ) as session:
            await other.run(f"open('/workspace/output/secret', 'w').write({planted.facts['secret']!r})")
            facts = {
                **planted.facts, "workspace": str(session.workspace.runtime_path),
                "other_session": f"/proc/{other.resource.sandbox.pid}/root/workspace/output/secret",  # type: ignore[attr-defined]
            }
            files = {
                "attempts.py": (Path(__file__).parent / "attempts.py").read_bytes(),
                "facts.json": json.dumps(facts).encode(),
            }
            result = await session.run_program(
                files, ("python3", "workspace://source/attempts.py", "workspace://source/facts.json"), timeout=90
            )
            text = result.stdout.text
            assert result.returncode == 0, (text, result.stderr.text, result.message)
            modes = {
                item.path: os.stat(item.stored_path).st_mode & 0o7777 for item in session.report.outputs
            }
            return Outcome(text, facts, modes)

    # The secret also lies in the environment of this process, which a sandbox must not be able to look at.
    os.environ["AGENTLY_TEST_SECRET"] = planted.facts["secret"]
    try:
        return asyncio.run(run())
    finally:
        del os.environ["AGENTLY_TEST_SECRET"]
