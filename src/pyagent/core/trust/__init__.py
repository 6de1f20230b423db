"""Signs that a text is to steer a model or press a person: found by rules that can be read, in linear time."""
