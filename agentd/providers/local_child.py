"""One local model as a process of its own: llama.cpp's HTTP server on a Unix socket, ended when whoever started it is gone.

`python -m agentd.providers.local_child SOCKET JSON`, JSON being a local.Launch. It is a process because llama.cpp is C++ that a
damaged file or a lack of memory can end at any moment. Standard input is a pipe that nobody writes to: its end says that the
daemon is gone; the kernel says so too, should Python never come to read it. Nothing of a conversation is written anywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from agentd.providers.local_launch import Launch

TEMPLATE: Final = Path(__file__).with_name("chatml_tools.jinja")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_ERRORS_ONLY: Final = 1  # more would log what prompts and answers are made of
_NICE: Final = 5  # recording and tools go first
# The kernel, short of memory, ends the model and not the daemon or somebody's editor.
_OOM_SCORE: Final = b"600"
# A prompt takes this much memory once more when its slot is taken by another session and it is kept aside.
_CACHE_MIB: Final = 256
# What a coding agent wants, the likely word; the likeliest of a small model. Requests that set a temperature have theirs.
_TEMPERATURE: Final = 0.2


def main(socket_path: str, launch: Launch) -> None:
    """Serve until standard input ends or a signal comes. Raises RuntimeError when llama.cpp cannot."""
    _live_and_die_with_the_daemon()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = launch.path
    params.model_alias = {launch.name}
    params.hostnames = [_relative(socket_path)]  # sun_path is short, runtime directories need not be
    params.n_ctx = launch.context_tokens
    params.n_parallel = launch.slots
    params.kv_unified = True  # a session alone has the whole context
    params.n_predict = launch.max_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = launch.threads
    params.sampling.temp = 0.0 if launch.own_template else _TEMPERATURE
    params.cache_ram_mib = _CACHE_MIB
    params.verbosity = _ERRORS_ONLY
    params.use_jinja = params.offline = params.endpoint_metrics = True
    params.warmup = params.ui = params.fit_params = False
    if launch.own_template:
        params.chat_template = TEMPLATE.read_text(encoding="utf-8")
    server = xllamacpp.Server(params)  # threads of its own, as long as the object lives
    while os.read(0, 4096):
        pass
    del server


def _live_and_die_with_the_daemon() -> None:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # the conversation is in memory
    os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(_OOM_SCORE)


def _relative(socket_path: str) -> str:
    directory, name = os.path.split(socket_path)
    os.chdir(directory)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)  # of a server that was killed; llama.cpp would refuse to bind
    return name


if __name__ == "__main__":
    try:
        main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Launch))
    except ImportError as problem:
        sys.exit(f"xllamacpp cannot be loaded: {problem}")
    except RuntimeError as problem:
        sys.exit(str(problem))
    os._exit(0)  # llama.cpp's threads are waited for by nobody
