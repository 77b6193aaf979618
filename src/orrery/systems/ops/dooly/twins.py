"""Runs the engine on small co-prime twins of a model's structure and labels what it calls.

A twin has the structure of a model (grouped heads, latent attention, experts, windows, biases) and
sizes of its own: every field of the configuration and every size of the batch is another number
that shares no factor with the rest. Labels are polynomials over the fields, so they hold for every
model of that structure at any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from orrery.base.errors import SpecError
from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.origins import Book
from orrery.systems.ops.dooly.taint import Labelled, Run, trace

# Sizes of three twins; of those a structure has no use for, none is taken.
CONFIG: dict[str, tuple[int, int, int]] = {
    "hidden": (37, 61, 83), "head_dim": (22, 26, 34), "intermediate": (53, 71, 89),
    "vocab": (211, 223, 227), "q_lora_rank": (19, 31, 43), "kv_lora_rank": (23, 29, 41),
    "qk_nope_dim": (13, 17, 29), "qk_rope_dim": (14, 38, 46), "v_head_dim": (7, 11, 17),
    "experts": (5, 7, 11), "experts_active": (2, 3, 4), "shared_experts": (3, 2, 5),
    "expert_intermediate": (47, 59, 79), "window": (31, 41, 23), "max_context": (307, 311, 313),
    "positions": (317, 331, 337),
}  # fmt: skip
_GROUPED = {"kv_heads": (3, 5, 7), "heads": (15, 20, 21)}
ENGINE = {"blocks": (401, 409, 419), "block_tokens": (8, 9, 10)}
# Decodes, their context, tokens of the prompt chunk and tokens before it.
BATCH = {
    "decodes": (9, 11, 16), "context": (109, 101, 113), "new": (67, 73, 103), "past": (59, 64, 33),
}  # fmt: skip


def twin(model: ModelSpec, which: int) -> dict[str, int]:
    """The sizes of one of the twins of a model, by field."""
    sizes = {name: CONFIG[name][which] for name in CONFIG if getattr(model, name)}
    if model.kv_lora_rank:
        sizes.pop("head_dim", None)
        sizes["heads"] = sizes["kv_heads"] = _GROUPED["heads"][which]
    elif model.kv_heads == model.heads:
        sizes["heads"] = sizes["kv_heads"] = _GROUPED["heads"][which]
    elif model.kv_heads == 1:
        sizes |= {"kv_heads": 1, "heads": _GROUPED["heads"][which]}
    else:
        sizes |= {name: each[which] for name, each in _GROUPED.items()}
    return sizes


def twin_spec(model: ModelSpec, sizes: dict[str, int], book: Book | None) -> ModelSpec:
    """A model of these sizes whose fields carry their names, with every kind of layer."""
    shape = msgspec.structs.asdict(model)
    shape |= {name: value for name, value in sizes.items() if name in shape}
    shape |= {"name": "twin", "layers": 2, "dtype": "fp32", "linear_dtype": "", "source": ""}
    shape |= {"expert_dtype": "", "kv_dtype": ""}
    some = model.window_layers
    shape["window_layers"] = 0 if not some else 2 if some == model.layers else 1
    first = model.first_dense
    shape["first_dense"] = 0 if not first else 2 if first == model.layers else 1
    made = ModelSpec(**shape)
    if book is not None:
        for name, value in sizes.items():
            if name in ENGINE:
                continue
            msgspec.structs.force_setattr(made, name, book.size(name, value))
    return made


def batch_sizes(which: int) -> dict[str, int]:
    """All sizes that the batch of a twin has, by name."""
    sizes = {name: each[which] for name, each in BATCH.items()}
    return derived(sizes, ENGINE["block_tokens"][which])


def derived(sizes: dict[str, int], block: int) -> dict[str, int]:
    """The sizes that follow from decodes, context, new and past."""
    decodes, context, new = sizes["decodes"], sizes["context"], sizes["new"]
    reach = new + sizes["past"]
    chunk, group = -(-reach // block), -(-context // block)
    return sizes | {
        "tokens": decodes + new, "rows": decodes + 1, "reach": reach, "chunk_blocks": chunk,
        "chunk_room": chunk * block, "group_blocks": decodes * group, "group_room": group * block,
    }  # fmt: skip


def run_twin(
    model: ModelSpec, sizes: dict[str, int], batch: dict[str, int], book: Book, seed: int = 0
) -> Run:
    """Record one step of the real engine on a twin: a prompt chunk beside decodes."""
    from orrery.models.real.backend import torch
    from orrery.models.real.engine import RealReplica
    from orrery.models.real.measure import plant
    from orrery.models.real.schedule import Continuous
    from orrery.models.real.tensors import random_source
    from orrery.models.real.transformer import Transformer
    from orrery.systems.ops.dooly.record import recorder

    shape = twin_spec(model, sizes, book)
    given = random_source(seed, "cpu", torch.float32)
    weights: dict[int, tuple[Any, ...]] = {}
    with recorder() as tape:

        def source(name: str, dims: tuple[int, ...]) -> Any:
            tensor = given(name, tuple(int(n) for n in dims))
            if all(hasattr(n, "origin") for n in dims):
                weights[tape.uid(tensor)] = tuple(n.origin for n in dims)
            return tensor

        made = Transformer(shape, source, device="cpu", dtype="fp32")
        places = batch["tokens"] + 1
        scheduler = Continuous(step_tokens=places, max_sequences=places)
        engine = {name: sizes[name] for name in ENGINE}
        replica = RealReplica(
            made, scheduler, blocks=book.size("blocks", engine["blocks"]),
            block_tokens=book.size("block_tokens", engine["block_tokens"]), caching=False,
        )  # fmt: skip
        began = len(tape.calls)
        for number in range(batch["decodes"]):
            plant(replica, number, batch["context"] - 1, 1, decoding=True)
        plant(replica, 1 << 12, batch["past"], batch["new"], decoding=False)
        replica.step()
        calls = list(tape.calls)
    return Run(calls, {**sizes, **batch}, weights, began)


def label(
    model: ModelSpec, *, runs: int = 3, others: Sequence[dict[str, int]] = (), seed: int = 0
) -> tuple[list[Labelled], Book]:
    """Every operator that a step of this structure calls, with the origin of each dimension.

    runs     how many twins are compared; one alone cannot tell equal numbers apart
    others   sizes that replace a twin's own, for those who want to see it fail
    """
    if not 1 <= runs <= 3:
        raise SpecError("runs", f"{runs} is refused", "give 1, 2 or 3")
    book, made = Book(), []
    for which in range(runs):
        sizes = twin(model, which) | {name: each[which] for name, each in ENGINE.items()}
        batch = batch_sizes(which)
        changed = dict(others[which]) if which < len(others) else {}
        for name in [name for name in changed if name in BATCH]:
            batch[name] = changed.pop(name)
        sizes |= changed
        batch = derived({name: batch[name] for name in BATCH}, sizes["block_tokens"])
        for name, value in batch.items():
            book.size(name, value)
        made.append(run_twin(model, sizes, batch, book, seed))
    return trace(made, book), book


__all__ = ["BATCH", "CONFIG", "ENGINE", "batch_sizes", "label", "run_twin", "twin", "twin_spec"]
