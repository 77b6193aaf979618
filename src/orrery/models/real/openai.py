"""OpenAI's completion and chat requests: read with named errors, answered in OpenAI's form."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from orrery.base.errors import OrreryError

ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_STOPS = 4
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# Fields that change nothing here at these values; any other value is refused rather than ignored.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "logprobs": (False,),
    "top_logprobs": (0,), "presence_penalty": (0,), "frequency_penalty": (0,),
    "logit_bias": ({},), "tools": ([],), "functions": ([],), "response_format": ({"type": "text"},),
    "tool_choice": ("none",), "function_call": ("none",), "modalities": (["text"],),
    "audio": (), "prediction": (), "web_search_options": (),
}  # fmt: skip


class ApiError(OrreryError):
    """What a client did wrong, in OpenAI's form."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.param, self.code, self.kind = status, param, code, kind

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        return {
            "error": {
                "message": str(self), "type": self.kind, "param": self.param, "code": self.code
            }
        }  # fmt: skip


class Asked(msgspec.Struct, frozen=True):
    """A request that was read: prompts as tokens, and how to answer."""

    chat: bool
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]
    stream: bool
    usage: bool
    ignore_end: bool


def read_body(raw: bytes) -> dict[str, Any]:
    """A JSON object, or an `ApiError`."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body is no JSON object")
    return body


def read_request(body: dict[str, Any], *, chat: bool, tokenizer: Any, vocab: int) -> Asked:
    """Read a completion or chat request."""
    for field, values in NEUTRAL.items():
        value = body.get(field)
        if value is not None and not any(value == each for each in values):
            raise ApiError(400, f"{field} is not supported here; leave it out", param=field)
    if chat:
        prompts = (tuple(tokenizer.chat(_messages(body))),)
        limit = body.get("max_completion_tokens")
        field = "max_completion_tokens" if limit is not None else "max_tokens"
        most = _whole(body, field, None, 1)
    else:
        prompts = _prompts(body, tokenizer, vocab)
        most = _whole(body, "max_tokens", 16, 1)
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", param="stream_options")
    return Asked(
        chat=chat, prompts=prompts, max_tokens=most,
        temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(body, "top_p", 1.0, 0.0, 1.0) or 1e-9,
        seed=_whole(body, "seed", 0, -(1 << 63)) or 0, stop=_stops(body),
        stream=_truth(body, "stream"), usage=_truth(options, "include_usage"),
        ignore_end=_truth(body, "ignore_eos"),
    )  # fmt: skip


def _messages(body: dict[str, Any]) -> list[tuple[str, str]]:
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise ApiError(400, "messages must be a list with at least one message", param="messages")
    found = []
    for place, each in enumerate(given):
        param = f"messages[{place}]"
        if not isinstance(each, dict) or each.get("role") not in ROLES:
            names = ", ".join(ROLES)
            raise ApiError(400, f"{param}.role must be one of {names}", param=f"{param}.role")
        text = each.get("content")
        if isinstance(text, list):
            text = _parts(text, f"{param}.content")
        if not isinstance(text, str):
            raise ApiError(400, f"{param}.content must be text", param=f"{param}.content")
        found.append((each["role"], text))
    if found[0][0] != "system":
        found.insert(0, ("system", SYSTEM))  # as the model's own template does
    return found


def _parts(parts: list[Any], param: str) -> str:
    texts = []
    for part in parts:
        fine = isinstance(part, dict) and part.get("type") == "text"
        if not fine or not isinstance(part.get("text"), str):
            raise ApiError(400, f"{param}: only parts of type text are supported", param=param)
        texts.append(part["text"])
    return "".join(texts)


def _prompts(body: dict[str, Any], tokenizer: Any, vocab: int) -> tuple[tuple[int, ...], ...]:
    given = body.get("prompt")
    if isinstance(given, str) or _are_tokens(given, vocab):
        given = [given]
    if not isinstance(given, list) or not 1 <= len(given) <= 64:
        raise ApiError(400, "prompt must be text, tokens, or a list of 1 to 64", param="prompt")
    found = []
    for each in given:
        if isinstance(each, str):
            each = tokenizer.encode(each)
        if not _are_tokens(each, vocab):
            raise ApiError(
                400, f"prompt: give text that is not empty, or tokens below {vocab}", param="prompt"
            )
        found.append(tuple(each))
    return tuple(found)


def _are_tokens(value: Any, vocab: int) -> bool:
    """Whether it is a list of one token or more."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(token) is int and 0 <= token < vocab for token in value)
    )


