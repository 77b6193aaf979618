"""`orrery serve`: a real model behind an OpenAI-compatible endpoint on the loopback."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orrery.cli.asking import check_number
from orrery.cli.common import Json, answer, new_app, preparing, say, talk

if TYPE_CHECKING:
    from orrery.models.ports import Scheduler

app = new_app()


@app.command("serve")
def command(
    model: Annotated[
        str,
        typer.Option("--model", metavar="NAME|FILE.gguf",
                     help="smollm2, a GGUF file, or a model of the catalogue (random weights)."),
    ] = "smollm2",
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.")] = 8000,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="ID|MODULE:CLASS",
                     help="Who is computed next; any scheduler of the serving room."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="Knobs of it.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[
        str, typer.Option("--dtype", help="fp32, bf16, fp16 or fp64; by default the device's.")
    ] = "",
    kv_tokens: Annotated[
        int, typer.Option("--kv-tokens", help="Tokens that the KV cache holds; 0: four contexts.")
    ] = 0,
    threads: Annotated[
        int, typer.Option("--threads", help="Threads of PyTorch; 0 leaves them as they are.")
    ] = 0,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Serve a model to ordinary OpenAI clients, on this machine only.

    Continuous batching, chunked prompts, a prefix cache and streaming; the same scheduler objects
    as in virtual time choose each step. Ends with Ctrl-C: answers under way may finish first.

    \b
    Examples:
      orrery serve
      orrery serve --port 9000 --scheduler vllm-v1 --set max_tokens=256
      curl http://127.0.0.1:8000/v1/models
    """
    check_number("--port", port, 0, 65_535)
    check_number("--kv-tokens", kv_tokens, 0, 1 << 30)
    check_number("--threads", threads, 0, 1024)
    chosen = _scheduler(scheduler, settings or [])
    from orrery.models.real import serve

    talk(f"loading {model} ...")
    ending = threading.Event()
    with _signals(ending):
        server = serve(
            model, port, scheduler=chosen, device=device, dtype=dtype, kv_tokens=kv_tokens,
            threads=threads,
        )  # fmt: skip
        try:
            _announce(server, as_json)
            while not ending.wait(0.2):
                pass
        finally:
            talk("finishing the answers under way ...")
            server.close()


def _announce(server: Any, as_json: bool) -> None:
    service = server.service
    document = {
        "address": server.url, "model": service.name, "context": service.longest,
        "device": service.replica.model.device, "dtype": service.replica.model.dtype_name,
        "scheduler": repr(service.replica.scheduler),
    }  # fmt: skip

    def show() -> None:
        say(f"{service.name} at {server.url} ({service.longest} tokens of context)")
        talk("stop with Ctrl-C")

    answer(document, as_json, show)


def _scheduler(text: str | None, settings: list[str]) -> Scheduler:
    from orrery.base.errors import UsageError
    from orrery.cli.asking import find_part, split_settings, with_settings
    from orrery.models.ports import Scheduler
    from orrery.models.real import Continuous

    words = split_settings(settings)
    if text is None:
        return with_settings(Continuous, words)
    with preparing():
        part = find_part(text, words)[1]
    if not isinstance(part, Scheduler):
        raise UsageError(f"--scheduler {text}: {type(part).__name__} is no scheduler of a replica")
    return part


class _signals:
    """Ctrl-C and a polite kill end the command in order."""

    def __init__(self, ending: threading.Event) -> None:
        self._ending, self._before = ending, {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                self._before[each] = signal.signal(each, self._end)

    def _end(self, *_: object) -> None:
        if self._ending.is_set():
            raise KeyboardInterrupt  # asked twice: at once
        self._ending.set()

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
