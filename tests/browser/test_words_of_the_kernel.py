"""Whatever text of the kernel a panel can show has words in the panel, and those have a translation."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import build_panel
import pytest
from kernel_words import SAMPLES, Text, texts
from lab_desk import REPO

PANEL = REPO / "labextension"
CATALOGUE = REPO / "kernel" / "agently_kernel" / "locale" / "zh_CN" / "LC_MESSAGES" / "agently_kernel_panel.json"
ASK = """
const words = await import(process.argv[1]);
let text = '';
for await (const piece of process.stdin) text += piece;
const keys = new Set();
const trans = { __: (key, ...values) => { keys.add(key); return `⟦${values.join('⟧⟦')}⟧`; } };
const say = ([name, sample]) =>
    name === 'sentence' ? words.sentence(trans, sample, 'Zz') : words[name](trans, sample);
console.log(JSON.stringify({ said: JSON.parse(text).map(say), keys: [...keys] }));
"""
TECHNICAL = re.compile(
    r"Zz|tmpfs|rlimit|cgroup\w*|SIG[A-Z]+|MiB|trusted_local|input_timeout_fail|c\.AgentlyKernel\.\w+( = True)?|`[^`]*`|https?://\S+|(/\w+){2,}"
)
"""What stays as it is in every language: values of the samples, names of mechanisms, signals and settings, commands."""


@pytest.fixture(scope="module")
def bundle(built_extension: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The panel's words as a module that node can load by itself."""
    target = tmp_path_factory.mktemp("words") / "words.mjs"
    subprocess.run(
        [str(PANEL / "node_modules" / ".bin" / "esbuild"), "--bundle", "--format=esm", f"--outfile={target}"],
        input=b"export * from './kerneltexts'; export { sentence } from './format';", cwd=PANEL / "src", check=True,
        timeout=60, env=build_panel.environment(), capture_output=True,
    )
    return target


def answer(bundle: Path, found: list[Text]) -> tuple[list[list[str]], set[str]]:
    """Return what the panel says of each text's samples, and all messages that it looked up for that."""
    asked = [(text.words, sample) for text in found for sample in text.samples]
    done = subprocess.run(
        [build_panel.find_node() or "node", "--input-type=module", "-e", ASK, bundle.as_uri()],
        input=json.dumps(asked).encode(), check=True, timeout=60, capture_output=True,
    )
    reply = json.loads(done.stdout)
    said = iter(reply["said"])
    return [[next(said) for _ in text.samples] for text in found], set(reply["keys"])


def english(said: str) -> str:
    """Return the first letters that no translator was asked for."""
    left = re.search(r"[A-Za-z]{2,}.*", TECHNICAL.sub("", said))
    return left.group() if left else ""


def test_every_text_of_the_kernel_that_a_panel_shows_is_translated(bundle: Path) -> None:
    found = texts()
    assert len(found) > 200, "the texts are not found any more"
    said, keys = answer(bundle, found)
    missing = [
        f"{text.place} {text.words}: {text.template}"
        for text, each in zip(found, said, strict=True) if all(english(one) for one in each)
    ]
    assert missing == []
    known = set(json.loads(CATALOGUE.read_text())) | set(SAMPLES)  # a question's title stands for itself
    assert sorted(keys - known) == []


def test_what_is_not_known_stays_as_the_kernel_said_it(bundle: Path) -> None:
    odd = Text("here", "replyText", "", ("An outside provider says something of its own.",))
    said, _ = answer(bundle, [odd])
    assert said == [["An outside provider says something of its own."]]
    assert english(said[0][0])
