"""A service of FastAPI with a pool behind it: a request becomes a message, and waits for what a worker answers.

Each customer's requests are handled in their order, and different customers' side by side. A worker that dies loses no
request: another one takes its place, and the answer comes later.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import fastapi
import httpx
import uvicorn

import sluice

waiting: dict[str, asyncio.Future[str]] = {}
balances: dict[str, int] = {}


def book(message: sluice.Message) -> sluice.Result:
    """Book an amount in a worker: each call of a customer comes after the one before it."""
    customer, amount = message.partition_key(), int(message.data())
    balances[customer] = balances.get(customer, 0) + amount
    return sluice.Result(str(balances[customer]), properties=message.properties())


async def answer(consumer: sluice.Consumer) -> None:
    """Hand each answer to the request that waits for it."""
    while True:
        message = await consumer.receive_async()
        consumer.acknowledge(message)
        request = waiting.pop(message.properties()["request"], None)
        if request is not None and not request.done():
            request.set_result(message.data().decode())


@asynccontextmanager
async def connected(app: fastapi.FastAPI) -> AsyncIterator[None]:
    # With a broker that stays, the pool can be a program of its own: Workers(..., detached=True) on Ray.
    client = await asyncio.to_thread(sluice.connect, embedded=True)
    with client:
        client.create_topic("payments", partitions=4)
        client.create_topic("balances", deduplication_enabled=True)
        app.state.producer = client.create_producer("payments")
        consumer = client.subscribe("balances", f"service-{secrets.token_hex(4)}")
        answering = asyncio.create_task(answer(consumer))
        pool = sluice.Workers("payments", "booking", book, client=client, output="balances", max_workers=2)
        await asyncio.to_thread(pool.start)
        yield
        await asyncio.to_thread(pool.stop)
        answering.cancel()


app = fastapi.FastAPI(lifespan=connected)


@app.post("/customers/{customer}/payments")
async def pay(customer: str, amount: int) -> dict[str, int]:
    request = secrets.token_hex(8)
    waiting[request] = asyncio.get_running_loop().create_future()
    try:
        async with asyncio.timeout(30):
            await app.state.producer.send_async(str(amount), partition_key=customer, properties={"request": request})
            return {"balance": int(await waiting[request])}
    except TimeoutError:
        raise fastapi.HTTPException(504, "the payment is booked later, if it was taken") from None
    finally:
        waiting.pop(request, None)


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve([listening]))
    port = listening.getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:

        async def pays(customer: str) -> list[int]:
            answers = [await http.post(f"/customers/{customer}/payments?amount={n}") for n in (1, 2, 3, 4)]
            return [answer.json()["balance"] for answer in answers]

        customers = ["ada", "ben", "cyd"]
        for customer, answers in zip(customers, await asyncio.gather(*map(pays, customers)), strict=True):
            print(customer, *answers)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
