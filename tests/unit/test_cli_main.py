"""The program itself: exit codes, errors of every kind, Ctrl-C, start-up, completion, fuzz."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.test_cli_kit import cli, refused

import orrery
from orrery.base import errors
from orrery.cli import app as program
from orrery.cli import common

SOURCE = Path(orrery.__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORRERY_LEDGER", str(tmp_path / "ledger.jsonl"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def child(*words: str, **options) -> subprocess.Popen:
    """The program in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *words], env={**env, **options.pop("env", {})}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        # A shell ignores Ctrl-C for what it runs in the background, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options,
    )  # fmt: skip


def test_help_names_every_command():
    told = cli("--help")
    assert told.code == 0
    for name in program.COMMANDS:
        assert re.search(rf"^  {name} ", told.out, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(program.COMMANDS))
def test_every_command_has_help_with_an_example_and_takes_json(name):
    told = cli(name, "--help")
    assert told.code == 0
    inner = {
        "runs": ("ls", "rm", "gc"), "verify": ("determinism",), "bench": ("kernel", "serving"),
        "validate": ("engine", "serving"),
    }  # fmt: skip
    if name in inner:
        texts = [cli(name, each, "-h").out for each in inner[name]]
    else:
        texts = [told.out]
    for text in texts:
        assert "Example" in text
        assert f"orrery {name}" in text
        assert "--json" in text


def test_version():
    told = cli("--version")
    assert (told.code, told.out) == (0, f"orrery {orrery.__version__}\n")


def test_nothing_at_all_shows_the_help():
    told = cli()
    assert told.code == 64
    assert "orrery tour" in told.err


@pytest.mark.parametrize(
    ("word", "near"), [("lst", "list"), ("comapre", "compare"), ("runn", "run")]
)
def test_an_unknown_command_is_a_usage_error(word, near):
    # For "runn" both "run" and "runs" are near; the nearest of them is named.
    assert f'did you mean "{near}' in refused(word)


def test_unknown_options_are_usage_errors():
    refused("--nope")
    refused("list", "--nope")
    refused("runs", "ls", "--limit", "x")
    refused("runs", "nope")


# -- errors


def test_every_user_error_ends_with_its_code(monkeypatch):
    tree = [value for value in vars(errors).values()
            if isinstance(value, type) and issubclass(value, errors.OrreryError)]  # fmt: skip
    assert len(tree) > 12
    for kind in tree:
        made = kind("a field", "is off") if issubclass(kind, errors.SpecError) else kind("is off")

        def fail(*_, made=made, **__):
            raise made

        monkeypatch.setattr("orrery.lab.discover.entries", fail)
        told = cli("list", "--json")
        assert told.code == (1 if issubclass(kind, errors.PartError) else 64)
        assert told.json["error"]["kind"] == kind.__name__
        assert "is off" in told.err


@pytest.mark.parametrize("failure", [ValueError("oops"), errors.InternalError("ours")])
def test_our_own_bug_is_confessed_with_the_traceback_in_a_file(monkeypatch, home, failure):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr("orrery.lab.discover.entries", fail)
    told = cli("list", "--json")
    assert told.code == 70
    path = Path(told.json["error"]["traceback"])
    assert path.parent == home / "crashes"
    assert "Traceback" in path.read_text()
    assert str(failure) in path.read_text()
    assert len(told.err.splitlines()) == 2


def test_a_crash_is_kept_elsewhere_when_home_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))

    def fail(*_, **__):
        raise ValueError("oops")

    monkeypatch.setattr("orrery.lab.discover.entries", fail)
    told = cli("list", "--json")
    assert told.code == 70
    assert Path(told.json["error"]["traceback"]).parent == tmp_path


def test_ctrl_c_in_a_command_is_130(monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("orrery.lab.discover.entries", fail)
    told = cli("list")
    assert told.code == 130
    assert "kept" in told.err


def test_ctrl_c_keeps_a_valid_partial_comparison(home):
    process = child("-m", "orrery.cli", "compare", "broadcast:values=2,settle_s=0.2", "--world",
                    "lan:5", "--systems", "flood", "--seeds", "5000", "--json")  # fmt: skip
    runs = home / "runs"
    for _ in range(600):
        if runs.is_dir() and sum(not name.startswith(".") for name in os.listdir(runs)) >= 3:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["partial"] is True
    assert len(found["rows"][0]["runs"]) >= 2
    assert "Traceback" not in err
    listed = cli("runs", "ls", "--limit", "5000", "--json").json
    assert set(found["rows"][0]["runs"]) <= {row["id"] for row in listed}


def test_a_reader_that_goes_away_is_no_error():
    process = child("-m", "orrery.cli", "list", "--json")
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=240) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_letters_that_the_terminal_lacks_are_replaced():
    process = child("-m", "orrery.cli", "problems", "broadcast",
                    env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})  # fmt: skip
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "coverage" in out


