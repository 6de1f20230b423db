"""Text to tokens and back: tokenizers, chat templates, streamed detokenising. Knows no model and no engine."""

from pyagent.infrastructure.engine.tokens.detokenizer import Detokenizer
from pyagent.infrastructure.engine.tokens.tokenizer import ModelTokenizer

__all__ = ["Detokenizer", "ModelTokenizer"]
