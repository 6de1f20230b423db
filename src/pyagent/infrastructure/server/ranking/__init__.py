"""Ranking, scoring and classifying texts: Cohere's and Jina's rerank, and vLLM's score and classify."""
