"""The contract of a provider as tests; see the package's docstring for how to run them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from agently_kernel.contract.bundle import CodeExecutionRequest, ExecutionForm
from agently_kernel.contract.errors import ExecutionResourceReleaseError, GrantError, MaterializationError
from agently_kernel.contract.isolation import CodeExecutionProviderCapability, IsolationAxis, SafetyClass
from agently_kernel.contract.outputs import StreamOutput
from agently_kernel.contract.protocols import ExecutionResourceProvider
from agently_kernel.contract.resource import (
    ExecutionResourcePolicy,
    ExecutionResourceProbe,
    ExecutionResourceRequirement,
    HandleStatus,
    ProviderCandidate,
)
from agently_kernel.contract.result import CodeExecutionResult, ExecutionStatus
from agently_kernel.languages import get_adapter
from agently_kernel.testing import programs
from agently_kernel.testing.surroundings import HostWitness, Surroundings, inventory, settles

Scenario = Callable[[Surroundings], Coroutine[Any, Any, None]]


class ProviderContract:
    """Mixin: subclass it as ``Test…`` and give :meth:`make_provider`. The tests run one event loop each.

    ``config`` is the candidate's configuration. ``start_seconds`` is how long a sandbox may take to start here; the
    tests' own deadlines are derived from it. ``settle_seconds``: how long all may take to be gone.
    """

    config: Mapping[str, Any] = {}
    start_seconds: float = 30.0
    settle_seconds: float = 5.0

    def make_provider(self) -> ExecutionResourceProvider:
        """Return a new provider object."""
        raise NotImplementedError("a subclass returns its provider here")

    def inventory(self) -> frozenset[str]:
        """Return what can be left on this machine; extend it by what your mechanism makes (containers …)."""
        return inventory()

    # -- fixtures -----------------------------------------------------------------------------------------------------

    @pytest.fixture
    def run(self, tmp_path: Path) -> Callable[[Scenario], None]:
        """Run a scenario in surroundings of its own; see :meth:`run_scenario`."""
        return lambda scenario: self.run_scenario(scenario, tmp_path)

    def run_scenario(self, scenario: Scenario, folder: Path) -> None:
        """Run *scenario* with a new provider and a workspace in *folder*; demand that nothing is left afterwards."""
        provider = self.make_provider()
        before = self.inventory()

        async def main() -> None:
            policy = await self._policy(provider)
            async with Surroundings(provider, self.config, policy, folder) as place:
                await asyncio.wait_for(scenario(place), 4 * self.start_seconds + 60)
                assert place.workspace.open_grants == (), "a grant was left open"
            assert not place.workspace.runtime_path.exists(), "the workspace's runtime area was left"

        asyncio.run(main())
        left = settles(before, self.inventory, self.settle_seconds)
        assert not left, f"left on the machine: {sorted(left)}"

    async def _policy(self, provider: ExecutionResourceProvider) -> ExecutionResourcePolicy:
        """Return the strictest policy that this provider says it can serve."""
        capability = await self._capability(provider)
        if capability.safety_class is SafetyClass.TRUSTED_LOCAL:
            return ExecutionResourcePolicy(
                isolation="none", unsafe_fallback=True, trusted_local_authorized=True, network_mode="enabled"
            )
        axes = tuple(axis for axis in IsolationAxis if capability.isolation.axis(axis) is True)
        return ExecutionResourcePolicy(
            required_axes=axes, network_mode="disabled" if capability.network == "none" else "enabled"
        )

    async def _probe(self, provider: ExecutionResourceProvider) -> ExecutionResourceProbe:
        requirement = ExecutionResourceRequirement(provider_id=provider.provider_id, config=self.config)
        return await provider.async_probe(requirement=requirement, policy=requirement.policy)

    async def _capability(self, provider: ExecutionResourceProvider) -> CodeExecutionProviderCapability:
        probe = await self._probe(provider)
        if not probe.available or probe.capability is None:
            pytest.fail(f"{provider.provider_id} is not available: {probe.reason} To fix it: {probe.remedy}")
        return probe.capability

    # -- what it says of itself ---------------------------------------------------------------------------------------

    def test_the_probe_is_complete(self, run: Callable[[Scenario], None]) -> None:
        """Ids agree, python is among the languages, and every axis that is claimed has evidence."""

        async def scenario(place: Surroundings) -> None:
            probe = await self._probe(place.provider)
            assert probe.provider_id == place.provider.provider_id
            assert "code_execution" in place.provider.supported_kinds
            capability = probe.capability
            assert capability is not None and "python" in capability.languages
            assert "snapshot" in capability.workspace_access_modes
            if capability.safety_class is SafetyClass.ISOLATED:
                assert capability.isolation.as_mapping() == {axis.value: True for axis in IsolationAxis}
            if capability.safety_class is SafetyClass.TRUSTED_LOCAL:
                assert True not in capability.isolation.as_mapping().values()
            for axis in IsolationAxis:
                if capability.isolation.axis(axis) is True:
                    assert [e for e in capability.isolation.evidence if e.subject == axis.value], f"{axis}: no evidence"

        run(scenario)

    def test_an_unknown_config_key_is_an_error_that_names_it(self, run: Callable[[Scenario], None]) -> None:
        """A typing error in a configuration must not be passed over in silence."""

        async def scenario(place: Surroundings) -> None:
            candidate = ProviderCandidate(
                provider_id=place.provider.provider_id, config={**self.config, "no_such_key": 1}
            )
            result = await place.execution.async_run(_request("print(1)"), candidates=(candidate,))
            assert result.status is ExecutionStatus.BLOCKED, _story(result)
            assert "no_such_key" in result.message

        run(scenario)

    def test_claims_hold_against_attempts(self, run: Callable[[Scenario], None]) -> None:
        """Each axis that the facts report as true is attacked from inside; the host looks whether it was touched."""

        async def scenario(place: Surroundings) -> None:
            with HostWitness() as host:
                result = await place.script(programs.LOOK_AROUND, stdin=json.dumps(host.challenge()).encode())
                assert result.status is ExecutionStatus.SUCCESS, _story(result)
                seen = json.loads(result.stdout.text)
                assert seen["work"] == "x", "the sandbox's working directory cannot be used"
                assert result.facts is not None and result.facts.provider_id == place.provider.provider_id
                isolation = result.facts.isolation
                reached = host.was_reached()
                if isolation.host_filesystem_restricted:
                    assert host.word not in json.dumps(seen), "the host's file or environment was read"
                    assert not host.was_changed() and seen["write_source"] != 1 and seen["overwrite_source"] != 1
                if isolation.process_contained:
                    assert seen["signal_host"] != "delivered", "the host's process could be signalled"
                if isolation.privilege_escalation_blocked:
                    assert seen["no_new_privileges"] == "1", "the no_new_privileges flag is not set"
                    assert int(seen["effective_capabilities"], 16) == 0, "the code has capabilities"
                if isolation.syscalls_restricted:
                    assert seen["seccomp"] == "2", "no seccomp filter is in force"
                    assert seen["user_namespace"] != "made", "a user namespace could be made"
                if result.facts.network == "none" or isolation.network_blocked:
                    assert seen["connect"] != "connected" and not reached, "the host's port was reached"

        run(scenario)

    def test_facts_of_the_open_sandbox_are_those_of_the_probe(self, run: Callable[[Scenario], None]) -> None:
        """An axis that was probed true is true in the sandbox that runs the code, with the class that was announced."""

        async def scenario(place: Surroundings) -> None:
            probed = (await self._probe(place.provider)).capability
            result = await place.cell("pass")
            assert probed is not None and result.facts is not None, _story(result)
            assert result.facts.safety_class is probed.safety_class
            for axis in IsolationAxis:
                if probed.isolation.axis(axis) is True:
                    assert result.facts.isolation.axis(axis) is True, axis

        run(scenario)

    # -- both forms ---------------------------------------------------------------------------------------------------

    def test_a_session_keeps_state_streams_and_tells_errors(self, run: Callable[[Scenario], None]) -> None:
        """Variables live on, output arrives while the cell runs, an exception is a result."""

        async def scenario(place: Surroundings) -> None:
            assert (await place.cell(programs.REMEMBER.format(value=41))).status is ExecutionStatus.SUCCESS
            result = await place.cell("kept += 1\n" + programs.RECALL)
            assert result.status is ExecutionStatus.SUCCESS and result.stdout.text == "42\n", _story(result)
            assert "".join(e.text for e in place.events if isinstance(e, StreamOutput)) == "42\n"
            failed = await place.cell(programs.RAISE)
            assert failed.status is ExecutionStatus.ERROR and failed.error is not None
            assert failed.error["ename"] == "ZeroDivisionError"
            assert (await place.cell(programs.RECALL)).stdout.text == "42\n"
            assert len(place.manager.list()) == 1

        run(scenario)

    def test_an_argv_plan_runs_with_arguments_input_and_exit_code(self, run: Callable[[Scenario], None]) -> None:
        """Arguments are not seen by any shell, streams are apart, the exit code is kept."""

        async def scenario(place: Surroundings) -> None:
            args = ("3", "a b", "$HOME", "'\"", "")
            result = await place.script(programs.ARGUMENTS, args=args, stdin="grüße\n".encode())
            assert (result.status, result.returncode) == (ExecutionStatus.ERROR, 3), _story(result)
            got_args, got_input, _ = json.loads(result.stdout.text)
            assert (got_args, got_input) == (list(args), "grüße\n")
            assert result.stderr.text == "to stderr\n"
            assert [step.exit_code for step in result.steps] == [3]

        run(scenario)

    def test_output_is_bounded_with_head_and_tail(self, run: Callable[[Scenario], None]) -> None:
        """3 MB of output are counted, and what is kept fits the policy."""

        async def scenario(place: Surroundings) -> None:
            policy = place.policy.model_copy(update={"max_output_bytes": 64 * 1024})
            result = await place.script(programs.FLOOD, policy=policy)
            kept = result.stdout
            assert result.status is ExecutionStatus.SUCCESS, _story(result)
            assert kept.text.startswith("head of it\n") and kept.text.endswith("tail of it\n")
            assert kept.total_bytes == 60_000 * 50 + 22 and kept.truncated
            assert len(kept.text.encode()) <= 80 * 1024

        run(scenario)

    def test_outputs_are_collected_and_links_are_not_followed(self, run: Callable[[Scenario], None]) -> None:
        """Declared files come back as they were written; a link is refused and nothing is read through it."""

        async def scenario(place: Surroundings) -> None:
            wanted = ("output/deep/result.txt", "output/link.txt", "output/absent.txt")
            result = await place.script(programs.OUTPUTS, expected_outputs=wanted)
            assert result.status is ExecutionStatus.ERROR, _story(result)
            taken = {output.path: _content(output.stored_path) for output in result.outputs}
            assert taken["output/deep/result.txt"] == b"result"
            assert "output/link.txt" not in taken
            refused = {item.path: item.reason for item in result.refused_outputs}
            assert refused["output/absent.txt"] == "missing" and refused["output/link.txt"] in ("symlink", "unreadable")

        run(scenario)

    # -- the end of things --------------------------------------------------------------------------------------------

    def test_a_time_limit_ends_the_code_and_its_children(self, run: Callable[[Scenario], None]) -> None:
        """Both forms; the session goes on afterwards. The inventory shows whether children are left."""

        async def scenario(place: Surroundings) -> None:
            started = time.monotonic()
            result = await place.script(programs.SPIN_WITH_CHILD, timeout=1.0)
            assert result.status is ExecutionStatus.TIMED_OUT, _story(result)
            assert result.stdout.text == "started\n", "what was printed before the time limit was lost"
            session = await place.cell(programs.SPIN_WITH_CHILD, timeout=1.0)
            assert session.status is ExecutionStatus.TIMED_OUT, _story(session)
            assert time.monotonic() - started < 2 * self.start_seconds + 20
            again = await place.cell("print('on')")
            assert (again.status, again.stdout.text) == (ExecutionStatus.SUCCESS, "on\n"), _story(again)

        run(scenario)

    def test_cancelling_at_any_moment_leaves_nothing(self, run: Callable[[Scenario], None]) -> None:
        """A run is cancelled at ten points of its life; no handle, grant, process or mount stays."""

        async def scenario(place: Surroundings) -> None:
            before = self.inventory()
            started = time.monotonic()
            assert (await place.script("print(1)")).status is ExecutionStatus.SUCCESS
            whole = time.monotonic() - started
            for tenth in range(10):
                task = asyncio.create_task(place.script(programs.SPIN_WITH_CHILD))
                await asyncio.sleep(whole * tenth / 9)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert place.manager.list() == () and place.workspace.open_grants == ()
            left = await asyncio.to_thread(settles, before, self.inventory, self.settle_seconds)
            assert not left, f"left on the machine: {sorted(left)}"

        run(scenario)

    def test_a_failing_release_is_quarantined_and_can_be_repeated(self, run: Callable[[Scenario], None]) -> None:
        """The manager believes the provider's exception, shows the handle, and closes it when asked again."""

        async def scenario(place: Surroundings) -> None:
            original = place.provider.async_release
            failures = ["once"]

            async def failing(handle: Any) -> None:
                if failures:
                    failures.pop()
                    raise RuntimeError("ordered by the contract test")
                await original(handle)

            place.provider.async_release = failing  # type: ignore[method-assign]
            with place.granted() as grant:
                handle = await place.manager.async_ensure(place.requirement(task_workspace_access_grant=grant))
                with pytest.raises(ExecutionResourceReleaseError):
                    await place.manager.async_release(handle)
                (view,) = place.manager.list(status=HandleStatus.QUARANTINED)
                assert view.handle_id == handle.handle_id
                again = await place.manager.async_release(handle)
                assert again is not None and again.status is HandleStatus.RELEASED

        run(scenario)

    def test_health_tells_whether_it_lives(self, run: Callable[[Scenario], None]) -> None:
        """Ready while it lives, unhealthy once it is closed, and the next cell gets a fresh one."""

        async def scenario(place: Surroundings) -> None:
            await place.cell("gone = 1")
            (view,) = place.manager.list()
            handle = place.manager.handle(view.handle_id)
            assert handle is not None and handle.resource is not None
            assert await place.provider.async_health_check(handle) == "ready"
            await handle.resource.aclose()
            assert await place.provider.async_health_check(handle) == "unhealthy"
            result = await place.cell("print('gone' in globals())")
            assert (result.status, result.stdout.text) == (ExecutionStatus.SUCCESS, "False\n"), _story(result)

        run(scenario)

    def test_closing_twice_is_harmless(self, run: Callable[[Scenario], None]) -> None:
        """aclose() of the resource is idempotent."""

        async def scenario(place: Surroundings) -> None:
            with place.granted() as grant:
                handle = await place.manager.async_ensure(place.requirement(task_workspace_access_grant=grant))
                assert handle.resource is not None
                await handle.resource.aclose()
                await handle.resource.aclose()
                await place.manager.async_release(handle)

        run(scenario)

    # -- strangers ----------------------------------------------------------------------------------------------------

    def test_two_sessions_at_once_do_not_see_each_other(self, run: Callable[[Scenario], None]) -> None:
        """Variables and private places are apart."""

        async def scenario(place: Surroundings) -> None:
            one, two = await asyncio.gather(
                place.cell("kept = 1\n" + programs.MARK_PRIVATE_PLACES, "one"), place.cell("kept = 2", "two")
            )
            assert {one.status, two.status} == {ExecutionStatus.SUCCESS}, _story(one) + _story(two)
            again, seen = await asyncio.gather(
                place.cell(programs.RECALL, "one"), place.cell(programs.RECALL + programs.FIND_MARKS, "two")
            )
            assert again.stdout.text == "1\n"
            assert seen.facts is not None
            if seen.facts.isolation.host_filesystem_restricted:
                assert seen.stdout.text == "2\n[]\n", _story(seen)

        run(scenario)

    def test_garbage_on_every_descriptor_wedges_nothing(self, run: Callable[[Scenario], None]) -> None:
        """A guest that writes into whatever it has open may end its sandbox, never the host's side."""

        async def scenario(place: Surroundings) -> None:
            result = await asyncio.wait_for(place.cell(programs.GARBAGE, timeout=10.0), self.start_seconds + 30)
            assert result.status in (ExecutionStatus.SUCCESS, ExecutionStatus.DIED), _story(result)
            assert result.status is ExecutionStatus.SUCCESS or result.death is not None
            after = await asyncio.wait_for(place.cell("print('on')"), self.start_seconds + 30)
            assert (after.status, after.stdout.text) == (ExecutionStatus.SUCCESS, "on\n"), _story(after)

        run(scenario)

    def test_a_bundle_that_is_not_the_manifests_is_refused(self, run: Callable[[Scenario], None]) -> None:
        """The resource compares digests before anything runs."""

        async def scenario(place: Surroundings) -> None:
            adapter = get_adapter("python")
            one, two = (adapter.prepare(_request(f"print({n})"), place.policy) for n in (1, 2))
            with place.granted() as grant:
                handle = await place.manager.async_ensure(place.requirement(task_workspace_access_grant=grant))
                assert handle.resource is not None
                manifest = place.workspace.materialize(one, grant)
                with pytest.raises(MaterializationError):
                    await handle.resource.async_execute_code(two, manifest, grant, 10.0)
                await place.manager.async_release(handle)

        run(scenario)

    def test_another_grant_is_refused(self, run: Callable[[Scenario], None], tmp_path: Path) -> None:
        """A manifest under one grant does not run under another, and a closed grant materialises nothing."""

        async def scenario(place: Surroundings) -> None:
            bundle = get_adapter("python").prepare(_request("print(1)"), place.policy)
            with place.granted() as grant, place.new_workspace(tmp_path / "other") as elsewhere:
                handle = await place.manager.async_ensure(place.requirement(task_workspace_access_grant=grant))
                assert handle.resource is not None
                manifest = place.workspace.materialize(bundle, grant)
                foreign = elsewhere.issue_grant(execution_id="elsewhere")
                with pytest.raises(GrantError):
                    await handle.resource.async_execute_code(bundle, manifest, foreign, 10.0)
                theirs = elsewhere.materialize(bundle, foreign)
                with pytest.raises(GrantError):
                    await handle.resource.async_execute_code(bundle, theirs, foreign, 10.0)
                elsewhere.close_grant(foreign)
                with pytest.raises(GrantError):
                    elsewhere.materialize(bundle, foreign)
                await place.manager.async_release(handle)

        run(scenario)

    def test_a_file_changed_after_materialisation_does_not_run(self, run: Callable[[Scenario], None]) -> None:
        """The session form verifies the digest where the code runs."""

        async def scenario(place: Surroundings) -> None:
            request = _request("print('as written')", session=True)
            bundle = get_adapter("python").prepare(request, place.policy)
            with place.granted() as grant:
                handle = await place.manager.async_ensure(place.requirement(task_workspace_access_grant=grant))
                assert handle.resource is not None
                manifest = place.workspace.materialize(bundle, grant)
                written = place.workspace.source_path / bundle.bundle_id / bundle.entrypoint
                written.chmod(0o600)
                written.write_text("print('changed')")
                written.chmod(0o444)
                result = await handle.resource.async_execute_code(bundle, manifest, grant, 20.0)
                assert "changed" not in result.stdout.text
                assert result.status in (ExecutionStatus.ERROR, ExecutionStatus.DIED), _story(result)
                await place.manager.async_release(handle)

        run(scenario)


def _request(source: str, *, session: bool = False) -> CodeExecutionRequest:
    form = ExecutionForm.SESSION if session else ExecutionForm.ONE_SHOT
    return CodeExecutionRequest(source_code=source, form=form)


def _content(path: str) -> bytes:
    return Path(path).read_bytes()


def _story(result: CodeExecutionResult) -> str:
    """Return what an author needs to see when an expectation is not met."""
    streams = f"{result.stdout.text[-2000:]}\n{result.stderr.text[-2000:]}"
    return f"{result.status.value}: {result.message}\n{result.error}\n{streams}"
