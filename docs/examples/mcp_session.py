"""A session of an agent with `dither mcp`, through the official client over stdio.

python docs/examples/mcp_session.py > docs/examples/mcp_session.txt
"""

import asyncio
import json
import os
import sys
import tempfile

from mcp import Client, StdioServerParameters

WIDTH = 100

EXPERIMENT = """\
extends = "bubble_diagram/quick"
name = "rooms"
train.steps = 20
train.lr_schedule.warmup = 2
evaluate.every = 20
evaluate.samples = 200
sample.count = 4
"""


def show(arrow: str, value: object) -> None:
    """Print a call or its result as one line of JSON, cut to the width of a page."""
    line = f"{arrow} {json.dumps(value)}".replace(os.getcwd() + "/", "")
    print(line if len(line) <= WIDTH else line[: WIDTH - 4] + " ...")


async def session(client: Client) -> None:
    """List components, write an experiment, correct it, run it, and read its metrics."""

    async def call(tool: str, **arguments: object) -> dict:
        show(">", {tool: arguments})
        result = await client.call_tool(tool, arguments)
        answer = result.structured_content
        show("<", answer)
        return answer

    await call("list", kind="sampler")
    await call("describe", name="first-hitting", kind="sampler")
    (file,) = (await call("write", name="rooms", text=EXPERIMENT))["files"]
    failure = await call("validate", experiment=file, overrides=["loss=mse"])
    for problem in failure["problems"]:
        print(f"  {problem['code']}: {problem['message']}")
    await call("validate", experiment=file)
    events = (await call("run", experiment=file, seconds=120))["events"]
    for event in events:
        print(f"  {event['event']}")
    run = events[0]["run"]
    metrics = (await call("status", run=run))["metrics"]
    print(f"  {metrics['valid']['nats_per_graph']:.1f} nats per graph")
    await call("evaluate", run=run, overrides=["evaluate.samples=100"])
    await call("sample", run=run, count=2)


async def main() -> None:
    """Serve a temporary folder, the working folder of the client."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "dither.engine.cli", "mcp", "."]
        )
        async with Client(server) as client:
            await session(client)


asyncio.run(main())
