"""A secret that was planted in config, environment, source and reuse key shows up in nothing that others see."""

from __future__ import annotations

import logging

import pytest
from synthetic_manager_provider import SyntheticProvider, wanted  # type: ignore[import-not-found]

from agently_kernel.contract.approval import ApprovalOutcome
from agently_kernel.contract.errors import AgentlyKernelError, ExecutionResourceError, SandboxLaunchError
from agently_kernel.contract.resource import ExecutionResourcePolicy
from agently_kernel.redaction import HIDDEN, describe_error

SECRET = "hunter2-planted"
CONFIG = {"token": SECRET, "env": {"AWS_KEY": SECRET}, "nested": [{"profile": SECRET}]}


def requirement(**fields):
    candidates = [{"provider_id": "leaky", "config": CONFIG}, {"provider_id": "leaky2", "config": CONFIG}]
    return wanted(config=CONFIG, provider_candidates=candidates, reuse_key=SECRET, **fields)


def shown(manager, caught) -> str:
    texts = [repr(event) + event.model_dump_json() for event in manager.seen]
    texts += [repr(view) + view.model_dump_json() for view in manager.list()]
    if caught is not None:
        import traceback

        texts += ["".join(traceback.format_exception(caught.value)), str(caught.value.details)]
    return "\n".join(texts)


async def test_nowhere_when_all_goes_well(make, caplog):
    caplog.set_level(logging.DEBUG)
    manager = make(SyntheticProvider("leaky"))
    named = manager.declare(requirement())
    handle = await manager.async_ensure(named.requirement_id)
    text = shown(manager, None) + repr(handle) + repr(named) + caplog.text
    await manager.async_release(handle)
    assert "leaky" in text and SECRET not in text + shown(manager, None) + caplog.text


@pytest.mark.parametrize(
    "plant",
    [
        lambda a, b: [setattr(p, "probe_error", RuntimeError(f"bad {CONFIG!r}")) for p in (a, b)],
        lambda a, b: [setattr(p, "ensure_error", OSError(f"no {SECRET}\n{SECRET}")) for p in (a, b)],
        lambda a, b: [
            setattr(p, "ensure_error", SandboxLaunchError(f"token {SECRET} refused", details={"remedy": "look"}))
            for p in (a, b)
        ],
    ],
)
async def test_nowhere_when_providers_quote_their_config(make, caplog, plant):
    caplog.set_level(logging.DEBUG)
    first, second = SyntheticProvider("leaky"), SyntheticProvider("leaky2")
    plant(first, second)
    manager = make(first, second)
    with pytest.raises(AgentlyKernelError) as caught:
        await manager.async_ensure(requirement())
    text = shown(manager, caught) + caplog.text
    assert HIDDEN in text and SECRET not in text


async def test_nowhere_when_a_release_fails_or_an_approval_is_asked(make, caplog):
    caplog.set_level(logging.DEBUG)
    provider = SyntheticProvider("leaky")
    manager = make(provider)
    asked: list[str] = []

    async def person(request):
        asked.append(repr(request) + request.what)
        return ApprovalOutcome.APPROVED_ONCE

    manager.approval.set_channel(person)
    handle = await manager.async_ensure(requirement(policy=ExecutionResourcePolicy(approval_mode="always")))
    provider.release_errors = [RuntimeError(f"cannot stop {SECRET}"), RuntimeError(SECRET)]
    with pytest.raises(ExecutionResourceError) as caught:
        await manager.async_release(handle)
    assert SECRET not in shown(manager, caught) + caplog.text + "".join(asked)
    provider.release_errors = []


def test_our_own_errors_keep_plain_values_and_lose_secrets():
    config = {"image": "python:3.12", "registry_password": "open-sesame"}
    ours = SandboxLaunchError("image python:3.12 was refused with open-sesame")
    theirs = RuntimeError("image python:3.12 was refused")
    assert describe_error(ours, [config]) == f"image python:3.12 was refused with {HIDDEN}"
    assert describe_error(theirs, [config]) == f"RuntimeError: image {HIDDEN} was refused"
    assert describe_error(RuntimeError("x" * 1000), []).endswith("…")
    assert describe_error(ValueError(), []) == "ValueError"
