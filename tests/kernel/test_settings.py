"""Settings: what is read, and the sentence for each fault."""

from __future__ import annotations

from typing import Any

import pytest

from agently_kernel.kernel import AgentlyKernel
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
            "c.AgentlyKernel.limits.memroy is not a setting. Allowed: cpus, file_size_bytes, ",
        ),
        (
            {"limits": {"memory": "1K"}},
            "c.AgentlyKernel.limits.memory_bytes = 1024 is not valid: input should be greater than or equal ",
        ),
        ({"providers": ["Bad Id"]}, "c.AgentlyKernel.providers.0.provider_id = 'Bad Id' is not valid: "),
        ({"timeout": 0}, "c.AgentlyKernel.timeout = 0 is not valid: input should be greater than 0."),
        ({"timeout": float("inf")}, "c.AgentlyKernel.timeout = inf is not valid: must be a finite number of seconds."),
        (
            {"save_outputs": "../up"},
            "c.AgentlyKernel.save_outputs = '../up' is not valid: must name a folder below the notebook's ",
        ),
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
