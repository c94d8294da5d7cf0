"""The manager with SYNTHETIC providers: reuse, counts, health, quarantine, scopes, cancellation at every point."""

from __future__ import annotations

import asyncio
import time

import pytest
from synthetic_manager_provider import (  # type: ignore[import-not-found]
    FAST,
    Managed,
    SyntheticProvider,
    isolation,
    wanted,
)

from agently_kernel.contract.errors import (
    ConfigurationError,
    ExecutionResourceError,
    ExecutionResourceReleaseError,
    ExecutionResourceUnavailable,
)
from agently_kernel.contract.resource import ExecutionResourcePolicy, HandleStatus, ReuseDigests
from agently_kernel.contract.workspace import GrantedInput, TaskWorkspaceAccessGrant


async def test_declaring_starts_nothing_and_shows_as_declared(make):
    provider = SyntheticProvider()
    manager = make(provider)
    named = manager.declare(wanted())
    assert named.requirement_id.startswith("requirement-")
    assert provider.log == []
    assert [(v.requirement_id, v.status, v.handle_id) for v in manager.list()] == [
        (named.requirement_id, HandleStatus.DECLARED, "")
    ]
    assert manager.types == ["declared"]
    assert manager.declare(named) == named
    assert manager.types == ["declared"]
    with pytest.raises(ConfigurationError, match="declared already with other contents"):
        manager.declare(named.model_copy(update={"language": "go"}))


async def test_ensure_by_id_of_something_undeclared_names_the_id(make):
    with pytest.raises(ConfigurationError, match="'nowhere' is not declared"):
        await make(SyntheticProvider()).async_ensure("nowhere")


async def test_a_fresh_ensure_probes_opens_and_tells_so_in_order(make):
    provider = SyntheticProvider()
    manager = make(provider)
    handle = await manager.async_ensure(wanted())
    assert provider.log == ["probe", "ensure"]
    assert manager.types == ["ensuring", "probed", "ready"]
    assert (handle.status, handle.ref_count, handle.provider_id) == (HandleStatus.READY, 1, "synthetic")
    view = manager.inspect(handle.handle_id)
    assert view == handle.view() and view.facts == handle.resource.facts and view.selection.index == 0
    with pytest.raises(ValueError, match="frozen"):
        view.ref_count = 7


async def test_reuse_checks_health_and_does_not_probe(make):
    provider = SyntheticProvider()
    manager = make(provider)
    first = await manager.async_ensure(wanted())
    again = await manager.async_ensure(wanted())
    assert again is first and first.ref_count == 2
    assert provider.log == ["probe", "ensure", "health"]
    assert (await manager.async_release(first)).ref_count == 1
    assert provider.live and manager.types == ["ensuring", "probed", "ready"]
    assert (await manager.async_release(first)).status is HandleStatus.RELEASED
    assert provider.live == [] and manager.list() == ()
    assert manager.types[3:] == ["releasing", "released"]
    assert (await manager.async_release(first)).status is HandleStatus.RELEASED
    assert provider.log.count("release") == 1


async def test_owner_scope_and_config_are_part_of_the_key(make):
    manager = make(SyntheticProvider())
    handles = [
        await manager.async_ensure(wanted(**fields))
        for fields in ({}, {"owner_id": "bob"}, {"scope": "agent"}, {"config": {"a": 1}}, {"reuse_key": "other"})
    ]
    assert len({handle.handle_id for handle in handles}) == 5
    await manager.async_release_scope("session", "alice")
    assert [v.owner_id for v in manager.list(scope="session")] == ["bob"]
    assert len(manager.list(scope="agent")) == 1
    assert manager.list(status="ready") == manager.list()


async def test_two_concurrent_ensures_of_one_key_share_one_resource(make):
    provider = SyntheticProvider()
    provider.before_ensure = lambda: asyncio.sleep(0.02)
    manager = make(provider)
    handles = await asyncio.gather(*(manager.async_ensure(wanted()) for _ in range(5)))
    assert len(set(map(id, handles))) == 1 and handles[0].ref_count == 5
    assert provider.log.count("ensure") == 1


async def test_nothing_grows_over_many_ensures(make):
    manager = make(SyntheticProvider())
    for _ in range(50):
        await manager.async_release(await manager.async_ensure(wanted()))
    book = manager._book
    assert (book.declared, book.handles, book.by_key, book._locks) == ({}, {}, {}, {})


