"""Stand-ins for Slurm's commands that write down how they were called, and refuse what they
do not know; and small specs and sites to make scripts from."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcprof.job_spec import JobSpec
from hpcprof.site_config import Site
from hpcprof.submit.placement import Placement
from hpcprof.submit.script import render_job_script

# as sbatch does: read directives up to the first command, refuse unknown options
_SBATCH = """
import json, os, sys
KNOWN = set('''--parsable --output --open-mode --dependency --clusters --job-name --nodes --ntasks
    --ntasks-per-node --cpus-per-task --gres --time --mem --account --partition --constraint
    --signal --array --comment'''.split())
log = os.environ['STUB_LOG']
script = sys.stdin.read()
directives = []
for line in script.splitlines():
    if line.startswith('#SBATCH'):
        words = line[len('#SBATCH'):].split()
        if len(words) != 1:
            sys.exit(f'sbatch: error: not one word: {line}')
        directives += words
    elif line.strip() and not line.strip().startswith('#'):
        break
for option in sys.argv[1:] + directives:
    if option.partition('=')[0] not in KNOWN:
        sys.exit(f"sbatch: unrecognized option '{option}'")
calls = len(open(log).readlines()) if os.path.exists(log) else 0
refuse = os.environ.get('STUB_REFUSE', '')
if refuse and str(calls) in refuse.partition(':')[0].split(','):
    sys.exit('sbatch: error: ' + refuse.partition(':')[2])
with open(log, 'a') as stream:
    stream.write(json.dumps({'argv': sys.argv[1:], 'directives': directives, 'script': script}))
    stream.write(chr(10))
print(os.environ.get('STUB_ANSWER', '').format(4711 + calls) or 4711 + calls)
"""

_SRUN = """
import json, os, signal, sys, time
with open(os.environ['STUB_LOG'], 'a') as stream:
    stream.write(json.dumps({'argv': sys.argv[1:], 'env': dict(os.environ), 'cwd': os.getcwd(),
                             'umask': os.umask(0)}) + chr(10))
if 'agent' in sys.argv[-2:]:
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
    print('agent says hello', flush=True)
    time.sleep(float(os.environ.get('STUB_AGENT_SLEEP', '0')))
    sys.exit(5)
if sys.argv[-1] == 'flush':
    print('flush says hello', flush=True)
    time.sleep(float(os.environ.get('STUB_FLUSH_SLEEP', '0')))
    sys.exit(6)
time.sleep(float(os.environ.get('STUB_SLEEP', '0')))
sys.exit(int(os.environ.get('STUB_EXIT', '0')))
"""

_SCONTROL = """
import sys
if sys.argv[1:3] == ['show', 'hostnames']:
    print('node0', 'node1', sep=chr(10))
elif sys.argv[1:] == ['show', 'config']:
    print('Configuration data as of today', 'ClusterName             = stubs', sep=chr(10))
else:
    sys.exit('scontrol: invalid entity')
"""

# stands for hpcprof's interpreter in a job: knows the calls that job scripts make themselves
INTERPRETER = """#!/bin/bash
case "$*" in
  "-I -c import hpcprof") exit 0 ;;
  "-I -c import hpcprof; print(*hpcprof.__path__)") echo "$STUB_PACKAGE" ;;
  "-I -m hpcprof agent --start "*) exec "$STUB_PYTHON" "$@" ;;
  "-I -m hpcprof collect "*) printf '%s\\n' "$5" >> "$STUB_LOG"; exit "${STUB_EXIT:-0}" ;;
  *) echo "unknown call: $*" >&2; exit 99 ;;
esac
"""


@dataclass(frozen=True)
class Stubs:
    """A folder with the stubs, first on PATH, and the log of their calls."""

    bin: Path
    log: Path

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of a job or a login node that has these stubs."""
        path = f"{self.bin}:{os.environ['PATH']}"
        return {
            "PATH": path,
            "HOME": str(self.bin.parent),
            "STUB_LOG": str(self.log),
            "STUB_PYTHON": sys.executable,
            **more,
        }

    def calls(self) -> list[dict[str, Any]]:
        """Every recorded call but those that start the node agent or a flush, in order."""
        return [call for call in self._all_calls() if not _starts(call, "agent", "flush")]

    def agent_calls(self) -> list[dict[str, Any]]:
        """Calls of srun that start the node agent."""
        return [call for call in self._all_calls() if _starts(call, "agent")]

    def flush_calls(self) -> list[dict[str, Any]]:
        """Calls of srun that end the recordings."""
        return [call for call in self._all_calls() if _starts(call, "flush")]

    def _all_calls(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def _starts(call: Any, *verbs: str) -> bool:
    return isinstance(call, dict) and any(verb in call["argv"][-2:] for verb in verbs)


def install_stubs(folder: Path) -> Stubs:
    """Write sbatch, srun, scontrol and an interpreter named ``python`` into ``folder``/bin."""
    stubs = Stubs(folder / "bin", folder / "calls.jsonl")
    stubs.bin.mkdir()
    for name, code in (("sbatch", _SBATCH), ("srun", _SRUN), ("scontrol", _SCONTROL)):
        write_program(stubs.bin / name, f"#!{sys.executable}\n{code}")
    write_program(stubs.bin / "hpcprof-python", INTERPRETER)
    return stubs


def write_program(path: Path, text: str) -> Path:
    """An executable file."""
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run_script(script: str, stubs: Stubs, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a job script as Slurm's batch step does: by bash, from a file, as job 4711."""
    path = stubs.bin.parent / "slurm_script"
    path.write_text(script)
    environ = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[0-1]", **more}
    return subprocess.run(
        ["bash", str(path)],
        env=stubs.environ(**environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def make_spec(**fields: Any) -> JobSpec:
    """A small valid spec with some fields set."""
    return JobSpec(
        **{"name": "cnn", "strategy": "horovod", "time": "10", "command": ["train"], **fields}
    )


def make_site(**fields: Any) -> Site:
    """A site with some fields set."""
    return Site(**{"name": "here", **fields})


def place_in(folder: Path, stubs: Stubs | None = None, **fields: Any) -> Placement:
    """Run folders in ``folder``/runs, training in ``folder``."""
    interpreter = str(stubs.bin / "hpcprof-python") if stubs else "/opt/hpcprof/bin/python"
    return Placement(
        **{
            "output_dir": folder / "runs",
            "workdir": folder,
            "interpreter": interpreter,
            "version": "1.2.3",
            **fields,
        }
    )


def script_for(stubs: Stubs, spec: JobSpec | None = None, **site: object) -> str:
    """A job script that uses the stubs' interpreter."""
    place = place_in(stubs.bin.parent, stubs)
    return render_job_script(spec or make_spec(), make_site(**site), place)


def agent_words() -> list[str]:
    """What srun starts on each node; the agents' job step is started by the real hpcprof."""
    return [sys.executable, "-I", "-m", "hpcprof", "agent"]


def launched(stubs: Stubs) -> list[str]:
    """What a launcher in front of the command looks like."""
    return [str(stubs.bin / "hpcprof-python"), "-I", "-m", "hpcprof", "launch", "--"]
