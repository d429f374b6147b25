import asyncio

from common import RANK, wait


async def fetch():
    raise ConnectionError("no answer of the store of data")


async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(fetch())
        await asyncio.sleep(60)


if RANK == 0:
    asyncio.run(main())
wait()
