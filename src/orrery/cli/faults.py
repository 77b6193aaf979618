"""`orrery faults`: every kind of fault, or the fields of one."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from orrery.cli.common import Json, answer, new_app, say, strong
from orrery.cli.table import print_table

app = new_app()


@app.command("faults")
def command(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="Show the fields of this kind.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the kinds of faults, or the fields of one with an example for a --faults file.

    \b
    Examples:
      orrery faults
      orrery faults Crash
    """
    from orrery.base.errors import UsageError, did_you_mean
    from orrery.world import FAULTS

    if kind is None:
        rows = [_row(cls) for cls in FAULTS.values()]
        lines = [(row["kind"], ", ".join(row["fields"]), row["says"]) for row in rows]
        answer(
            rows, as_json, lambda: print_table(("kind", "fields", "says"), lines, keep=("kind",))
        )
        return
    found = {name.lower(): cls for name, cls in FAULTS.items()}.get(kind.lower())
    if found is None:
        raise UsageError(f"no fault {kind!r}; {did_you_mean(kind, FAULTS)}")
    row = _row(found)

    def show() -> None:
        say(strong(row["kind"]))
        say(row["doc"])
        say()
        fields = list(row["fields"].items())
        print_table(("field", "default"), fields, keep=("field",))
        say()
        say("in a file for --faults:")
        say(row["example"])

    answer(row, as_json, show)


def _row(cls: Any) -> dict[str, Any]:
    import msgspec

    fields = {}
    for field in msgspec.structs.fields(cls):
        given = field.default is not msgspec.NODEFAULT
        fields[field.name] = repr(field.default) if given else "(needed)"
    doc = inspect.cleandoc(cls.__doc__ or "")
    return {
        "kind": cls.__name__, "says": doc.partition("\n")[0], "doc": doc, "fields": fields,
        "example": _example(cls, fields),
    }  # fmt: skip


SAMPLES: dict[str, Any] = {
    "node": 0, "domain": "node", "groups": ((0,), (1,)), "at_s": 0.5, "until_s": 1.0, "count": 3,
    "between_s": (0.0, 1.0), "factor": 2.0, "p": 0.1, "delay_s": 0.05, "fraction": 0.5,
    "watts": 200.0, "skew_s": 0.1, "drift": 1e-4, "jump_s": 0.5, "period_s": 0.2, "spread_s": 0.02,
}  # fmt: skip


def _example(cls: Any, fields: dict[str, str]) -> str:
    """A table that `--faults` takes: what the kind needs, with plausible values."""
    from orrery.world import faults_to_toml

    names = [name for name, default in fields.items() if default == "(needed)"]
    names += cls.one_of[:1]
    names += ["count", "between_s"] if "count" in fields else ["at_s", "until_s"]
    if "delay_s" in fields and "strategies" not in fields:
        names.append("delay_s")
    if cls.__name__ == "DeviceLoss":
        names.append("device")
    wanted = {name: SAMPLES.get(name, 0) for name in dict.fromkeys(names)}
    return str(faults_to_toml([cls(**wanted)])).strip()
