"""`engine.compile`: what lies between a decoder's products, compiled by torch.compile where that is measured to help.

`functions` are compiled one by one and counted, `stages` takes them in a model's steps, `choice` finds out from which
number of rows on each is quicker, `cache` keeps compiled code between starts.
"""