async def test_a_held_session_outlives_its_cells(make):
    provider = SyntheticProvider()
    manager = make(provider)
    for _ in range(3):
        handle = await manager.async_ensure(wanted(), hold=True)
        assert handle.ref_count == 2
        await manager.async_release(handle)
    assert handle.ref_count == 1 and len(provider.opened) == 1 and provider.live
    report = await manager.async_release_scope("session", "alice")
    assert [v.handle_id for v in report.released] == [handle.handle_id] and provider.live == []


async def test_what_is_seen_at_once_is_not_waited_for_and_all_else_is_checked(make):
    provider = SyntheticProvider()
    seen = [True, False, RuntimeError("x")]

    def seen_ready(handle):
        answer = seen.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    provider.seen_ready = seen_ready
    manager = make(provider)
    first = await manager.async_ensure(wanted())
    assert await manager.async_ensure(wanted()) is first and provider.log == ["probe", "ensure"]
    assert await manager.async_ensure(wanted()) is first and provider.log == ["probe", "ensure", "health"]
    assert await manager.async_ensure(wanted()) is not first and first.status is HandleStatus.RELEASED


def test_a_reuse_digest_that_is_remembered_is_the_one_that_would_be_made():
    digests = ReuseDigests()
    grant = TaskWorkspaceAccessGrant(
        grant_id="g1", task_workspace_id="w", execution_id="e", mode="snapshot", roots=(), issued_at=1.0
    )
    mount = GrantedInput(name="a", host_path="/a", mode="read_only")
    plain = wanted()
    variants = [
        plain, plain.model_copy(update={"task_workspace_access_grant": grant}),
        *(plain.model_copy(update={"task_workspace_access_grant": grant.model_copy(update=change)}) for change in (
            {"grant_id": "g2"}, {"inputs": (mount,)}, {"task_workspace_id": "v"},
        )),
        plain.model_copy(update={"owner_id": "other"}), plain.model_copy(update={"reuse_key": "k"}),
        plain.model_copy(update={"policy": plain.policy.model_copy(update={"network_mode": "enabled"})}),
        plain.model_copy(update={"config": {"env": {"A": "b"}}}), plain.model_copy(update={"resident": False}),
    ]
    for one in variants:
        for other in (*variants, one):
            assert digests.of(other) == other.reuse_digest()


@pytest.mark.parametrize("answer", ["unhealthy", "odd", RuntimeError("x"), lambda: asyncio.sleep(60)])
async def test_an_unhealthy_handle_is_released_and_replaced(make, answer):
    provider = SyntheticProvider()
    manager = make(provider)
    old = await manager.async_ensure(wanted())
    provider.health = answer
    new = await manager.async_ensure(wanted())
    assert new is not old and new.ref_count == 1
    assert old.status is HandleStatus.RELEASED and provider.live == [new.resource]
    assert manager.types[3:] == ["unhealthy", "releasing", "released", "ensuring", "probed", "ready"]
    assert (await manager.async_release(old)).status is HandleStatus.RELEASED  # a late user of it: nothing to do


async def test_a_failed_release_is_quarantined_listed_and_tried_again(make):
    provider = SyntheticProvider()
    manager = make(provider)
    handle = await manager.async_ensure(wanted())
    provider.release_errors = [RuntimeError("busy"), RuntimeError("busy")]
    with pytest.raises(ExecutionResourceReleaseError, match="quarantined") as caught:
        await manager.async_release(handle)
    assert caught.value.details["handle_ids"] == [handle.handle_id]
    assert [v.error for v in manager.list(status="quarantined")] == ["RuntimeError: busy"]
    assert manager.seen[-1].event_type == "execution_resource.failed" and manager.seen[-1].status == "quarantined"
    fresh = await manager.async_ensure(wanted())  # tries once more, fails, goes on
    assert fresh is not handle and fresh.status is HandleStatus.READY
    assert manager.inspect(handle.handle_id).status is HandleStatus.QUARANTINED
    assert (await manager.async_release(handle)).status is HandleStatus.RELEASED
    assert [v.handle_id for v in manager.list()] == [fresh.handle_id]


async def test_the_next_ensure_of_the_key_releases_what_was_quarantined(make):
    provider = SyntheticProvider()
    manager = make(provider)
    handle = await manager.async_ensure(wanted())
    provider.release_errors = [RuntimeError("busy")]
    with pytest.raises(ExecutionResourceReleaseError):
        await manager.async_release(handle)
    fresh = await manager.async_ensure(wanted())
    assert handle.status is HandleStatus.RELEASED and provider.live == [fresh.resource]


