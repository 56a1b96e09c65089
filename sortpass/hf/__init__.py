"""Hugging Face ``generate`` with its logits processors in row chunks, and prompt log-probs in bounded memory.

    with sortpass.hf.chunked_generation(model, row_chunk=64) as report:
        model.generate(**inputs, do_sample=True, top_p=0.9)
    print(report)

``generate`` runs its logits processors outside of any compiled graph, so a compile config of its own reaches no sort.
The bridge replaces the list of processors that ``generate`` builds by one that runs them through
``torch.compile(backend="chunked_sort")``: the warpers with whatever else traces beside them as one graph, the rest as
they are. Needs the extra ``sortpass[hf]``; nothing outside of this package imports transformers.
"""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError("sortpass.hf needs transformers 5.0 or newer; pip install 'sortpass[hf]'") from error

from sortpass.hf.generation import chunked_generation, disable, enable, generate
from sortpass.hf.logprobs import PromptLogprobs, prompt_logprobs
from sortpass.hf.report import BridgeError, GenerationReport

__all__ = [
    "BridgeError",
    "GenerationReport",
    "PromptLogprobs",
    "chunked_generation",
    "disable",
    "enable",
    "generate",
    "prompt_logprobs",
]
