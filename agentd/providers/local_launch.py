"""How a local model is started: which file a name means, whether it fits into memory, with how many threads. Decided, not done."""

from __future__ import annotations

import os
import re
from typing import Final

from msgspec import Struct

from agentd.providers.gguf import GgufHead, NotGguf, read_head
from agentd.providers.models import ModelInfo, near_names
from tracewriter.events import Failure

SUFFIX: Final = ".gguf"
PULLED: Final = "smollm2"  # what `agentctl models pull` knows
MAX_LISTED: Final = 1_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
# Compute buffers, prompts kept aside and Python: 250 to 400 MiB were seen.
_OVERHEAD_BYTES: Final = 400 * 1024 * 1024
_LEAST_CONTEXT: Final = 2_048
_UNKNOWN_CONTEXT: Final = 4_096  # a file that does not say what it was trained for
_MAX_ANSWER: Final = 4_096
_MAX_SMALL_ANSWER: Final = 512  # a model that knows no tools has said all it can by then
_GIB: Final = 1024**3
INSTALL: Final = (
    "in agentd's directory `pip install -e '.[local]'`, or `pip install xllamacpp` where agentd is installed"
)


class LocalConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`[local]` of the configuration: the server of local models.

    idle_s: stopped after so many seconds without a request. start_s: how long loading may take. context_tokens: at most so
    many tokens of context (less when the model was trained for less, or memory is short). threads: 0 chooses.
    """

    idle_s: float = 300.0
    start_s: float = 120.0
    context_tokens: int = 16_384
    threads: int = 0


class Launch(Struct, frozen=True):
    """All that the process is told. `own_template`: the model's template knows no tools, ours does. `slots`: requests at once."""

    path: str
    name: str
    context_tokens: int
    max_tokens: int
    threads: int
    slots: int = 2
    own_template: bool = False


class Machine(Struct, frozen=True):
    """What there is: bytes of memory that can be had, cores that we may use, and how many of them are busy (the load)."""

    free_bytes: int
    cores: int
    load: float


def this_machine() -> Machine:
    """As it is now. Where the kernel does not say how much memory is free, all is taken to be."""
    cores = len(os.sched_getaffinity(0))
    free = 1 << 62
    try:
        with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    free = int(line.split()[1]) * 1024
        return Machine(free, cores, os.getloadavg()[0])
    except (OSError, ValueError, IndexError):
        return Machine(free, cores, 0.0)


def find(model: str, directory: str, home: str) -> str | Failure:
    """The file that a model's name means: NAME in `directory`, or a whole path (`~/` is `home`)."""
    model = os.path.join(home, model[2:]) if model.startswith("~/") and home else model
    if os.path.isabs(model):
        path = os.path.realpath(model)
        hint = "check the path after local/"
    elif not _NAME.fullmatch(model):
        shown = "".join(char if char.isprintable() else "?" for char in model[:80])
        hint = "write local/NAME, or the whole path: local//home/me/model.gguf"
        return Failure("config", f"'{shown}' is no local model: neither a name nor a whole path", hint)
    else:
        path = os.path.join(directory, model.removesuffix(SUFFIX) + SUFFIX)
        hint = _where_from(model, directory)
    if not os.path.isfile(path):
        what = "is no file" if os.path.exists(path) else "does not exist"
        return Failure("config", f"there is no local model {model[:200]}: {path[:500]} {what}", hint)
    return os.path.realpath(path)


def _where_from(model: str, directory: str) -> str:
    if model.removesuffix(SUFFIX) == PULLED:
        return f"`agentctl models pull {PULLED}` gets it"
    names = [one.id for one in listed(directory)]
    near = " or ".join(f"local/{name}" for name in near_names(model, names))
    found = f"did you mean {near}?" if near else f"there are {', '.join(names[:8])}" if names else ""
    return found or f"put a GGUF file there, name its path (local//…), or `agentctl models pull {PULLED}`"


def listed(directory: str) -> tuple[ModelInfo, ...]:
    """The models in the directory, by name, with their context where the file says it. Blocks; what cannot be read is left out."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))[:MAX_LISTED]
    except OSError:
        return ()
    found = []
    for name in names:
        try:
            head = read_head(os.path.join(directory, name))
        except (OSError, NotGguf):
            continue
        if name.removesuffix(SUFFIX) and name.isprintable():
            found.append(ModelInfo(name.removesuffix(SUFFIX), head.context_tokens or None))
    return tuple(found)


def plan(path: str, name: str, machine: Machine, config: LocalConfig) -> Launch | Failure:
    """How to start this file's server here, or why it cannot be. Reads the file's head: blocks."""
    try:
        head = read_head(path)
    except NotGguf as exc:
        return Failure("config", f"{path[:500]} {exc}", "llama.cpp reads GGUF files; get it again if it was one")
    except OSError as exc:
        return Failure("config", f"{path[:500]} cannot be read: {(exc.strerror or 'unknown').lower()}", "mend that")
    context = _context(head, machine, config)
    if isinstance(context, Failure):
        return context
    threads = config.threads or thread_count(machine)
    small = wants_our_template(head.chat_template)
    most = min(_MAX_SMALL_ANSWER if small else _MAX_ANSWER, context // 4)
    return Launch(path, name, context, most, threads, own_template=small)


def _context(head: GgufHead, machine: Machine, config: LocalConfig) -> int | Failure:
    """The largest context that is wanted, was trained for and fits: halved until it does."""
    wanted = min(config.context_tokens, head.context_tokens or _UNKNOWN_CONTEXT)
    while True:
        needed = head.size_bytes + head.kv_bytes_per_token * wanted + _OVERHEAD_BYTES
        if needed <= machine.free_bytes:
            return wanted
        if wanted // 2 < _LEAST_CONTEXT:
            break
        wanted //= 2
    message = f"not enough memory for this model: it needs {_gib(needed)}, {_gib(machine.free_bytes)} can be had"
    return Failure("config", message, "end something, or take a smaller model or quantisation")


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def thread_count(machine: Machine) -> int:
    """As many as there are idle cores. llama.cpp's threads wait for each other, spinning, hundreds of times for each token:
    a thread without a core of its own holds up all the others."""
    return max(1, min(machine.cores, round(machine.cores - machine.load)))


def wants_our_template(template: str) -> bool:
    """Whether a model's own chat template is ChatML (or missing) without tools. Others are llama.cpp's to handle."""
    return "tools" not in template and ("<|im_start|>" in template or not template)