def test_the_slower_kernel_is_told_once_on_stderr_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "orrery.engines.virtual._kernel", None)  # as if never built
    monkeypatch.delattr("orrery.engines.virtual._kernel", raising=False)
    monkeypatch.setattr("orrery.engines.virtual.kernel._told", False)
    told = cli("run", "flood", "--problem", "broadcast:values=1,settle_s=0.1", "--json")
    assert told.code == 0
    assert told.err.count("slower pure-Python kernel is in use") == 1
    assert told.json["violations"] == []


def test_the_entry_point_exits_with_the_code(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["orrery", "nonsense"])
    with pytest.raises(SystemExit) as ending:
        orrery.cli.main()
    assert ending.value.code == 64


# -- start-up


def test_help_and_list_import_nothing_heavy():
    code = (
        "import sys\nfrom orrery.cli.app import run_command\n"
        "code = run_command(sys.argv[1:])\n"
        "heavy = {'numpy', 'rich', 'asyncio', 'orrery.engines', 'orrery.world'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\nsys.exit(code)"
    )
    for words in (["--help"], ["list", "--json"], ["list"], ["run", "--help"]):
        process = child("-c", code, *words)
        _, err = process.communicate(timeout=240)
        assert process.returncode == 0
        assert err.strip() == "[]"


def test_no_color_and_dumb_terminals_get_no_escape_codes(monkeypatch):
    class Terminal:
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert common.colourful(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not common.colourful(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not common.colourful(Terminal())
    assert "\x1b" not in cli("list", "--room", "protocols").out


# -- completion


def test_ids_are_completed():
    assert ("push-gossip", "Push gossip") in common.complete_built("push")
    assert ("taper", "TAPER") in [(i, n.upper()) for i, n in common.complete_system("tap")]
    assert [name for name, _ in common.complete_problem("broad")] == ["broadcast"]
    assert common.complete_room("prot") == ["protocols"]
    assert [name for name, _ in common.complete_world("h100")] == ["h100_pod"]
    assert common.complete_run("la") == ["last"]
    assert common.complete_built("zzz") == []


def test_the_shell_is_given_ids():
    process = child("-m", "orrery.cli",
                    env={"_ORRERY_COMPLETE": "complete_bash", "COMP_WORDS": "orrery run push",
                         "COMP_CWORD": "2", "_TYPER_COMPLETE_TESTING": "1"})  # fmt: skip
    out, err = process.communicate(timeout=240)
    assert "push-gossip" in out, err


# -- fuzz

COMMANDS = ["list", "show", "where", "problems", "worlds", "faults", "run", "compare", "check",
            "runs", "replay", "report", "new", "nonsense"]  # fmt: skip
NASTY = ["", "-", "--", "nan", "-1", "0", "1e309", "\x00", "é", "🙂", "../..", "/", "[", "{}", "=",
         "a=b", ":", "lan:3", "lan:", "lan:nan", "broadcast:values=1,settle_s=0.1", "flood",
         "push-gossip", "push-gossip:", "last", "ls", "rm", "gc", "deadbeef", "json:loads",
         "os:path", "%s", "$HOME", "x" * 300, "Crash", "system", "world", "none.toml"]  # fmt: skip
OPTIONS = ["--json", "--room", "--problem", "--world", "--seed", "--set", "--faults", "--seeds",
           "--systems", "--by", "--until", "--node", "--limit", "--keep", "--status", "--engine",
           "-o", "--title", "--help", "--nope"]  # fmt: skip
WORDS = st.lists(st.sampled_from(NASTY + OPTIONS) | st.text(max_size=6), max_size=5)


def hurl(command: str, words: list[str]) -> None:
    if command in ("run", "compare"):
        # A small world whatever else is asked, so that no draw takes long.
        words = [*words, "--world", "lan:4"]
        words = ["--seeds", "1", *words] if command == "compare" else words
    if "processes" in words:
        return
    told = cli(command, *words)
    assert told.code in (0, 1, 2, 64), (command, words, told)
    if "--json" in words and "--help" not in words and "-h" not in words and told.out:
        json.loads(told.out)
    if told.code == 64:
        assert told.err


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(COMMANDS), WORDS)
def test_no_arguments_break_it(command, words):
    hurl(command, words)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(COMMANDS), WORDS)
def test_no_arguments_break_it_in_many_trials(command, words):
    hurl(command, words)
