"""The lines below a cell about the files it left: bounded, with the reason, and true about their fate."""

from __future__ import annotations

from agently_kernel.contract.workspace import CollectedOutput, RefusedOutput
from agently_kernel.output_notes import collected_lines, lost_outputs, refused_line


def refused(path: str, why: str = "it is a symbolic link", *, declared: bool = False) -> RefusedOutput:
    return RefusedOutput(path=path, reason="symlink", message=f"{path} was not taken: {why}", declared=declared)


def test_refused_files_are_one_line_however_many_there_are() -> None:
    assert refused_line([], fresh=False) == ""
    assert refused_line([refused("output/a")], fresh=False) == (
        "Not copied out of output/: output/a (it is a symbolic link). They are lost when the sandbox ends."
    )
    line = refused_line([refused(f"output/{n}") for n in range(64)], fresh=True)
    assert line.endswith("output/4 (it is a symbolic link) and 59 more. They were lost with this run's sandbox.")
    assert "\n" not in line


def test_files_beyond_the_count_are_not_called_by_the_folders_name() -> None:
    line = refused_line([refused("output", "128 files were collected already, which is the limit")], fresh=False)
    assert "further files (128 files were collected already, which is the limit)" in line


def test_declared_ones_are_told_by_the_error_alone() -> None:
    assert refused_line([refused("output/a", declared=True)], fresh=False) == ""
    assert lost_outputs([refused("output/a", declared=True)]) == (
        "Declared outputs are missing or were refused: output/a (symlink: it is a symbolic link). The others were kept."
    )


def test_collected_files_beyond_a_screenful_are_counted() -> None:
    outputs = [
        CollectedOutput(path=f"output/{n}", sha256="sha256:" + "0" * 64, size=1234, stored_path="/x")
        for n in range(128)
    ]
    lines = collected_lines(outputs)
    assert lines[0] == "collected output/0 (1,234 bytes, sha256:000000000000…)"
    assert (len(lines), lines[-1]) == (21, "… and 108 more files; `%agently outputs` lists all of them")
    assert len(collected_lines(outputs[:20])) == 20
