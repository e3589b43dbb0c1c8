"""Typed values: dataclasses, msgspec Structs and pydantic models as messages, with the topic's schema registry."""
