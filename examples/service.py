"""A service of FastAPI that publishes, and answers when the message is on disk: `uvicorn service:app`.

The client runs in the service's own event loop. Run as a program it serves itself a few requests, 16 at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import fastapi
import httpx
import uvicorn
from pydantic import BaseModel

import sluice


class Order(BaseModel):
    customer: str
    article: str


@asynccontextmanager
async def connected(app: fastapi.FastAPI) -> AsyncIterator[None]:
    # A service of several processes connects to a broker that stays: sluice.connect_async(data_dir="queue-data").
    async with await sluice.connect_async(embedded=True) as client:
        await client.create_topic("orders", partitions=4)
        async with await client.create_producer("orders", schema=Order) as producer:
            app.state.client, app.state.producer = client, producer
            yield


app = fastapi.FastAPI(lifespan=connected)


@app.exception_handler(sluice.SluiceError)
async def refuse(request: fastapi.Request, error: Exception) -> fastapi.Response:
    """The outcome is unknown after a time-out, so the caller may send the order again."""
    status = 400 if isinstance(error, sluice.Invalid) else 503
    return fastapi.responses.JSONResponse({"detail": str(error)}, status)


@app.post("/orders", status_code=201)
async def place(order: Order) -> dict[str, str]:
    """The order is on disk when this returns."""
    return {"id": str(await app.state.producer.send(order, partition_key=order.customer))}


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve([listening]))
    port = listening.getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        orders = [{"customer": f"customer-{n % 4}", "article": f"article-{n}"} for n in range(16)]
        answers = await asyncio.gather(*(http.post("/orders", json=order) for order in orders))
        print("placed:", sum(answer.status_code == 201 for answer in answers))
        print("refused:", (await http.post("/orders", json={"customer": "ada"})).status_code)
        print("ids:", len({answer.json()["id"] for answer in answers}))
        async with await app.state.client.subscribe(
            "orders", "billing", initial_position="earliest", schema=Order
        ) as consumer:
            articles: set[str] = set()
            while len(articles) < 16:
                message = await consumer.receive()
                articles.add(message.value().article)
                await consumer.acknowledge(message)
        print("articles on disk:", len(articles))
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
