"""Languages that are built first: Go packages and C++ programs of several sources.

Compilers run in the bundle's folder with relative names, so that their messages carry the user's own file names. What
they make goes to the build area under a name taken from the content: an unchanged program finds its compiler cache
again, and two programs of one session never overwrite each other.
"""

from __future__ import annotations

import re

from agently_kernel.contract.bundle import (
    CodeExecutionBundle,
    CodeExecutionFile,
    CodeExecutionRequest,
    CodeExecutionToolchainRequirement,
)
from agently_kernel.contract.errors import ConfigurationError
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.languages.indexes import package_hosts
from agently_kernel.languages.plan import (
    BUILD,
    content_key,
    gather,
    installs_dependencies,
    make_bundle,
    merge_toolchains,
    one_shot_only,
    plain_name,
    step,
)

GO_MINIMUM = "1.19"
CPP_SOURCES = (".cpp", ".cc", ".cxx", ".c++", ".C")
MAX_CPP_SOURCES = 200
_CGO = re.compile(rb'^\s*import\s+"C"', re.M)
_GO_SPECIAL = re.compile(
    r"/|_(?:test|linux|windows|darwin|freebsd|openbsd|netbsd|plan9|js|wasip1|unix|amd64|arm64|arm|386|riscv64|wasm)\Z"
)
_GO_CONSTRAINT = re.compile(rb"^//\s*(?:go:build|\+build)\b", re.M)
_GO_REQUIRE = re.compile(rb"^\s*require\b", re.M)


class GoAdapter:
    """Go: the package that the entrypoint lies in, with all its files.

    Without a go.mod, files that all lie at the root are built as a list: Go then takes its own newest language version.
    Programs with folders, tests or build constraints need the package form, so a go.mod is made for them.
    """

    language_id = "go"
    aliases: tuple[str, ...] = ("golang",)

    def toolchain_requirements(self, request: CodeExecutionRequest) -> tuple[CodeExecutionToolchainRequirement, ...]:
        """Go 1.19 or newer, tightened by the request."""
        base = CodeExecutionToolchainRequirement(tool="go", minimum_version=GO_MINIMUM)
        return merge_toolchains(self.language_id, base, request.toolchains)

    def prepare(self, request: CodeExecutionRequest, policy: ExecutionResourcePolicy) -> CodeExecutionBundle:
        """Plan ``go build`` of the package and the run of what it makes. Raises ConfigurationError."""
        one_shot_only(request)
        files, entry = gather(request, suffixes=(".go",), default_name=lambda _: "main.go", usual=("main.go",))
        toolchains = self.toolchain_requirements(request)
        by_path = {file.path: file for file in files}
        module = by_path.get("go.mod")
        folder = entry.rpartition("/")[0]
        package = [f"./{folder}" if folder else "."]
        if module is None and all(_plain_go(file) for file in files if file.path.endswith(".go")):
            package = [plain_name(file.path) for file in files if file.path.endswith(".go")]
        elif module is None:
            files = _with_module(files, toolchains)
        env = self._environment(files)
        build = []
        if module is not None and _GO_REQUIRE.search(module.content) and installs_dependencies(request):
            if "go.sum" not in by_path:
                raise ConfigurationError("go.mod names other modules but go.sum is missing; `go mod tidy` makes it")
            fetch_env = {key: value for key, value in env.items() if key != "GOPROXY"}
            hosts = package_hosts(self.language_id, policy)
            build.append(step(("build", ["go", "mod", "download"]), env=fetch_env, hosts=hosts))
        target = f"{BUILD}/.app-{content_key(files, 'go', entry)}"
        build.append(step(("build", ["go", "build", "-o", target, *package]), env=env))
        run = step(("run", [target, *request.args]), cwd="scratch")
        return make_bundle(
            request, language=self.language_id, files=files, entrypoint=entry, build_steps=tuple(build), run_step=run,
            toolchains=toolchains,
        )

    @staticmethod
    def _environment(files: tuple[CodeExecutionFile, ...]) -> dict[str, str]:
        needs_c = any(file.path.endswith(".go") and _CGO.search(file.content) for file in files)
        return {
            "CGO_ENABLED": "1" if needs_c else "0",
            "GO111MODULE": "on",
            "GOCACHE": f"{BUILD}/.cache/go-build",
            "GOENV": "off",
            "GOFLAGS": "-buildvcs=false",
            "GOMODCACHE": f"{BUILD}/.cache/go-mod",
            "GOPATH": f"{BUILD}/.cache/go",
            "GOPROXY": "off",
            "GOTOOLCHAIN": "local",
        }


def _plain_go(file: CodeExecutionFile) -> bool:
    """True for a Go file that means the same in a list of files as in its package."""
    name = file.path.removesuffix(".go")
    return not (name.startswith(("_", ".")) or _GO_SPECIAL.search(name) or _GO_CONSTRAINT.search(file.content))


def _with_module(
    files: tuple[CodeExecutionFile, ...], toolchains: tuple[CodeExecutionToolchainRequirement, ...]
) -> tuple[CodeExecutionFile, ...]:
    """Add a go.mod for the oldest Go that the program may meet: the language's newer parts need a constraint."""
    tool = next(item for item in toolchains if item.tool == "go")
    version = ".".join((tool.exact_version or tool.minimum_version or GO_MINIMUM).split(".")[:2])
    module = CodeExecutionFile(path="go.mod", content=f"module main\n\ngo {version}\n".encode())
    return tuple(sorted((*files, module), key=lambda file: file.path))


class CppAdapter:
    """C++20: every source of the bundle is compiled and linked into one program; headers are found from the root."""

    language_id = "c++"
    aliases: tuple[str, ...] = ("cpp", "cxx")

    def toolchain_requirements(self, request: CodeExecutionRequest) -> tuple[CodeExecutionToolchainRequirement, ...]:
        """Any ``c++``, tightened by the request."""
        return merge_toolchains(self.language_id, CodeExecutionToolchainRequirement(tool="c++"), request.toolchains)

    def prepare(self, request: CodeExecutionRequest, policy: ExecutionResourcePolicy) -> CodeExecutionBundle:
        """Plan one compiler call over all sources and the run of what it makes. Raises ConfigurationError."""
        one_shot_only(request)
        files, entry = gather(
            request, suffixes=CPP_SOURCES, default_name=lambda _: "main.cpp", usual=("main.cpp", "main.cc", "main.cxx")
        )
        sources = [file.path for file in files if file.path.endswith(CPP_SOURCES)]
        if len(sources) > MAX_CPP_SOURCES:
            raise ConfigurationError(f"{len(sources)} C++ sources; one program is built of at most {MAX_CPP_SOURCES}")
        includes = ["-I.", *(["-Iinclude"] if any(file.path.startswith("include/") for file in files) else [])]
        target = f"{BUILD}/.app-{content_key(files, 'c++')}"
        argv = ["c++", "-std=c++20", "-pthread", *includes, "-o", target, *map(plain_name, sources)]
        run = step(("run", [target, *request.args]), cwd="scratch")
        return make_bundle(
            request, language=self.language_id, files=files, entrypoint=entry, run_step=run,
            build_steps=(step(("build", argv)),), toolchains=self.toolchain_requirements(request),
        )