async def test_a_release_that_hangs_is_quarantined_at_its_deadline(make):
    provider = SyntheticProvider()
    manager = make(provider)
    handle = await manager.async_ensure(wanted())
    provider.before_release = lambda: asyncio.sleep(60)
    started = time.monotonic()
    with pytest.raises(ExecutionResourceReleaseError, match=r"not closed within 0\.3 s"):
        await manager.async_release(handle)
    assert time.monotonic() - started < 3
    provider.before_release = None


async def test_release_scope_goes_past_failures_and_reports_all(make):
    bad, good = SyntheticProvider("bad"), SyntheticProvider("good")
    manager = make(bad, good)
    handles = [await manager.async_ensure(wanted(provider_id=name)) for name in ("bad", "good", "good")]
    assert handles[1].ref_count == 2
    bad.release_errors = [RuntimeError("busy"), RuntimeError("busy")]
    with pytest.raises(ExecutionResourceReleaseError) as caught:
        await manager.async_release_scope("session", "alice")
    report = caught.value.details["report"]
    assert [v["provider_id"] for v in report["released"]] == ["good"]
    assert [v["provider_id"] for v in report["failed"]] == ["bad"]
    assert good.live == []
    second = await manager.async_release_scope("session", "alice", raise_on_failure=False)
    assert [v.error for v in second.failed] == ["RuntimeError: busy"]
    third = await manager.async_release_scope("session", "alice")
    assert [v.provider_id for v in third.released] == ["bad"] and manager.list() == ()


async def test_release_scope_withdraws_declarations(make):
    manager = make(SyntheticProvider())
    named = manager.declare(wanted())
    await manager.async_ensure(named.requirement_id)
    await manager.async_release_scope("session", "alice")
    assert manager.list() == ()
    with pytest.raises(ConfigurationError):
        await manager.async_ensure(named.requirement_id)


async def test_release_scope_stops_an_ensure_that_is_under_way(make):
    provider = SyntheticProvider()
    provider.before_ensure = lambda: asyncio.sleep(60)
    manager = make(provider, deadlines=FAST.__class__(ensure=60))
    pending = asyncio.create_task(manager.async_ensure(wanted()))
    while "ensure" not in provider.log:
        await asyncio.sleep(0)
    await asyncio.wait_for(manager.async_release_scope("session", "alice"), 5)
    with pytest.raises(ExecutionResourceError, match="closed while it was being opened"):
        await pending
    assert manager.list() == () and manager.types[-1] == "failed"


@pytest.mark.parametrize("steps", range(12))
async def test_cancelling_an_ensure_anywhere_leaks_nothing(make, steps):
    provider = SyntheticProvider()
    provider.before_probe = lambda: asyncio.sleep(0)
    provider.before_ensure = lambda: asyncio.sleep(0)
    manager = make(provider)
    task = asyncio.create_task(manager.async_ensure(wanted()))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        handle = await task
    except asyncio.CancelledError:
        assert provider.live == [] and manager.list() == ()
    else:
        assert provider.live == [handle.resource]
    assert (await manager.async_ensure(wanted())).status is HandleStatus.READY  # the key is not stuck


async def test_a_resource_that_a_provider_returns_despite_the_cancellation_is_closed(make):
    provider = SyntheticProvider()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)

    provider.before_ensure = stubborn
    manager = make(provider)
    task = asyncio.create_task(manager.async_ensure(wanted()))
    while "ensure" not in provider.log:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(provider.opened) == 1 and provider.live == [] and manager.list() == ()


async def test_a_resource_that_comes_after_everything_was_given_up_is_closed_too(make):
    provider = SyntheticProvider()
    go = asyncio.Event()

    async def deaf() -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    provider.before_ensure = deaf
    manager = make(provider)
    with pytest.raises(ExecutionResourceUnavailable, match=r"did not start within 0\.3 s"):
        await manager.async_ensure(wanted())
    (listed,) = manager.list()
    assert listed.status is HandleStatus.QUARANTINED and "neither finished nor stopped" in listed.error
    with pytest.raises(ExecutionResourceReleaseError, match="has not ended yet"):
        await manager.async_release(listed.handle_id)
    go.set()
    await asyncio.wait_for(_until(lambda: manager.list() == ()), 5)
    assert len(provider.opened) == 1 and provider.live == []


async def _until(true) -> None:
    while not true():
        await asyncio.sleep(0.005)


async def test_a_cancelled_release_is_carried_out(make):
    provider = SyntheticProvider()
    provider.before_release = lambda: asyncio.sleep(0.05)
    manager = make(provider)
    handle = await manager.async_ensure(wanted())
    task = asyncio.create_task(manager.async_release(handle))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handle.status is HandleStatus.RELEASED and provider.live == []