def _whole(body: dict[str, Any], field: str, default: int | None, least: int) -> int | None:
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
        raise ApiError(400, f"{field} must be a whole number >= {least}", param=field)
    return value


def _number(body: dict[str, Any], field: str, default: float, low: float, high: float) -> float:
    value = body.get(field)
    if value is None:
        return default
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or not low <= value <= high:
        raise ApiError(400, f"{field} must be a number from {low:g} to {high:g}", param=field)
    return float(value)


def _truth(body: dict[str, Any], field: str) -> bool:
    value = body.get(field)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ApiError(400, f"{field} must be true or false", param=field)
    return value


def _stops(body: dict[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    fine = isinstance(stops, list) and len(stops) <= MOST_STOPS
    if not fine or not all(isinstance(each, str) and each for each in stops):
        raise ApiError(400, f"stop must be text, or up to {MOST_STOPS} texts", param="stop")
    return tuple(stops)


class Stopper:
    """Passes text on as it comes, up to the first stop text; holds back what could begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._kept, self.hit = tuple(stops), "", False

    def feed(self, text: str) -> str:
        """The text that may go out now."""
        if self.hit:
            return ""
        self._kept += text
        found = [at for stop in self._stops if (at := self._kept.find(stop)) >= 0]
        if found:
            self.hit = True
            out, self._kept = self._kept[: min(found)], ""
            return out
        hold = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._kept)), hold, -1):
                if self._kept.endswith(stop[:size]):
                    hold = size
                    break
        cut = len(self._kept) - hold
        out, self._kept = self._kept[:cut], self._kept[cut:]
        return out

    def finish(self) -> str:
        """What was held back for nothing."""
        out, self._kept = ("" if self.hit else self._kept), ""
        return out


class Form:
    """The documents of one answer, whole or in pieces."""

    def __init__(self, asked: Asked, model: str, id: int) -> None:
        self.asked = asked
        word = "chatcmpl" if asked.chat else "cmpl"
        self._head = {"id": f"{word}-{id}", "created": int(time.time()), "model": model}

    def whole(self, texts: list[str], reasons: list[str], usage: dict[str, int]) -> dict[str, Any]:
        """The answer in one document."""
        pairs = zip(texts, reasons, strict=True)
        choices = [self._choice(place, *each) for place, each in enumerate(pairs)]
        kind = "chat.completion" if self.asked.chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": usage}

    def _choice(self, place: int, text: str, reason: str) -> dict[str, Any]:
        said: dict[str, Any] = {"text": text}
        if self.asked.chat:
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": place, **said, "logprobs": None, "finish_reason": reason}

    def piece(
        self, place: int, text: str, *, first: bool = False, reason: str | None = None
    ) -> dict[str, Any]:
        """A piece of a streamed answer."""
        said: dict[str, Any] = {"text": text}
        if self.asked.chat:
            role = {"role": "assistant"} if first else {}
            said = {"delta": {**role, **({"content": text} if text or first else {})}}
        choice = {"index": place, **said, "logprobs": None, "finish_reason": reason}
        more = {"usage": None} if self.asked.usage else {}
        return {**self._head, "object": self._kind, "choices": [choice], **more}

    def last(self, usage: dict[str, int]) -> dict[str, Any]:
        """The piece that tells the usage."""
        return {**self._head, "object": self._kind, "choices": [], "usage": usage}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.asked.chat else "text_completion"


def usage_of(prompt: int, made: int, cached: int) -> dict[str, Any]:
    """How many tokens an answer took."""
    return {
        "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip


def refuse_length(prompt: int, most: int | None, longest: int) -> int:
    """How many tokens may be made; an `ApiError` when the context does not hold them."""
    if prompt + (most or 1) > longest:
        raise ApiError(
            400,
            f"the prompt has {prompt} tokens and {most or 1} are asked for, but the context holds "
            f"{longest}; shorten one of them",
            param="messages", code="context_length_exceeded",
        )  # fmt: skip
    return most or longest - prompt


__all__ = ["ApiError", "Asked", "Form", "Stopper", "read_body", "read_request"]
