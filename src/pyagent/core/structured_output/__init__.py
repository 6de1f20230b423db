"""Response formats as the Lark that llguidance compiles: combinations, GBNF, structural tags. Pure text."""
