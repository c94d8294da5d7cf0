"""The command ``agently-kernel``: doctor, providers, clean."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from agently_kernel import __version__


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
    providers = commands.add_parser("providers", help="list the providers that are installed")
    providers.add_argument("--json", action="store_true", help="print the list as JSON")
    clean = commands.add_parser("clean", help="remove what dead sessions left behind; never touches a live one")
    clean.add_argument("--json", action="store_true", help="print what was removed as JSON")
    clean.add_argument("--all", action="store_true", help="also remove the collected files of ended sessions")
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
    report = asyncio.run(examine(ProviderRegistry(), candidates))
    if options.json:
        print(json.dumps(report.model_dump(mode="json"), indent=2))
    else:
        print(render(report, details=options.details))
    return 0 if report.usable else 1


def _providers(options: argparse.Namespace) -> int:
    from agently_kernel.registry import ProviderRegistry

    names = ProviderRegistry().ids()
    print(json.dumps(names) if options.json else "\n".join(names))
    return 0


def _clean(options: argparse.Namespace) -> int:
    from agently_kernel.reaper import clean_leftovers

    report = clean_leftovers(remove_stores=options.all, dry_run=options.dry_run)
    if options.json:
        print(json.dumps(report.model_dump(mode="json"), indent=2))
    else:
        print(report.text())
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
