"""Settings of a page as wishes: only what is stricter than the configuration is taken."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agently_kernel.contract.bundle import CodeExecutionRequest, ExecutionForm
from agently_kernel.contract.resource import ExecutionResourcePolicy, IsolationPolicy
from agently_kernel.contract.result import CodeExecutionResult
from agently_kernel.policy import PolicyApproval
from agently_kernel.session_sandbox import SessionSandbox
from agently_kernel.settings import KernelSettings
from agently_kernel.wishes import Wish, at_least, grant_wish

LEVELS: tuple[IsolationPolicy, ...] = ("none", "preferred", "required")


@pytest.mark.parametrize(("configured", "wished"), list(itertools.product(LEVELS, LEVELS)))
@pytest.mark.parametrize("fallback", [False, True])
def test_a_wish_never_makes_anything_weaker(
    configured: IsolationPolicy, wished: IsolationPolicy, fallback: bool
) -> None:
    fallback = fallback and configured != "required"
    policy = ExecutionResourcePolicy(
        isolation=configured, unsafe_fallback=fallback, trusted_local_authorized=fallback, network_mode="disabled"
    )
    found = at_least(policy, wished)
    if LEVELS.index(wished) < LEVELS.index(configured):
        assert found is None
        return
    assert found is not None
    assert found.isolation == wished
    assert found.unsafe_fallback == (fallback and wished != "required")
    changed = {"isolation", "unsafe_fallback", "trusted_local_authorized"}
    assert found.model_dump(exclude=changed) == policy.model_dump(exclude=changed)


@dataclass
class Home:
    settings: KernelSettings
    approval: PolicyApproval
    sandbox: SessionSandbox

    async def run(self, code: str) -> CodeExecutionResult:
        request = CodeExecutionRequest(language="python", source_code=code, form=ExecutionForm.SESSION)
        return await self.sandbox.run(
            request, cell="c", execution_id=f"execution-{id(request)}", sink=lambda event: None, input_handler=None,
            timeout=60,
        )


@pytest.fixture
async def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """A session whose configuration accepts running without isolation, and prefers to: the weakest there is."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    settings = KernelSettings(
        providers=("trusted_local", "bubblewrap"), isolation="none", unsafe_fallback=True,
        trusted_local_authorized=True, approval_timeout=60,
    )
    approval = PolicyApproval()
    made = Home(settings, approval, SessionSandbox(settings, approval, session_id="s"))
    made.sandbox.attach(sink=lambda event: None, on_handle=lambda handle: None, on_event=lambda event: None)
    yield made
    await made.sandbox.close()


async def test_a_sandbox_that_ran_nothing_is_opened_anew_as_wished(home: Home) -> None:
    home.sandbox.start()
    await home.sandbox.ready()
    assert home.sandbox.facts is not None
    assert home.sandbox.facts.provider_id == "trusted_local"
    (result,) = await grant_wish(home, Wish(isolation="required"))
    assert (result.outcome, result.effective) == ("applied", "required")
    assert (await home.run("x = 1")).status.value == "success"
    assert home.sandbox.facts.provider_id == "bubblewrap"


async def test_variables_stay_until_a_restart_and_what_follows_is_as_wished(home: Home) -> None:
    assert (await home.run("x = 1")).status.value == "success"
    (result,) = await grant_wish(home, Wish(isolation="required"))
    assert result.outcome == "next_sandbox"
    assert (await home.run("assert x == 1")).status.value == "success"
    assert home.sandbox.facts is not None
    assert home.sandbox.facts.provider_id == "trusted_local"
    await home.sandbox.restart_sandbox()
    assert (await home.run("x = 2")).status.value == "success"
    assert home.sandbox.facts.provider_id == "bubblewrap"
    assert await grant_wish(home, Wish()) == ()
    assert home.sandbox.policy == home.settings.policy()
    assert (await home.run("assert x == 2")).status.value == "success"


async def test_what_is_observed_to_be_good_enough_stays(home: Home) -> None:
    (result,) = await grant_wish(home, Wish(isolation="required"))
    assert (await home.run("x = 3")).status.value == "success"
    await grant_wish(home, Wish())
    (result,) = await grant_wish(home, Wish(isolation="preferred"))
    assert result.outcome == "applied"
    assert (await home.run("assert x == 3")).status.value == "success"


async def test_the_configuration_bounds_the_time_to_answer(home: Home) -> None:
    (result,) = await grant_wish(home, Wish(approval_timeout=600))
    assert (result.outcome, result.wished, result.effective) == ("longer", "600", "60")
    assert home.approval.longest_wait == 60
    (result,) = await grant_wish(home, Wish(approval_timeout=20))
    assert (result.outcome, result.effective) == ("applied", "20")
    await grant_wish(home, Wish())
    assert home.approval.longest_wait is None
