import asyncio
import os
import signal


async def fail():
    raise ValueError("nobody waits for this")


async def main():
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, told.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await told.wait()
    process = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
    print(await process.wait(), type(loop).__name__, await asyncio.to_thread(os.getpid) == os.getpid())
    task = loop.create_task(fail(), name="failing")
    await asyncio.wait([task])
    del task
    return 4


print(asyncio.run(main()))


async def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(30)


try:
    asyncio.run(interrupt())
except KeyboardInterrupt:
    print("interrupted")
asyncio.run(fail())
