"""Languages that run their source: Python (also in a session), Node.js, Bash."""

from __future__ import annotations

import json
import re
from typing import Any

from agently_kernel.contract.bundle import (
    CodeExecutionBundle,
    CodeExecutionFile,
    CodeExecutionRequest,
    CodeExecutionStep,
    CodeExecutionToolchainRequirement,
    ExecutionForm,
)
from agently_kernel.contract.errors import ConfigurationError, reasons
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.languages.indexes import package_hosts
from agently_kernel.languages.plan import (
    BUILD,
    SOURCE,
    content_key,
    gather,
    in_source,
    installs_dependencies,
    make_bundle,
    merge_toolchains,
    one_shot_only,
    step,
)

SESSION_ENTRYPOINT = "cell.py"
_PYTHON = CodeExecutionToolchainRequirement(tool="python", minimum_version="3.8")
_PYTHON_DEPENDENCIES = f"{BUILD}/.deps/python"
_ES_MODULE = re.compile(
    r"^\s*(?:import(?:\s+[\w$]|\s*[{*\"'])|export\s+(?:default|const|let|var|function|class|async)\b|export\s*[{*])",
    re.M,
)
_COPY_TREE = "require('fs').cpSync('.', process.argv[1], {recursive: true, dereference: true})"


class PythonAdapter:
    """Python: one cell in the resident interpreter, or a program of any number of files in a fresh one."""

    language_id = "python"
    aliases: tuple[str, ...] = ("py", "python3")

    def toolchain_requirements(self, request: CodeExecutionRequest) -> tuple[CodeExecutionToolchainRequirement, ...]:
        """Python 3.8 or newer, tightened by the request."""
        return merge_toolchains(self.language_id, _PYTHON, request.toolchains)

    def prepare(self, request: CodeExecutionRequest, policy: ExecutionResourcePolicy) -> CodeExecutionBundle:
        """Plan a cell (session form: the text as ``cell.py``, no steps) or a program. Raises ConfigurationError."""
        if request.form is ExecutionForm.SESSION:
            return self._cell(request)
        files, entry = gather(
            request, suffixes=(".py",), default_name=lambda _: "main.py", usual=("main.py", "__main__.py")
        )
        paths = {file.path for file in files}
        build: tuple[CodeExecutionStep, ...] = ()
        search = []
        if "requirements.txt" in paths and installs_dependencies(request):
            build = (self._install(package_hosts(self.language_id, policy)),)
            search.append(_PYTHON_DEPENDENCIES)
        folder, _, name = entry.rpartition("/")
        if name == "__main__.py" and f"{folder}/__init__.py" in paths:
            # a package: only -m gives it its name, and with that relative imports
            target = ["-m", folder.replace("/", ".")]
            search.insert(0, SOURCE)
        else:
            target = [in_source(entry)]
        env = {"PYTHONDONTWRITEBYTECODE": "1", **({"PYTHONPATH": ":".join(search)} if search else {})}
        run = step(("run", ["python3", "-u", *target, *request.args]), cwd="scratch", env=env)
        return make_bundle(
            request, language=self.language_id, files=files, entrypoint=entry, build_steps=build, run_step=run,
            toolchains=self.toolchain_requirements(request),
        )

    def _cell(self, request: CodeExecutionRequest) -> CodeExecutionBundle:
        if request.source_code is None or request.args or request.stdin is not None:
            raise ConfigurationError("a session cell is source_code alone; for args or stdin run it one_shot")
        try:
            content = request.source_code.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"the cell cannot be written as UTF-8: {error.reason}") from error
        entry = request.entrypoint or SESSION_ENTRYPOINT
        try:
            cell = CodeExecutionFile(path=entry, content=content)
        except ValueError as error:
            raise ConfigurationError(
                f"The cell cannot be run as a file: {reasons(error)}. Nothing was run; put large data into a file of "
                "its own and read it from the cell."
            ) from error
        return make_bundle(
            request, language=self.language_id, files=(cell, *request.files), entrypoint=cell.path,
            toolchains=self.toolchain_requirements(request),
        )

    @staticmethod
    def _install(hosts: tuple[str, ...]) -> CodeExecutionStep:
        """pip checks hashes by itself wherever the requirements give them."""
        argv = ["python3", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--target",
                _PYTHON_DEPENDENCIES, "--requirement", "requirements.txt"]
        return step(("build", argv), env={"PIP_CACHE_DIR": f"{BUILD}/.cache/pip"}, hosts=hosts)


