"""Settings: what is read, and the sentence for each fault."""

from __future__ import annotations

import datetime
import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agently_kernel.contract.isolation import ResourceLimits
from agently_kernel.contract.workspace import CollectionLimits
from agently_kernel.kernel import AgentlyKernel
from agently_kernel.sandbox.limits import boot_rlimits, cpu_choice, shared_memory_bytes
from agently_kernel.settings import KernelSettings, parse_size, read_settings


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1048576),
        ("2G", 2 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("1.5k", 1536),
        ("1T", 2**40),
        (7, 7),
        (None, None),
    ],
)
def test_sizes(text: object, size: object) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1G", "1 X", "G", "1GG"])
def test_bad_sizes_name_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="is no size; write bytes or a number with K, M, G or T"):
        parse_size(text)


def test_values_of_a_file_and_of_a_command_line_mean_the_same() -> None:
    from_file, faults = read_settings(
        {
            "providers": ["bubblewrap", {"provider_id": "docker", "config": {"image": "x:1"}}],
            "timeout": 5,
            "limits": {"memory": "1 GiB", "scratch": "disk"},
            "isolation": "preferred",
        }
    )
    assert faults == ()
    from_line, faults = read_settings(
        {
            "providers": "['bubblewrap', {'provider_id': 'docker', 'config': {'image': 'x:1'}}]",
            "timeout": "5",
            "limits": "{'memory': '1 GiB', 'scratch': 'disk'}",
            "isolation": "preferred",
        }
    )
    assert faults == ()
    assert from_file == from_line
    assert [candidate.provider_id for candidate in from_file.providers] == ["bubblewrap", "docker"]
    assert from_file.limits.memory_bytes == 2**30
    assert from_file.limits.scratch == "disk"
    assert from_file.policy().timeout_seconds == 5.0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"provider": ["x"]},
            "c.AgentlyKernel.provider is not a setting. Did you mean providers? Allowed: approval_mode, ",
        ),
        (
            {"isolation": "strong"},
            "c.AgentlyKernel.isolation = 'strong' is not valid: input should be 'required', 'preferred' or 'none'.",
        ),
        (
            {"limits": {"memroy": "2G"}},
            "c.AgentlyKernel.limits.memroy is not a setting. Did you mean memory? Allowed: cpus, file_size, inodes, ",
        ),
        (
            {"limits": {"memory": "1K"}},
            "c.AgentlyKernel.limits.memory = '1K' is not valid: it must be at least 64 MiB and ",
        ),
        ({"providers": ["Bad Id"]}, "c.AgentlyKernel.providers.0.provider_id = 'Bad Id' is not valid: "),
        ({"timeout": 0}, "c.AgentlyKernel.timeout = 0 is not valid: it must be more than 0 and "),
        ({"timeout": float("inf")}, "c.AgentlyKernel.timeout = inf is not valid: it must be more than 0 and "),
        (
            {"save_outputs": "../up"},
            "c.AgentlyKernel.save_outputs = '../up' is not valid: must name a folder below the notebook's ",
        ),
        ({"pass_environment": "A-B"}, "'A-B' is no name of an environment variable, such as 'RUN_DATE'"),
        ({"pass_environment": ["HOME"]}, "'HOME' is set by the sandbox itself, or steers what it loads"),
        ({"pass_environment": ["RUN_DATE", "LD_PRELOAD"]}, "'LD_PRELOAD' is set by the sandbox itself, or steers"),
        ({"pass_environment": ["PYTHONSTARTUP"]}, "'PYTHONSTARTUP' is set by the sandbox itself, or "),
        ({"unsafe_fallback": True}, "unsafe_fallback=True needs isolation='preferred' or 'none'"),
        (
            {"providers": [{"provider_id": "a", "cfg": 1}]},
            "c.AgentlyKernel.providers.0.cfg is not a setting. Did you mean config?",
        ),
    ],
)
def test_a_fault_names_the_field_and_what_is_allowed(given: dict[str, Any], sentence: str) -> None:
    settings, faults = read_settings(given)
    assert settings == KernelSettings()
    assert len(faults) == 1
    assert sentence in faults[0]


