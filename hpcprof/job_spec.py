"""``hpcprof.yaml``, the job spec: what to train, on what, and how to watch it.

Checks each field by itself. Does not look at the site, at Slurm, or at the file system.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from hpcprof.artifacts.step_range import StepRange
from hpcprof.config_file import ConfigModel, read_config_file, validate
from hpcprof.config_types import (
    SCHEMA,
    Env,
    Line,
    Lines,
    Mounts,
    SchemaVersion,
    Text,
    TimeLimit,
)

Strategy = Literal["horovod", "multiworker"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

# it becomes a folder name, a Slurm job name and part of a file name pattern
_NAME_RE = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_MEM_RE = re.compile(r"\A[0-9]+[KMGTkmgt]?\Z")
_RANKS_RE = re.compile(r"\A(all|(local)?[0-9]+|[0-9]+-[0-9]+|node:[A-Za-z0-9._-]+)\Z")
# Slurm keeps time for --signal to 60 s only (man sbatch), and nsys has to write what it holds
_MIN_FLUSH_S = 120
_MAX_FLUSH_S = 65535  # sbatch's own limit
# what only a shell would understand in a word of a command
_SHELL_SYNTAX_RE = re.compile(r"\A(\|\|?|&&?|[0-9]?>>?(&[0-9])?|<)\Z|;\Z|\$[A-Za-z_{(]|`")


def _name(value: str) -> str:
    if not _NAME_RE.match(value):
        raise ValueError("may hold letters, digits, '.', '_' and '-' (64 at most, no '-' first)")
    return value


def _mem(value: str) -> str:
    if not _MEM_RE.match(value):
        raise ValueError("is not an amount of memory per node; write 64G, or 0 for all of it")
    return value


def _ranks(value: str) -> str:
    if not all(_RANKS_RE.match(part) for part in value.split(",")):
        raise ValueError("choose ranks by all, 0, 0-3, local0 or node:NAME, with commas between")
    return value


def _steps(value: str) -> str:
    return str(StepRange.from_text(value))


def _steps_or_none(value: str) -> str:
    return value if value == "none" else _steps(value)


def _flush(value: int) -> int:
    if value and value < _MIN_FLUSH_S:
        raise ValueError(
            "is too short: Slurm sends its signal to a minute only, and nsys then writes what it "
            f"has recorded. Give {_MIN_FLUSH_S} or more, or 0 to leave the flush out"
        )
    if value > _MAX_FLUSH_S:
        raise ValueError(f"is more than sbatch --signal takes ({_MAX_FLUSH_S})")
    return value


def _image(value: str) -> str:
    if value.startswith("-"):
        raise ValueError("is an option, not an image; options belong into container.extra")
    return value


def _words(value: Any) -> Any:
    """A command given as one string, as words. A list passes through."""
    if not isinstance(value, str):
        return value
    try:
        words = shlex.split(value)
    except ValueError:
        raise ValueError("has a quote that is not closed") from None
    shell = next((word for word in words if _SHELL_SYNTAX_RE.search(word)), None)
    if shell:
        raise ValueError(
            f"is not run by a shell, so {shell!r} would reach the program as it is; "
            "write command: [bash, -c, '...'] to have one, or a list of words to mean it"
        )
    return words


JobName = Annotated[str, AfterValidator(_name)]
Memory = Annotated[str, AfterValidator(_mem)]
RankSelection = Annotated[str, AfterValidator(_ranks)]
Steps = Annotated[Line, AfterValidator(_steps)]
StepsOrNone = Annotated[Line, AfterValidator(_steps_or_none)]
FlushSeconds = Annotated[NonNegativeInt, AfterValidator(_flush)]
Image = Annotated[Line, AfterValidator(_image)]
Command = Annotated[tuple[Text, ...], BeforeValidator(_words), Field(min_length=1)]


class ProfileSpec(ConfigModel):
    """How the ranks are watched. ``trace`` None means the site's list.

    ``steps``: "20-59", both included and counted from 0; None records the whole run.
    ``hang_after_s``: no step for so long, and the stacks are written down; 0: never.
    ``flush_s``: the recordings are ended so long before the time limit; 0: they are not.
    ``agent``: one more task per node that reads clocks and counters beside the training,
    the clocks and the network every ``agent_interval_s`` seconds.
    ``horovod_timeline``: Horovod's own timeline too, which makes it wait for the GPU;
    ``horovod_ticks``: without Horovod's cache, so that it tells of every step who was ready when.
    ``hooks``: steps and phases also of scripts that know nothing of hpcprof. ``recorder``: our own,
    of NVTX ranges, on ranks without nsys. ``op_steps``: in which TensorFlow names its operations;
    None: 10-29, or the first 20 of ``steps``. ``tf_ranks`` are recorded by tf.profiler in
    ``tf_steps``; None: none.
    """

    profiler: Literal["auto", "nsys", "none"] = "auto"
    trace: Lines | None = None
    ranks: RankSelection = "all"
    extra: Lines = ()
    steps: Steps | None = None
    hang_after_s: NonNegativeInt = 600
    flush_s: FlushSeconds = 240
    agent: Literal["auto", "none"] = "auto"
    agent_interval_s: PositiveInt = 30
    horovod_timeline: bool = False
    horovod_ticks: bool = False
    hooks: bool = True
    recorder: Literal["auto", "none"] = "auto"
    op_steps: StepsOrNone | None = None
    tf_ranks: RankSelection | None = None
    tf_steps: Steps = "30-39"


class PythonSpec(ConfigModel):
    """Which Python runs what.

    ``activate`` is shell text that makes the environment of the training. ``interpreter`` is the
    Python that runs hpcprof itself inside the job; None is the one that made the job script.
    """

    activate: Text | None = None
    interpreter: Line | None = None


class ContainerSpec(ConfigModel):
    """What the training runs in.

    ``mounts``: HOST, HOST:INSIDE or HOST:INSIDE:FLAGS. ``extra``: more options, of apptainer exec
    or, with Pyxis, of srun. ``python`` is the image's, 3.8 or newer; Pyxis alone needs it, to run
    hpcprof launch inside.
    """

    runtime: Literal["apptainer", "singularity", "pyxis"]
    image: Image
    mounts: Mounts = ()
    python: Line = "python3"
    extra: Lines = ()


class JobSpec(ConfigModel):
    """One training job. Slurm's words mean what they mean to Slurm."""

    schema_version: SchemaVersion = Field(SCHEMA, alias="schema")
    name: JobName
    strategy: Strategy
    site: Line = "auto"
    nodes: PositiveInt = 1
    ranks_per_node: PositiveInt = 1
    gpus_per_node: NonNegativeInt = 0
    cpus_per_task: PositiveInt = 1
    time: TimeLimit
    account: Line | None = None
    partition: Line | None = None
    mem: Memory | None = None
    command: Command
    env: Env = Field(default_factory=dict)
    workdir: Line | None = None
    output_dir: Line | None = None
    data_dir: Line | None = None
    python: PythonSpec = PythonSpec()
    container: ContainerSpec | None = None
    profile: ProfileSpec = ProfileSpec()
    sbatch_extra: Lines = ()
    srun_extra: Lines = ()
    collect: bool = True

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.ranks_per_node

    @field_validator("profile")
    @classmethod
    def _timeline_is_horovods(cls, profile: ProfileSpec, known: ValidationInfo) -> ProfileSpec:
        strategy = known.data.get("strategy")  # missing when it was wrong itself
        if profile.horovod_timeline and strategy not in (None, "horovod"):
            raise ValueError(
                f"horovod_timeline: yes records nothing with strategy: {strategy}, which does not "
                "use Horovod; leave profile.horovod_timeline out"
            )
        if profile.horovod_ticks and not profile.horovod_timeline:
            raise ValueError(
                "horovod_ticks: yes slows Horovod down for ticks that only its timeline shows; "
                "write horovod_timeline: yes too, or leave profile.horovod_ticks out"
            )
        return profile


def load_spec(path: str | Path) -> JobSpec:
    """Read a job spec.

    Raises InputError when the file cannot be read, UsageError when something in it is wrong.
    """
    return validate(JobSpec, read_config_file(Path(path), "job spec"))