async def test_progress_renews_the_deadline_and_becomes_an_event(make):
    provider = SyntheticProvider()
    manager = make(provider)
    asked: list[object] = []
    original = provider.async_ensure

    async def pulling(*, requirement, policy, existing_handle=None):
        for _ in range(4):
            await asyncio.sleep(0.15)
            asked[0].progress(requirement, "image_pull_progress", percent=25)
        return await original(requirement=requirement, policy=policy)

    provider.async_ensure = pulling
    provider.bind_host = asked.append
    await manager.async_ensure(wanted())
    assert asked == [manager]
    progress = [event for event in manager.seen if event.event_type == "execution_resource.progress"]
    assert [(e.phase, dict(e.details)) for e in progress] == [("image_pull_progress", {"percent": 25})] * 4


async def test_a_closed_manager_refuses_and_has_released_everything(make):
    provider = SyntheticProvider()
    manager = make(provider)
    await manager.async_ensure(wanted(), hold=True)
    report = await manager.aclose()
    assert len(report.released) == 1 and provider.live == []
    assert await manager.aclose() == type(report)()
    with pytest.raises(ExecutionResourceError, match="closed"):
        await manager.async_ensure(wanted())


async def test_a_hook_that_raises_or_is_removed_disturbs_nobody(make, caplog):
    manager = make(SyntheticProvider())

    def broken(event):
        raise RuntimeError("hunter2")

    got: list[str] = []
    manager.add_hook(broken)
    remove = manager.add_hook(lambda e: got.append(e.event_type), types=["execution_resource.ready"])
    handle = await manager.async_ensure(wanted())
    remove()
    await manager.async_release(handle)
    await manager.async_ensure(wanted())
    assert got == ["execution_resource.ready"]
    assert "RuntimeError" in caplog.text and "hunter2" not in caplog.text


async def test_the_reuse_path_is_fast(make):
    manager = make(SyntheticProvider())
    requirement = wanted(policy=ExecutionResourcePolicy())
    await manager.async_ensure(requirement)
    best = 1.0
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(50):
            await manager.async_ensure(requirement)
        best = min(best, (time.perf_counter() - started) / 50)
    assert best < 0.0003


def test_synchronous_forms_work_without_a_loop_and_share_one():
    provider = SyntheticProvider()
    manager = Managed(provider)
    handle = manager.ensure(wanted())
    assert manager.ensure(wanted()) is handle and handle.ref_count == 2
    manager.release(handle)
    assert manager.release_scope("session", "alice").released[0].handle_id == handle.handle_id
    assert provider.live == []
    assert manager.close().failed == ()


async def test_synchronous_forms_are_refused_on_a_running_loop(make):
    manager = make(SyntheticProvider())
    with pytest.raises(ExecutionResourceError, match="running event loop") as caught:
        manager.ensure(wanted())
    assert caught.value.code == "execution_resource.sync_in_event_loop"


async def test_a_handle_of_another_loop_is_not_shared_and_is_released_at_home(make):
    provider = SyntheticProvider()
    manager = make(provider)
    homes: list[object] = []

    async def note() -> None:
        homes.append(asyncio.get_running_loop())

    provider.before_release = note
    theirs = await asyncio.to_thread(manager.ensure, wanted())
    ours = await manager.async_ensure(wanted())
    assert theirs is not ours and len(provider.live) == 2
    await manager.async_release(theirs)
    await manager.async_release(ours)
    assert homes == [theirs.loop, ours.loop] and homes[0] is not homes[1] and provider.live == []


async def test_registering_the_same_object_twice_is_harmless_and_another_of_its_id_is_refused(make):
    provider = SyntheticProvider()
    manager = make(provider)
    manager.register_provider(provider)
    with pytest.raises(ValueError, match="'synthetic' is registered already"):
        manager.register_provider(SyntheticProvider())
    with pytest.raises(ValueError, match="lacks async_probe"):
        manager.register_provider(type("Half", (), {"provider_id": "half", "supported_kinds": ()})())


async def test_an_opened_sandbox_that_is_less_than_probed_is_closed_and_refused_under_required(make):
    first, second = SyntheticProvider("first"), SyntheticProvider("second")
    first.facts_isolation = isolation(syscalls_restricted=None)
    manager = make(first, second)
    with pytest.raises(ExecutionResourceUnavailable) as caught:
        await manager.async_ensure(wanted())
    skipped = caught.value.details["selection"]["skipped"]
    assert [(s["provider_id"], s["code"], s["subject"]) for s in skipped] == [
        ("first", "reprobe_changed", "syscalls_restricted")
    ]
    assert first.live == [] and second.log == []
