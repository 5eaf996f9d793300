"""The documents name everything that exists, and nothing that does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcprof.__main__ import _IN_JOB_VERBS
from hpcprof.cli import main as cli
from hpcprof.cli.main import VERBS
from hpcprof.findings import RULES

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).resolve().parents[2]
IN_JOB_VERBS = set(_IN_JOB_VERBS)  # served before click is imported
DOCUMENTS = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])
_LINK_RE = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_help_lists_the_verbs_that_run_inside_a_job():
    assert {name for name, _ in cli.IN_JOB_VERBS} == IN_JOB_VERBS


def _all_text():
    return "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_resolves(path):
    links = _LINK_RE.findall(path.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("verb", sorted({verb.name for verb in VERBS} | IN_JOB_VERBS))
def test_every_verb_is_documented(verb):
    assert f"hpcprof {verb}" in _all_text()


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_is_documented(rule):
    assert f"`{rule}`" in _all_text()


@pytest.mark.parametrize("site", sorted((REPOSITORY / "site_configs").glob("*.yaml")))
def test_every_site_file_is_documented(site):
    assert f"`{site.stem}`" in _all_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_no_verb_that_does_not_exist(path):
    text = path.read_text(encoding="utf-8")
    fenced = re.findall(r"```[a-z]*\n(.*?)```", text, flags=re.DOTALL)
    code = [*fenced, *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))]
    used = {v for c in code for v in re.findall(r"^ *hpcprof ([a-z]+)", c, flags=re.MULTILINE)}
    assert used <= {verb.name for verb in VERBS} | IN_JOB_VERBS
