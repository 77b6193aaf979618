"""xLLM's real instance: the tiny engine on the virtually contiguous memory, with drafts."""

from __future__ import annotations

from orrery.parts import Count
from orrery.systems.serve.problems.llm_elastic.node import InstanceNode
from orrery.systems.serve.problems.llm_elastic.tiny import TinyEngine
from orrery.systems.serve.xllm.speculation import PromptLookup
from orrery.systems.serve.xllm.xtensor import XTensor


class XInstance(InstanceNode):
    """Answers jobs with a tiny model on `XTensor` memory and prompt-lookup drafts.

    pages, page_tokens   of the memory; drafts, tokens proposed in a step (0: none)
    """

    pages: Count = 512
    page_tokens: Count = 4
    drafts: Count = 4

    def new_engine(self) -> TinyEngine:
        memory = XTensor(pages=self.pages, page_tokens=self.page_tokens, width=self.model.record)
        return TinyEngine(self.model, memory, seats=self.seats, draft=PromptLookup(),
                          drafts=self.drafts)  # fmt: skip


__all__ = ["XInstance"]