def test_every_fault_is_told() -> None:
    _, faults = read_settings({"isolation": "x", "timeout": -1, "nonsense": 1})
    assert len(faults) == 3


def test_a_secret_in_a_providers_config_is_in_no_fault_and_no_repr() -> None:
    given = {"providers": [{"provider_id": "docker", "config": {"env": {"TOKEN": "hunter2"}}, "cfg": "hunter2x"}]}
    settings, faults = read_settings(given)
    assert faults and "hunter2" not in " ".join(faults).replace("hunter2x", "")
    del given["providers"][0]["cfg"]
    settings, faults = read_settings(given)
    assert faults == ()
    assert "hunter2" not in repr(settings)


def test_every_setting_is_a_trait_of_the_kernel() -> None:
    assert set(KernelSettings.model_fields) <= set(AgentlyKernel.class_own_traits(config=True))


# -- ranges: whatever number somebody writes, it is taken within bounds that everything below can work with, or refused


NUMBERS = {
    **{f"limits.{name}": ResourceLimits for name in ResourceLimits.model_fields if name != "scratch"},
    **{f"collection.{name}": CollectionLimits for name in CollectionLimits.model_fields},
    **dict.fromkeys(("approval_timeout", "timeout", "interrupt_grace", "cell_output_bytes"), KernelSettings),
}
WRITTEN = st.one_of(
    st.integers(), st.integers(-(2**70), 2**70), st.integers(1, 2**51), st.floats(), st.just(10**5000), st.booleans(),
    st.builds(lambda n, unit: f"{n}{unit}", st.integers(0, 10**9), st.sampled_from(["", "K", "M", "G", "T", "TiB"])),
    st.sampled_from(["1e400", "9" * 5000, "nan", "inf", "-inf", "٣", "None", "", "[]", "1.5", "9999999T"]),
)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(sorted(NUMBERS)), WRITTEN)
def test_every_number_is_in_its_range_or_refused_with_field_value_and_range(path: str, written: object) -> None:
    part, _, name = path.rpartition(".")
    read, faults = read_settings({part: {name: written}} if part else {name: written})
    if faults:
        assert read == KernelSettings()
        assert len(faults) == 1 and faults[0].startswith(f"c.AgentlyKernel.{part or name}") and name in faults[0]
        assert faults[0].endswith(".") and len(faults[0]) < 400
        return
    value = getattr(getattr(read, part) if part else read, name)
    assert value is None or (math.isfinite(value) and 0 < value < 2**53), value
    limits = read.policy().limits
    assert all(0 <= number < 2**63 for number in boot_rlimits(limits, processes_by_rlimit=True).values())
    struct.pack("=4q", shared_memory_bytes(limits), limits.scratch_bytes, limits.output_bytes, limits.inodes)
    assert datetime.timedelta(seconds=read.timeout or 1) >= datetime.timedelta(0)
    assert cpu_choice(limits.cpus) != frozenset()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"limits": {"memory": "9999999T"}}, "limits.memory = '9999999T' is not valid: it must be at least 64 MiB"
         " and at most 1 PiB."),
        ({"limits": "{'memory': '5M'}"}, "limits.memory = '5M' is not valid: it must be at least 64 MiB and at "
         "most 1 PiB."),
        ({"limits": {"cpus": math.inf}}, "limits.cpus = inf is not valid: it must be at least 0.01 and at most 8,192."),
        ({"limits": {"processes": 10**5000}}, "limits.processes = a number of about 5000 digits is not valid: it must "
         "be at least 16 and at most 4,194,304."),
        ({"limits": {"scratch_bytes": "much"}}, "limits is not valid: scratch_bytes: 'much' is no size; write bytes"),
        ({"timeout": 1e300}, "timeout = 1e+300 is not valid: it must be more than 0 and at most 31,622,400."),
        ({"cell_output_bytes": "1"}, "cell_output_bytes = '1' is not valid: it must be at least 64 KiB and at most 1 "
         "GiB."),
    ],
)
def test_a_number_out_of_range_is_told_as_it_was_written(given: dict[str, Any], sentence: str) -> None:
    _, faults = read_settings(given)
    assert len(faults) == 1 and faults[0].startswith(f"c.AgentlyKernel.{sentence}")
