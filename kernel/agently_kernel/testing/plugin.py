"""pytest plugin: ``--agently-provider=ID`` runs the contract tests for a registered provider.

Without file arguments only these tests run; with some, they run besides. A provider that is not available fails the
tests with its reason and remedy: who asks for a provider wants to know that it works.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_SUITE = Path(__file__).with_name("suite.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("agently-kernel", "contract tests of isolation providers")
    group.addoption("--agently-provider", metavar="ID", help="run the contract tests for the provider with this id")
    group.addoption(
        "--agently-provider-config", metavar="JSON", default="{}", help="the candidate's config, a JSON object"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the suite to what is collected."""
    if config.getoption("--agently-provider") is None:
        return
    try:
        settings = json.loads(config.getoption("--agently-provider-config"))
    except ValueError as error:
        raise pytest.UsageError(f"--agently-provider-config is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise pytest.UsageError('--agently-provider-config must be a JSON object such as {"image": "python:3.12"}')
    given = config.args_source is config.ArgsSource.ARGS
    config.args = [*config.args, str(_SUITE)] if given else [str(_SUITE)]