class NodeAdapter:
    """Node.js: CommonJS and ES modules, with packages of a package.json."""

    language_id = "node"
    aliases: tuple[str, ...] = ("nodejs", "javascript", "js")

    def toolchain_requirements(self, request: CodeExecutionRequest) -> tuple[CodeExecutionToolchainRequirement, ...]:
        """Node 18 or newer, tightened by the request."""
        base = CodeExecutionToolchainRequirement(tool="node", minimum_version="18")
        return merge_toolchains(self.language_id, base, request.toolchains)

    def prepare(self, request: CodeExecutionRequest, policy: ExecutionResourcePolicy) -> CodeExecutionBundle:
        """Plan a program. With dependencies it is copied to the build area, where ``node_modules`` can lie beside it.

        Raises ConfigurationError.
        """
        one_shot_only(request)
        files, entry = gather(
            request, suffixes=(".js", ".mjs", ".cjs"), default_name=_node_name,
            usual=("main.mjs", "main.js", "main.cjs", "index.mjs", "index.js", "index.cjs"),
        )
        build: tuple[CodeExecutionStep, ...] = ()
        target = in_source(entry)
        by_path = {file.path: file for file in files}
        if _has_packages(by_path.get("package.json")) and installs_dependencies(request):
            place = f"{BUILD}/.app-{content_key(files, 'node')}"
            locked = "package-lock.json" in by_path or "npm-shrinkwrap.json" in by_path
            npm = ["npm", "ci" if locked else "install", "--no-audit", "--no-fund", "--prefix", place]
            build = (
                step(("build", ["node", "-e", _COPY_TREE, place])),
                step(
                    ("build", npm), cwd="build", env={"npm_config_cache": f"{BUILD}/.cache/npm"},
                    hosts=package_hosts(self.language_id, policy),
                ),
            )
            target = f"{place}/{entry}"
        run = step(("run", ["node", target, *request.args]), cwd="scratch")
        return make_bundle(
            request, language=self.language_id, files=files, entrypoint=entry, build_steps=build, run_step=run,
            toolchains=self.toolchain_requirements(request),
        )


def _node_name(source: str) -> str:
    return "main.mjs" if _ES_MODULE.search(source) else "main.js"


def _has_packages(manifest: CodeExecutionFile | None) -> bool:
    if manifest is None:
        return False
    try:
        package: Any = json.loads(manifest.content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"package.json is not JSON: {error}") from error
    return isinstance(package, dict) and bool(package.get("dependencies") or package.get("optionalDependencies"))


class BashAdapter:
    """Bash scripts; other files of the bundle lie beside the script."""

    language_id = "bash"
    aliases: tuple[str, ...] = ("sh", "shell")

    def toolchain_requirements(self, request: CodeExecutionRequest) -> tuple[CodeExecutionToolchainRequirement, ...]:
        """Any bash, tightened by the request."""
        return merge_toolchains(self.language_id, CodeExecutionToolchainRequirement(tool="bash"), request.toolchains)

    def prepare(self, request: CodeExecutionRequest, policy: ExecutionResourcePolicy) -> CodeExecutionBundle:
        """Plan a script. Raises ConfigurationError."""
        one_shot_only(request)
        files, entry = gather(request, suffixes=(".sh", ".bash"), default_name=lambda _: "main.sh", usual=("main.sh",))
        run = step(("run", ["bash", in_source(entry), *request.args]), cwd="scratch")
        return make_bundle(
            request, language=self.language_id, files=files, entrypoint=entry, run_step=run,
            toolchains=self.toolchain_requirements(request),
        )
