"""Answers of the embedded engine as objects and constrained texts."""

import asyncio
import sys

from pydantic import BaseModel, Field

from pyagent import Engine, SamplingParams


class City(BaseModel, extra="forbid"):
    name: str = Field(max_length=30)
    population: int = Field(ge=0, le=50_000_000)


async def main(model: str = "smollm2:135m") -> City:
    async with Engine(model, threads=2) as engine:
        sampling = SamplingParams(temperature=0.0, max_tokens=200)
        city = await engine.generate(
            "Name a large city and how many people live there.", schema=City, sampling=sampling
        )
        print(city.name, city.population)
        print(await engine.generate("Is water wet?", choice=["yes", "no"], sampling=sampling))
        print(await engine.generate("When was it? Answer with a date.", regex=r"\d{4}-\d{2}-\d{2}", sampling=sampling))
        print(await engine.generate("Do a sum.", grammar='root ::= [1-9] ("+" [1-9]){1,3}', sampling=sampling))
        return city


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
