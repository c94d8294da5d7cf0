"""The command ``agently-kernel``: doctor, providers, clean."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agently_kernel import __version__

if TYPE_CHECKING:
    from agently_kernel.settings import KernelSettings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agently-kernel", description="Look after the Agently (sandboxed) Jupyter kernel on this machine."
    )
    parser.add_argument("--version", action="version", version=f"agently-kernel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    doctor = commands.add_parser("doctor", help="probe every provider and say what it restricts, or what would help")
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.add_argument("--details", action="store_true", help="print every single observation")
    doctor.add_argument("--provider", action="append", default=[], metavar="ID", help="only this provider; may repeat")
    providers = commands.add_parser("providers", help="list the providers in order, and which one cells run in")
    providers.add_argument("--json", action="store_true", help="print the list as JSON")
    clean = commands.add_parser("clean", help="remove what dead sessions left behind; never touches a live one")
    clean.add_argument("--json", action="store_true", help="print what was removed as JSON")
    clean.add_argument("--all", action="store_true", help="also remove the collected files of ended sessions")
    clean.add_argument("--details", action="store_true", help="a line for each thing that was found")
    clean.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 well, 1 something is not usable or was left, 2 bad arguments."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a console that lacks a mark must not end the report
    return {"doctor": _doctor, "providers": _providers, "clean": _clean}[options.command](options)


def _doctor(options: argparse.Namespace) -> int:
    from agently_kernel.contract.resource import ProviderCandidate
    from agently_kernel.doctor import examine, render
    from agently_kernel.registry import ProviderRegistry

    try:
        candidates = tuple(ProviderCandidate(provider_id=name) for name in options.provider)
    except ValueError:
        print("agently-kernel doctor: a provider id is made of a-z, 0-9, '.', '_' and '-'.", file=sys.stderr)
        return 2
    settings, faults = _settings()
    chosen = {candidate.provider_id: candidate for candidate in settings.providers}
    named = tuple(chosen.get(candidate.provider_id, candidate) for candidate in candidates)
    work = examine(
        ProviderRegistry(), named or settings.providers, settings.policy(), others=not named, sample=bool(named),
        faults=faults,
    )
    report = asyncio.run(work)
    if options.json:
        print(json.dumps(report.model_dump(mode="json"), indent=2))
    else:
        print(render(report, details=options.details))
    _complain(faults if options.json else ())
    return 0 if (report.in_use or (named and report.usable)) and not faults else 1


def _providers(options: argparse.Namespace) -> int:
    from agently_kernel.doctor import examine
    from agently_kernel.registry import ProviderRegistry

    registry, (settings, faults) = ProviderRegistry(), _settings()
    report = asyncio.run(examine(registry, settings.providers, settings.policy(), until_found=True, faults=faults))
    used = report.in_use.provider_id if report.in_use else ""
    chain = [candidate.provider_id for candidate in settings.providers]
    names = [*chain, *(name for name in registry.ids() if name not in chain)]
    rows = [{"provider_id": name, "in_chain": not chain or name in chain, "in_use": name == used} for name in names]
    if options.json:
        print(json.dumps(rows))
    else:
        width = max(map(len, names), default=0)
        words = {name: "installed, but not in your chain" for name in names if chain and name not in chain}
        if used:
            words[used] = "cells run in this one"
        print("\n".join(f"{name:<{width}}  {words.get(name, '')}".rstrip() for name in names))
        if not used and not faults:
            print("None of them can be used as it is; `agently-kernel doctor` says why and what would help.")
    _complain(faults)
    return 0 if used and not faults else 1


def _settings() -> tuple[KernelSettings, tuple[str, ...]]:
    from agently_kernel.user_config import user_settings

    return user_settings()


def _complain(faults: Sequence[str]) -> None:
    """Say what is wrong with the user's configuration, and which files are not read."""
    from agently_kernel.settings import refusal
    from agently_kernel.user_config import misplaced

    if faults:
        print(refusal(faults), file=sys.stderr)
    for sentence in misplaced():
        print(sentence, file=sys.stderr)


def _clean(options: argparse.Namespace) -> int:
    from agently_kernel.reaper import clean_leftovers

    report = clean_leftovers(remove_stores=options.all, dry_run=options.dry_run)
    if options.json:
        print(json.dumps(report.model_dump(mode="json"), indent=2))
    else:
        print(report.text(details=options.details))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
