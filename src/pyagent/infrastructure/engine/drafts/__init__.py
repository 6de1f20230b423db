"""Speculative decoding: proposals for an answer's next tokens, verified in the step that samples the first of them."""
