"""`orrery doctor`: what works on this machine, and how to mend what does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from orrery.cli.common import Json, answer, new_app, say
from orrery.cli.table import print_table

app = new_app()
PROBE_S = 5.0
# Each extra of the package, and the modules that it brings.
EXTRAS = {
    "fast": ("uvloop",),
    "tables": ("pyarrow",),
    "topologies": ("topohub",),
    "verify": ("z3",),
    "sign": ("cryptography",),
    "bench": ("simpy",),
    "test": ("pytest", "hypothesis", "mypy", "ruff", "importlinter"),
    "docs": ("markdown",),
    "ray": ("ray",),
}
# What is tried in a network of its own, which ends with the command: nothing outside it changes.
SHAPERS = {
    "tbf": "tc qdisc add dev lo root tbf rate 1mbit burst 32kbit latency 400ms",
    "htb": "tc qdisc add dev lo root handle 1: htb default 1",
    "netem": "tc qdisc add dev lo root netem delay 1ms",
    "nft": "nft add table inet orrery_probe",
}


class Finding(NamedTuple):
    """One thing that was looked at. `needed` says whether Orrery cannot do without it."""

    name: str
    ok: bool
    says: str
    fix: str = ""
    needed: bool = False


@app.command("doctor")
def command(as_json: Json = False) -> None:
    """Tell what works on this machine, and how to mend what does not.

    \b
    Example:
      orrery doctor
    """
    import orrery

    kernel, compiler = find_kernel(), find_compiler()
    torch, shaping = find_torch(), find_shaping()
    extras = {name: find_extra(name) for name in EXTRAS}
    home, data = find_home(), find_data()
    findings = [_python(), compiler, kernel, torch, *extras.values(), shaping[0], home, data]
    document: dict[str, Any] = {
        "orrery": orrery.__version__, "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count(),
        "compiler": compiler.says if compiler.ok else None,
        "kernel": kernel.says.partition(" ")[0], "torch": torch.says if torch.ok else None,
        "link_shaping": {"works": shaping[0].ok, **shaping[1]},
        "extras": {name: found.ok for name, found in extras.items()},
        "ray": extras["ray"].says if extras["ray"].ok else None,
        "home": home.says, "home_writable": home.ok, "data": data.says if data.ok else None,
        "ok": all(found.ok for found in findings if found.needed),
        "checks": [found._asdict() for found in findings],
    }  # fmt: skip

    def show() -> None:
        rows = [
            (f.name, "works" if f.ok else "no", f.says, "" if f.ok else f.fix) for f in findings
        ]
        heads = ("what", "state", "says", "to mend it")
        shown = 3 if all(found.ok for found in findings) else 4
        print_table(heads[:shown], [row[:shown] for row in rows], keep=("what", "state"))
        say("orrery can work here" if document["ok"] else "orrery cannot work here yet")

    answer(document, as_json, show)


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding("python", ok, platform.python_version(), "use Python 3.11 or newer", True)


def find_compiler() -> Finding:
    """The C compiler that the installer would use."""
    import shlex
    import sysconfig

    asked = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "")
    words = [*shlex.split(asked)[:1], "cc", "gcc", "clang", "cl"]
    for word in dict.fromkeys(words):
        path = shutil.which(word)
        if path is not None:
            return Finding("compiler", True, path)
    fix = "install gcc or clang and the Python headers, then reinstall: the kernel gets faster"
    return Finding("compiler", False, "no C compiler", fix)


def find_kernel() -> Finding:
    """The event kernel in use, and the flow solver beside it."""
    from orrery.base.errors import OrreryError
    from orrery.engines.virtual import kernel

    try:
        name = kernel.load().NAME
    except OrreryError as error:
        return Finding("kernel", False, str(error), "unset ORRERY_KERNEL", True)
    if name == "c":
        return Finding("kernel", True, "c (compiled)")
    asked = os.environ.get("ORRERY_KERNEL") == "python"
    why = "asked for by ORRERY_KERNEL" if asked else "the C kernel was not built"
    fix = "" if asked else "install a C compiler, then reinstall; runs are right but slower"
    return Finding("kernel", asked, f"python ({why})", fix)


def find_torch() -> Finding:
    """Torch is looked up, not imported: that would take seconds."""
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", False, "not installed", "pip install torch, for real replicas")
    return Finding("torch", True, importlib.metadata.version("torch"))


def find_extra(name: str) -> Finding:
    """Whether all modules of an extra are there."""
    missing = [module for module in EXTRAS[name] if importlib.util.find_spec(module) is None]
    if missing:
        fix = f'pip install "orrery[{name}]"'
        return Finding(f"extra {name}", False, f"{', '.join(missing)} missing", fix)
    if name == "ray":  # looked up, not imported, as that takes a second
        version = importlib.metadata.version("ray")
        return Finding("extra ray", True, f"{version}; --engine ray and --on ray work here")
    return Finding(f"extra {name}", True, ", ".join(EXTRAS[name]))


def find_shaping() -> tuple[Finding, dict[str, bool]]:
    """Whether real links can be shaped: each way is tried in a network namespace of its own."""
    works = dict.fromkeys(SHAPERS, False)
    fix = "the processes engine shapes links in its own shim; for the kernel's: Linux, iproute2"
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return Finding("link shaping", False, "needs Linux and unshare", fix), works
    for name, line in SHAPERS.items():
        tool = line.split()[0]
        if shutil.which(tool) is None and not Path(f"/usr/sbin/{tool}").exists():
            continue
        works[name] = _try_apart(line)
    able = [name for name, ok in works.items() if ok]
    tools = [tool for tool in ("tc", "nft") if shutil.which(tool)]
    if able:
        return Finding("link shaping", True, ", ".join(able)), works
    says = f"{' and '.join(tools)} may not change links here" if tools else "no tc, no nft"
    return Finding("link shaping", False, says, fix), works


def _try_apart(line: str) -> bool:
    for flags in (["--net"], ["--map-root-user", "--net"]):
        try:
            done = subprocess.run(
                ["unshare", *flags, "sh", "-c", f"PATH=$PATH:/usr/sbin:/sbin {line}"],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        if done.returncode == 0:
            return True
    return False


def find_home() -> Finding:
    """Whether runs can be kept."""
    from orrery.base.errors import OrreryError
    from orrery.lab.ledger import home

    fix = "set ORRERY_HOME to a folder that you may write"
    try:
        folder = home()
        # The folder itself is made by the first run; until then its nearest parent counts.
        there = next(each for each in (folder, *folder.parents) if each.exists())
        with tempfile.NamedTemporaryFile(dir=there, prefix=".orrery-doctor-"):
            pass
    except (OSError, OrreryError, StopIteration) as failure:
        return Finding("run folder", False, str(failure), fix, True)
    return Finding("run folder", True, str(folder), "", True)


def find_data() -> Finding:
    """The folder of real traces and engine runs, where there is one."""
    given = os.environ.get("ORRERY_DATA", "")
    if given and Path(given).is_dir():
        return Finding("data folder", True, given)
    says = f"{given} is no folder" if given else "ORRERY_DATA is not set"
    return Finding("data folder", False, says, "set it to the folder of real traces, if any")
